"""The paper's two routing procedures: dynamic routing, and the fast routing that replaces it (section 3).

Dynamic routing is differentiated in closed form. With ``s_t = Σ_i c_t ⊙ û``, ``v_t = squash(s_t)``,
``b_t = b_{t−1} + û·v_t`` and ``c_{t+1} = normalize(b_t)``, the gradient on the votes is the sum of 2r − 1 outer
products, ``c_t ⊗ ∂s_t`` for every iteration and ``∂b_t ⊗ v_t`` for every one but the last, so one batched
matrix product writes it; autograd through the loop would write it 2r times.

Internally, the classes come first and votes are stored as ``(j b i e)``: every sum over i and every agreement is then
a matrix product. `route_capsules` processes the batch in chunks of a few images, so that memory doesn't grow with the
batch, in one of two forms:

- `_VoteChunks`: compute the votes of a chunk in a reused buffer, and recompute them in the backward pass, which is
  cheaper than storing them.
- `_VoteFree`: with ``û_ij = W_ij u_i`` a sum is ``Σ_i W_ij (c_ij u_i)`` and an agreement is ``u_i · (W_ijᵀ v_j)``. The
  intermediate vectors then have the dimension of a lower capsule, not of a class capsule; but every pass reads the
  weights again. It is faster if lower capsules have a much smaller dimension and there are many images.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastcaps._products import large_products
from fastcaps._tracing import is_compiled, is_eager
from fastcaps.functional._deprecated import accept_bounds
from fastcaps.functional.normalizations import MaxMin, Normalization, get_normalization
from fastcaps.functional.squashing import squash, squash_gradient

# Bytes of votes, or of coefficients without votes, per chunk of `route_capsules`: they fit into the outer cache.
CHUNK_BYTES = 16 * 2**20
# Bytes of intermediate results per chunk without votes: they fit into the inner caches.
PRODUCT_BYTES = 2 * 2**20
# On a CPU, votes are not computed if there are at least this many images, and if the dimension of a vote is at least
# this multiple of that of a lower capsule. Elsewhere one product per class is too little work at a time.
VOTE_FREE = 32, 4


class RoutingOutput(NamedTuple):
    """Capsules ``(b j e)``, and the coefficients ``(b i j)`` that were used to compute them."""

    capsules: Tensor
    coefficients: Tensor


class _Settings(NamedTuple):
    iterations: int
    normalization: Normalization

    def normalize(self, logits: Tensor) -> Tensor:
        """Return the coefficients of logits, both ``(j b i)``."""
        return self.normalization(logits.permute(1, 2, 0)).permute(2, 0, 1)

    def gradient(self, logits: Tensor, on_coefficients: Tensor) -> Tensor:
        """Return the gradient on the logits, all ``(j b i)``; the caller may write into it."""
        on_logits = self.normalization.gradient(logits.permute(1, 2, 0), on_coefficients.permute(1, 2, 0))
        return on_logits.permute(2, 0, 1)


class _Step(NamedTuple):
    """One iteration, as ``(j b …)``: logits, coefficients, sums, capsules."""

    logits: Tensor
    coefficients: Tensor
    sums: Tensor
    capsules: Tensor


def prediction_vectors(lower_capsules: Tensor, weight: Tensor) -> Tensor:
    """Return the vote of every lower capsule for every class capsule (eq. 1, left): ``û_j|i = W_ij u_i``.

    Args:
        lower_capsules: ``(b i d)``.
        weight: ``(i d j e)``.

    Returns:
        Votes ``(b i j e)``.
    """
    _check_capsules(lower_capsules, weight)
    return torch.einsum("bid,idje->bije", lower_capsules, weight)


@accept_bounds(2)
def dynamic_routing(
    votes: Tensor,
    iterations: int = 3,
    normalization: str | Normalization = "max_min",
    *,
    bias: Tensor | None = None,
) -> RoutingOutput:
    """Route by agreement: the Max-Min Routing Procedure, or that of another normalization.

    The coefficients start at 1.0 (softmax: at 1/j), the logits at 0. The returned coefficients are those *used* in the
    sum of the last iteration, so that ``fast_routing(votes, coefficients)`` gives the same capsules; they carry no
    gradient. The gradient on votes and bias is exact, in closed form, and can be taken once.

    Args:
        votes: ``(b i j e)``, in any memory order.
        iterations: the paper's r, at least 1.
        normalization: normalization of the logits over the classes; a registered name or an object.
        bias: ``(j e)``, added to the sums of every iteration.

    Returns:
        ``capsules (b j e)`` and ``coefficients (b i j)``.
    """
    _check_votes(votes)
    _check_bias(bias, votes.shape[2:], votes)
    settings = _settings(iterations, normalization)
    if not is_eager(votes):
        return _plain_trace(votes, bias, settings)[-1]
    ordered = votes.permute(2, 0, 1, 3).contiguous()  # (j, b, i, e)
    if torch.is_grad_enabled() and (votes.requires_grad or _requires_grad(bias)):
        return _output(*_DynamicRouting.apply(ordered, bias, settings))  # type: ignore[no-untyped-call]
    last = _iterate(_Votes(ordered), bias, settings)[-1]
    return _output(last.capsules, last.coefficients)


@accept_bounds(3)
def route_capsules(
    lower_capsules: Tensor,
    weight: Tensor,
    iterations: int = 3,
    normalization: str | Normalization = "max_min",
    *,
    bias: Tensor | None = None,
) -> RoutingOutput:
    """Return ``dynamic_routing(prediction_vectors(lower_capsules, weight), …)`` without ever holding all votes.

    The gradient on capsules, weights and bias is exact and can be taken once.

    Args:
        lower_capsules: ``(b i d)``.
        weight: ``(i d j e)``.
        iterations: as for `dynamic_routing`.
        normalization: as for `dynamic_routing`.
        bias: as for `dynamic_routing`.

    Returns:
        ``capsules (b j e)`` and ``coefficients (b i j)``.
    """
    _check_capsules(lower_capsules, weight)
    _check_bias(bias, weight.shape[2:], weight)
    settings = _settings(iterations, normalization)
    needs_gradient = torch.is_grad_enabled() and (
        lower_capsules.requires_grad or weight.requires_grad or _requires_grad(bias)
    )
    bounds = settings.normalization
    if is_compiled(lower_capsules) and not needs_gradient and isinstance(bounds, MaxMin):
        return RoutingOutput(*_compiled_routing(lower_capsules, weight, bias, iterations, bounds.lower, bounds.upper))
    if not (is_eager(lower_capsules) and is_eager(weight)):
        return _plain_trace(prediction_vectors(lower_capsules, weight), bias, settings)[-1]
    if needs_gradient:
        return _output(*_RouteCapsules.apply(lower_capsules, weight, bias, settings))  # type: ignore[no-untyped-call]
    steps = [_iterate(votes, bias, settings)[-1] for _, votes in _pieces(lower_capsules, weight)]
    return _output(*_joined(steps, lower_capsules, weight))


@torch.library.custom_op("fastcaps::route_capsules", mutates_args=())
def _compiled_routing(
    lower_capsules: Tensor, weight: Tensor, bias: Tensor | None, iterations: int, lower: float, upper: float
) -> tuple[Tensor, Tensor]:
    """Route with Max-Min, without gradient, as one operator for ``torch.compile``, which would hold all votes."""
    with torch.no_grad():
        output = route_capsules(lower_capsules, weight, iterations, MaxMin(lower, upper), bias=bias)
    return output.capsules.contiguous(), output.coefficients.contiguous()


@_compiled_routing.register_fake
def _(
    lower_capsules: Tensor, weight: Tensor, bias: Tensor | None, iterations: int, lower: float, upper: float
) -> tuple[Tensor, Tensor]:
    (b, i, _), (_, _, j, e) = lower_capsules.shape, weight.shape
    return lower_capsules.new_empty(b, j, e), lower_capsules.new_empty(b, i, j)


@accept_bounds(2)
def routing_trace(
    votes: Tensor,
    iterations: int = 3,
    normalization: str | Normalization = "max_min",
    *,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the coefficients used in every iteration (appendix, step 2), without gradient.

    Arguments as for `dynamic_routing`.

    Returns:
        ``(b r i j)``; ``[:, 0]`` is the uniform start, ``[:, -1]`` what `dynamic_routing` returns.
    """
    _check_votes(votes)
    _check_bias(bias, votes.shape[2:], votes)
    settings = _settings(iterations, normalization)
    with torch.no_grad():
        steps = _iterate(_Votes(votes.permute(2, 0, 1, 3).contiguous()), bias, settings)
        return torch.stack([step.coefficients.permute(1, 2, 0) for step in steps], dim=1)  # (b, r, i, j)


@accept_bounds(3)
def trace_capsules(
    lower_capsules: Tensor,
    weight: Tensor,
    iterations: int = 3,
    normalization: str | Normalization = "max_min",
    *,
    bias: Tensor | None = None,
) -> Iterator[tuple[slice, list[RoutingOutput]]]:
    """Yield every iteration of `route_capsules`, in chunks of a few images: a whole batch would fill the memory.

    Arguments as for `route_capsules`; without gradient.

    Yields:
        The slice of the batch, and the capsules ``(b j e)`` and coefficients ``(b i j)`` of each iteration.
    """
    _check_capsules(lower_capsules, weight)
    _check_bias(bias, weight.shape[2:], weight)
    settings = _settings(iterations, normalization)
    return _trace(lower_capsules.detach(), weight.detach(), bias if bias is None else bias.detach(), settings)


def _trace(
    lower_capsules: Tensor, weight: Tensor, bias: Tensor | None, settings: _Settings
) -> Iterator[tuple[slice, list[RoutingOutput]]]:
    for piece, votes in _pieces(lower_capsules, weight):
        yield piece, [_output(step.capsules, step.coefficients) for step in _iterate(votes, bias, settings)]


def _plain_trace(votes: Tensor, bias: Tensor | None, settings: _Settings) -> list[RoutingOutput]:
    """Compute every iteration with operations that compilers and exporters understand.

    Use neither buffers nor the closed-form gradient."""
    coefficients = torch.full_like(votes[..., 0], settings.normalization.start(votes.shape[2]))  # (b, i, j)
    logits = torch.zeros_like(coefficients)
    trace: list[RoutingOutput] = []
    for _ in range(settings.iterations):
        if trace:
            logits = logits + torch.einsum("bije,bje->bij", votes, trace[-1].capsules)
            coefficients = settings.normalization(logits)
        sums = torch.einsum("bije,bij->bje", votes, coefficients)
        trace.append(RoutingOutput(squash(sums if bias is None else sums + bias), coefficients))
    return trace


def fast_routing(votes: Tensor, coefficients: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """Weight the votes with given coefficients, add them up and squash: the Fast Routing Procedure.

    Args:
        votes: ``(b i j e)``.
        coefficients: one matrix for all images ``(i j)``, or one per image ``(b i j)``.
        bias: ``(j e)``, added to the sums.

    Returns:
        Class capsules ``(b j e)``.
    """
    _check_votes(votes)
    if coefficients.shape not in (votes.shape[1:3], votes.shape[:3]):
        b, i, j, _ = votes.shape
        raise ValueError(
            f"coefficients have shape {tuple(coefficients.shape)}, expected ({i}, {j}) or ({b}, {i}, {j}) "
            f"for votes of shape {tuple(votes.shape)}"
        )
    indices = "bij" if coefficients.ndim == 3 else "ij"
    _check_bias(bias, votes.shape[2:], votes)
    sums = torch.einsum(f"bije,{indices}->bje", votes, coefficients.to(votes.dtype))
    return squash(sums if bias is None else sums + bias)


def fold_weights(weight: Tensor, coefficients: Tensor) -> Tensor:
    """Multiply the coefficients into the weights, so that fast routing is one matrix product.

    ``s_j = Σ_i C_ij W_ij u_i`` is linear in u: with the result A, ``squash(u.reshape(b, i·d) @ A)`` are the class
    capsules (laid out j·e), and no vote is ever formed.

    Args:
        weight: ``(i d j e)``.
        coefficients: ``(i j)``.

    Returns:
        ``(i·d, j·e)``.
    """
    if weight.ndim != 4:
        raise ValueError(f"weights have shape {tuple(weight.shape)}, expected (i, d, j, e)")
    i, d, j, e = weight.shape
    if coefficients.shape != (i, j):
        raise ValueError(f"coefficients have shape {tuple(coefficients.shape)}, expected ({i}, {j})")
    return (weight * coefficients[:, None, :, None]).reshape(i * d, j * e)


def folded_routing(
    lower_capsules: Tensor, folded: Tensor, classes: int, parts: int = 1, *, bias: Tensor | None = None
) -> Tensor:
    """Apply fast routing with weights that `fold_weights` returned: one matrix product and squash.

    Args:
        lower_capsules: ``(b i d)``.
        folded: ``(i·d, j·e)``.
        classes: j.
        parts: number of parts into which the long sum over i·d is split, one product each. With one part per thread
            this is faster than one product shared by all threads; ignored if it doesn't divide i·d.
        bias: ``(j e)``, added to the sums.

    Returns:
        Class capsules ``(b j e)``.
    """
    b, inputs = lower_capsules.shape[0], lower_capsules.shape[1:].numel()  # not len(), which tracing takes for constant
    if lower_capsules.ndim != 3 or folded.ndim != 2 or inputs != len(folded) or folded.shape[1] % classes:
        raise ValueError(
            f"lower capsules have shape {tuple(lower_capsules.shape)}, folded weights {tuple(folded.shape)} for "
            f"{classes} classes: expected (b, i, d) and (i·d, j·e)"
        )
    if parts > 1 and inputs % parts == 0:
        flat = lower_capsules.reshape(b, parts, inputs // parts).transpose(0, 1)  # (parts, b, i·d / parts)
        sums = torch.bmm(flat, folded.view(parts, -1, folded.shape[1])).sum(0)  # (b, j·e)
    else:
        sums = lower_capsules.flatten(1) @ folded  # (b, j·e)
    sums = sums.view(b, classes, folded.shape[1] // classes)  # (b, j, e)
    return squash(sums if bias is None else sums + bias)


def _check_capsules(lower_capsules: Tensor, weight: Tensor) -> None:
    shapes = f"lower capsules have shape {tuple(lower_capsules.shape)}, weights {tuple(weight.shape)}"
    if weight.ndim != 4 or lower_capsules.ndim != 3 or lower_capsules.shape[1:] != weight.shape[:2]:
        raise ValueError(f"{shapes}: expected (b, i, d) and (i, d, j, e) with equal i and d")
    if 0 in weight.shape:
        raise ValueError(f"{shapes}: expected i, d, j, e at least 1")
    if lower_capsules.dtype != weight.dtype or not weight.is_floating_point():
        raise ValueError(
            f"lower capsules are {lower_capsules.dtype}, weights {weight.dtype}: expected one floating-point type"
        )


def _check_votes(votes: Tensor) -> None:
    if votes.ndim != 4 or 0 in votes.shape[1:]:
        raise ValueError(f"votes have shape {tuple(votes.shape)}, expected (b, i, j, e) with i, j, e at least 1")
    if not votes.is_floating_point():
        raise ValueError(f"votes are {votes.dtype}, expected a floating-point type")


def _check_bias(bias: Tensor | None, shape: Sequence[int], like: Tensor) -> None:
    if bias is None:
        return
    if bias.shape != tuple(shape):
        raise ValueError(f"the bias has shape {tuple(bias.shape)}, expected {tuple(shape)}")
    if bias.dtype != like.dtype:
        raise ValueError(f"the bias is {bias.dtype}, expected {like.dtype} as the other tensors")


def _requires_grad(bias: Tensor | None) -> bool:
    return bias is not None and bias.requires_grad


def _settings(iterations: int, normalization: str | Normalization) -> _Settings:
    if type(iterations) is not int or iterations < 1:
        expected = "at least 1" if type(iterations) is int else "a whole number"
        raise ValueError(f"iterations is {iterations!r}, expected {expected}")
    return _Settings(iterations, get_normalization(normalization))


def _output(capsules: Tensor, coefficients: Tensor) -> RoutingOutput:
    """Convert the internal order ``(j b e)`` and ``(j b i)`` to ``(b j e)`` and ``(b i j)``."""
    return RoutingOutput(capsules.transpose(0, 1), coefficients.permute(1, 2, 0))


class _Votes:
    """Votes ``(j b i e)``: their sums, their agreement with vectors, and the gradient on them."""

    def __init__(self, votes: Tensor) -> None:
        self.shape = votes.shape[:3]
        self._votes = votes
        self._left: list[Tensor] = []  # (j, b, i) each
        self._right: list[Tensor] = []  # (j, b, e) each

    def even_sums(self) -> Tensor:
        """Sum over i, each with coefficient 1: ``(j b e)``."""
        return self._votes.sum(2)

    def sums(self, coefficients: Tensor) -> Tensor:
        """Sum over i with coefficients ``(j b i)``: ``(j b e)``."""
        return torch.matmul(coefficients.unsqueeze(2), self._votes).squeeze(2)

    def agreement(self, vectors: Tensor) -> Tensor:
        """Return the scalar product of each vote with its class's vector ``(j b e)``: ``(j b i)``."""
        return torch.matmul(vectors.unsqueeze(2), self._votes.transpose(2, 3)).squeeze(2)

    def even_outer(self, right: Tensor) -> None:
        """Add ``1 ⊗ right`` to the gradient on the votes."""
        self._left.append(right.new_ones(self.shape))
        self._right.append(right)

    def outer_sums(self, left: Tensor, right: Tensor) -> Tensor:
        """Add ``left ⊗ right`` to the gradient on the votes, and return ``sums(left)``."""
        self._left.append(left)
        self._right.append(right)
        return self.sums(left)

    def outer_agreement(self, left: Tensor, right: Tensor) -> Tensor:
        """Add ``left ⊗ right`` to the gradient on the votes, and return ``agreement(right)``."""
        self._left.append(left)
        self._right.append(right)
        return self.agreement(right)

    def gradient(self, out: Tensor | None = None) -> Tensor:
        """Return the accumulated gradient ``(j b i e)``, computed in one product."""
        return torch.matmul(torch.stack(self._left, 2).transpose(2, 3), torch.stack(self._right, 2), out=out)


class _VoteChunks:
    """Chunks of a batch, with their votes."""

    def __init__(self, lower_capsules: Tensor, weight: Tensor) -> None:
        self._lower, self._shape = lower_capsules, weight.shape
        self._matrices = weight.flatten(2)  # (i, d, j·e)

    def __iter__(self) -> Iterator[tuple[slice, _Votes]]:
        """Yield the chunks; each is valid until the next is requested."""
        i, _, j, e = self._shape
        by_capsule = votes = None
        for piece in _slices(len(self._lower), CHUNK_BYTES // (i * j * e * self._lower.element_size())):
            lower = self._lower[piece]
            b = len(lower)
            if by_capsule is None or votes is None or votes.shape[1] != b:
                by_capsule, votes = lower.new_empty(i, b, j * e), lower.new_empty(j, b, i, e)
            with large_products():
                torch.bmm(lower.transpose(0, 1), self._matrices, out=by_capsule)
            votes.copy_(by_capsule.view(i, b, j, e).permute(2, 1, 0, 3))
            yield piece, _Votes(votes)

    def gradients(self, walk: Callable[[slice, "_Votes | _FewImages"], None]) -> tuple[Tensor, Tensor]:
        """Let ``walk`` compute gradients per chunk; return those on capsules ``(b i d)`` and weights ``(i d j e)``."""
        i, d, j, e = self._shape
        on_lower = self._lower.new_empty(i, len(self._lower), d)
        on_matrices = torch.zeros_like(self._matrices)
        gradient = on_votes = None
        for piece, votes in self:
            walk(piece, votes)
            b = votes.shape[1]
            if gradient is None or on_votes is None or gradient.shape[1] != b:
                gradient, on_votes = on_lower.new_empty(j, b, i, e), on_lower.new_empty(i, b, j, e)
            on_votes.copy_(votes.gradient(out=gradient).permute(2, 1, 0, 3))
            by_capsule = on_votes.view(i, b, j * e)
            on_lower[:, piece] = torch.bmm(by_capsule, self._matrices.transpose(1, 2))
            with large_products():
                on_matrices.baddbmm_(self._lower[piece].permute(1, 2, 0), by_capsule)
        return on_lower.transpose(0, 1), on_matrices.view(self._shape)


class _VoteFree:
    """Chunks of a batch, whose votes are never computed."""

    def __init__(self, lower_capsules: Tensor, weight: Tensor) -> None:
        i, d, j, e = self._shape = weight.shape
        self._lower = lower_capsules.transpose(1, 2).contiguous()  # (b, d, i)
        self._matrices = weight.permute(2, 1, 0, 3).reshape(j, d * i, e)

    def __iter__(self) -> Iterator[tuple[slice, "_FewImages"]]:
        i, _, j, _ = self._shape
        coefficients = i * j * self._lower.element_size()
        size = min(PRODUCT_BYTES // self._lower[0].nbytes, CHUNK_BYTES // coefficients)
        for piece in _slices(len(self._lower), size):
            yield piece, _FewImages(self._lower[piece], self._matrices)

    def gradients(self, walk: Callable[[slice, "_Votes | _FewImages"], None]) -> tuple[Tensor, Tensor]:
        """Return the same as `_VoteChunks.gradients`."""
        i, d, j, e = self._shape
        on_lower, on_matrices = torch.zeros_like(self._lower), torch.zeros_like(self._matrices)
        for piece, images in self:
            images.start_gradients(on_lower[piece], on_matrices)
            walk(piece, images)
        return on_lower.transpose(1, 2), on_matrices.view(j, d, i, e).permute(2, 1, 0, 3)


class _FewImages:
    """The interface of `_Votes`, computed from a few images' capsules ``(b d i)`` and the weights ``(j d·i e)``."""

    def __init__(self, lower_capsules: Tensor, matrices: Tensor) -> None:
        b, _, i = lower_capsules.shape
        self.shape = torch.Size((len(matrices), b, i))
        self._lower, self._matrices = lower_capsules, matrices
        self._products = lower_capsules.new_empty(2, *lower_capsules.shape)

    def start_gradients(self, on_lower: Tensor, on_matrices: Tensor) -> None:
        """Set the tensors that gradients are added to: ``(b d i)`` and ``(j d·i e)``."""
        self._on_lower, self._on_matrices = on_lower, on_matrices

    @large_products()
    def even_sums(self) -> Tensor:
        return torch.stack([self._lower.flatten(1) @ matrix for matrix in self._matrices])

    @large_products()
    def sums(self, coefficients: Tensor) -> Tensor:
        return torch.stack([self._weighted(c) @ matrix for c, matrix in self._with_matrices(coefficients)])

    @large_products()
    def agreement(self, vectors: Tensor) -> Tensor:
        result = vectors.new_empty(self.shape)
        for one, (vector, matrix) in zip(result, self._with_matrices(vectors), strict=True):
            self._dot(self._pulled(vector, matrix), one)
        return result

    @large_products()
    def even_outer(self, right: Tensor) -> None:
        flat = self._lower.flatten(1)
        for k, (vector, matrix) in enumerate(self._with_matrices(right)):
            self._on_lower.view_as(flat).addmm_(vector, matrix.T)
            self._on_matrices[k].addmm_(flat.T, vector)

    @large_products()
    def outer_sums(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.stack([weighted @ matrix for weighted, _, matrix in self._outer(left, right)])

    @large_products()
    def outer_agreement(self, left: Tensor, right: Tensor) -> Tensor:
        result = torch.empty_like(left)
        for one, (_, pulled, _) in zip(result, self._outer(left, right), strict=True):
            self._dot(pulled, one)
        return result

    def _outer(self, left: Tensor, right: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Add the gradients of ``left ⊗ right``; yield the two products and the matrix of every class."""
        for k, matrix in enumerate(self._matrices):
            weighted, pulled = self._weighted(left[k]), self._pulled(right[k], matrix)
            self._on_matrices[k].addmm_(weighted.T, right[k])
            self._on_lower.addcmul_(pulled, left[k].unsqueeze(1))
            yield weighted, pulled, matrix

    def _with_matrices(self, tensor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(tensor, self._matrices, strict=True)

    def _weighted(self, coefficients: Tensor) -> Tensor:
        """Return the lower capsules times a class's coefficients ``(b i)``: ``(b d·i)``."""
        return torch.mul(self._lower, coefficients.unsqueeze(1), out=self._products[0]).flatten(1)

    def _pulled(self, vectors: Tensor, matrix: Tensor) -> Tensor:
        """Return a class's vectors ``(b e)`` as lower capsules, ``Wᵀ v``: ``(b d i)``."""
        torch.mm(vectors, matrix.T, out=self._products[1].flatten(1))
        return self._products[1]

    def _dot(self, pulled: Tensor, result: Tensor) -> None:
        """Write scalar products of the lower capsules with ``(b d i)`` into ``(b i)``."""
        torch.mul(pulled[:, 0], self._lower[:, 0], out=result)
        for k in range(1, self._lower.shape[1]):
            result.addcmul_(pulled[:, k], self._lower[:, k])


def _pieces(lower_capsules: Tensor, weight: Tensor) -> _VoteChunks | _VoteFree:
    return (_VoteFree if is_vote_free(lower_capsules, weight) else _VoteChunks)(lower_capsules, weight)


def is_vote_free(lower_capsules: Tensor, weight: Tensor) -> bool:
    """Return whether `route_capsules` computes no votes for these capsules."""
    images, longer = VOTE_FREE
    is_long = weight.shape[3] >= longer * weight.shape[1]
    return len(lower_capsules) >= images and is_long and weight.device.type == "cpu"


def _slices(length: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _iterate(votes: _Votes | _FewImages, bias: Tensor | None, settings: _Settings) -> list[_Step]:
    """Run lines 2 to 7 of the procedure, without line 7 of the last iteration, whose result is not used."""
    start = settings.normalization.start(votes.shape[0])
    by_class = None if bias is None else bias.unsqueeze(1)  # (j, 1, e)
    sums = votes.even_sums() * start  # (j, b, e)
    sums = sums if by_class is None else sums + by_class
    steps = [_Step(sums.new_zeros(()).expand(votes.shape), sums.new_full(votes.shape, start), sums, squash(sums))]
    for _ in range(1, settings.iterations):
        logits = votes.agreement(steps[-1].capsules)  # (j, b, i)
        if len(steps) > 1:
            logits += steps[-1].logits
        coefficients = settings.normalize(logits)
        sums = votes.sums(coefficients)  # (j, b, e)
        sums = sums if by_class is None else sums + by_class
        steps.append(_Step(logits, coefficients, sums, squash(sums)))
    return steps


def _walk_back(votes: _Votes | _FewImages, steps: Sequence[_Step], settings: _Settings, on_capsules: Tensor) -> Tensor:
    """Add up the gradients on the votes, from the last iteration to the first; return that on the bias ``(j e)``."""
    on_logits: Tensor | None = None
    on_bias = on_capsules.new_zeros(on_capsules.shape[0], on_capsules.shape[2])  # (j, e)
    for t in reversed(range(len(steps))):
        logits, coefficients, sums, capsules = steps[t]
        if on_logits is not None:
            on_capsules = votes.outer_sums(on_logits, capsules)  # (j, b, e)
        on_sums = squash_gradient(sums, on_capsules)  # (j, b, e)
        on_bias += on_sums.sum(1)
        if t == 0:
            votes.even_outer(on_sums * settings.normalization.start(votes.shape[0]))
            continue
        on_coefficients = votes.outer_agreement(coefficients, on_sums)  # (j, b, i)
        change = settings.gradient(logits, on_coefficients)
        on_logits = change if on_logits is None else change.add_(on_logits)
    return on_bias


class _DynamicRouting(torch.autograd.Function):
    """Votes ``(j b i e)`` and bias ``(j e)`` to capsules ``(j b e)`` and coefficients ``(j b i)``."""

    @staticmethod
    def forward(ctx: Any, votes: Tensor, bias: Tensor | None, settings: _Settings) -> tuple[Tensor, Tensor]:
        steps = _iterate(_Votes(votes), bias, settings)
        ctx.settings = settings
        # Everything goes through save_for_backward: an output held by ctx itself would be a reference cycle.
        ctx.save_for_backward(votes, *_flat(steps))
        ctx.mark_non_differentiable(steps[-1].coefficients)
        return steps[-1].capsules, steps[-1].coefficients

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_capsules: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        votes, *saved = ctx.saved_tensors
        vote_sums = _Votes(votes)
        on_bias = _walk_back(vote_sums, _steps(saved), ctx.settings, on_capsules)
        return vote_sums.gradient(), on_bias if ctx.needs_input_grad[1] else None, None


class _RouteCapsules(torch.autograd.Function):
    """Lower capsules ``(b i d)``, weights ``(i d j e)`` and bias ``(j e)`` to capsules ``(j b e)`` and coefficients."""

    @staticmethod
    def forward(
        ctx: Any, lower_capsules: Tensor, weight: Tensor, bias: Tensor | None, settings: _Settings
    ) -> tuple[Tensor, Tensor]:
        pieces = [_iterate(votes, bias, settings) for _, votes in _pieces(lower_capsules, weight)]
        capsules, coefficients = _joined([steps[-1] for steps in pieces], lower_capsules, weight)
        ctx.settings = settings
        ctx.save_for_backward(lower_capsules, weight, *(tensor for steps in pieces for tensor in _flat(steps)))
        ctx.mark_non_differentiable(coefficients)
        return capsules, coefficients

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_capsules: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        lower_capsules, weight, *saved = ctx.saved_tensors
        steps, r = _steps(saved), ctx.settings.iterations
        pieces = (steps[at : at + r] for at in range(0, len(steps), r))
        on_bias = on_capsules.new_zeros(weight.shape[2:])  # (j, e)

        def walk(piece: slice, votes: _Votes | _FewImages) -> None:
            on_bias.add_(_walk_back(votes, next(pieces), ctx.settings, on_capsules[:, piece]))

        gradients = _pieces(lower_capsules, weight).gradients(walk)
        return *gradients, on_bias if ctx.needs_input_grad[2] else None, None


def _joined(steps: list[_Step], lower_capsules: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the capsules ``(j b e)`` and coefficients ``(j b i)`` of all chunks."""
    i, _, j, e = weight.shape
    if not steps:
        return lower_capsules.new_empty(j, 0, e), lower_capsules.new_empty(j, 0, i)
    return torch.cat([step.capsules for step in steps], 1), torch.cat([step.coefficients for step in steps], 1)


def _flat(steps: list[_Step]) -> list[Tensor]:
    return [tensor for step in steps for tensor in step]


def _steps(tensors: list[Tensor]) -> list[_Step]:
    width = len(_Step._fields)
    return [_Step(*tensors[at : at + width]) for at in range(0, len(tensors), width)]
