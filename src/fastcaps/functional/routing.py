"""The paper's two routing procedures: dynamic routing, and the fast routing that replaces it (section 3).

Dynamic routing is differentiated in closed form. With ``s_t = Σ_i c_t ⊙ û``, ``v_t = squash(s_t)``,
``b_t = b_{t−1} + û·v_t`` and ``c_{t+1} = normalize(b_t)``, the gradient on the votes is the sum of 2r − 1 outer
products, ``c_t ⊗ ∂s_t`` for every iteration and ``∂b_t ⊗ v_t`` for every one but the last, so one batched
matrix product writes it; autograd through the loop would write it 2r times.

Inside, votes lie in memory as ``(b j i e)``: every sum over i and every agreement is then a matrix product.
`route_capsules` makes the votes of a few images at a time, in one reused buffer, and makes them again when it goes
backwards: that costs less than keeping them, and memory doesn't grow with the batch.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastcaps._checks import check_normalization
from fastcaps.functional.capsules import (
    Normalization,
    normalize,
    normalize_gradient,
    squash,
    squash_gradient,
)

# Votes made at a time by `route_capsules`: few enough to stay in a processor's outer cache.
_PIECE_BYTES = 16 * 2**20


class Routing(NamedTuple):
    """What dynamic routing gives: class capsules ``(b j e)``, and the coefficients ``(b i j)`` that made them."""

    capsules: Tensor
    coefficients: Tensor


class _Settings(NamedTuple):
    iterations: int
    normalization: Normalization
    lower: float
    upper: float

    def start(self, classes: int) -> float:
        """The coefficient that every capsule has in the first iteration."""
        return 1.0 if self.normalization == "max_min" else 1.0 / classes


class _Step(NamedTuple):
    """One iteration, as ``(b j …)``: its logits, the coefficients they gave, their sums, the capsules."""

    logits: Tensor
    coefficients: Tensor
    sums: Tensor
    capsules: Tensor


def prediction_vectors(lower_capsules: Tensor, weight: Tensor) -> Tensor:
    """Every lower capsule's vote for every class capsule (eq. 1, left): ``û_j|i = W_ij u_i``.

    Args:
        lower_capsules: ``(b i d)``.
        weight: ``(i d j e)``.

    Returns:
        Votes ``(b i j e)``.
    """
    _check_capsules(lower_capsules, weight)
    return torch.einsum("bid,idje->bije", lower_capsules, weight)


def dynamic_routing(
    votes: Tensor,
    iterations: int = 3,
    normalization: Normalization = "max_min",
    lower: float = 0.0,
    upper: float = 1.0,
) -> Routing:
    """Route by agreement: the Max-Min Routing Procedure, or Sabour's with softmax.

    The coefficients start at 1.0 (softmax: at 1/j), the logits at 0. Those returned are the ones *used* in the
    last iteration's sum, so that ``fast_routing(votes, coefficients)`` gives the same capsules; they carry no
    gradient. The gradient on the votes is exact, in closed form, and can be taken once.

    Args:
        votes: ``(b i j e)``, in any memory order.
        iterations: the paper's r, at least 1.
        normalization: ``"max_min"`` or ``"softmax"``, over the classes.
        lower: lower bound of Max-Min.
        upper: upper bound of Max-Min.

    Returns:
        ``capsules (b j e)`` and ``coefficients (b i j)``.
    """
    _check_votes(votes)
    settings = _checked(iterations, normalization, lower, upper)
    ordered = votes.transpose(1, 2).contiguous()  # (b, j, i, e)
    if torch.is_grad_enabled() and votes.requires_grad:
        capsules, coefficients = _DynamicRouting.apply(ordered, settings)  # type: ignore[no-untyped-call]
    else:
        last = _iterate(ordered, settings)[-1]
        capsules, coefficients = last.capsules, last.coefficients
    return Routing(capsules, coefficients.transpose(1, 2))


def route_capsules(
    lower_capsules: Tensor,
    weight: Tensor,
    iterations: int = 3,
    normalization: Normalization = "max_min",
    lower: float = 0.0,
    upper: float = 1.0,
) -> Routing:
    """``dynamic_routing(prediction_vectors(lower_capsules, weight), …)`` without ever holding all votes.

    The gradient, on capsules and weights, is exact and can be taken once.

    Args:
        lower_capsules: ``(b i d)``.
        weight: ``(i d j e)``.
        iterations: as for `dynamic_routing`, like all that follow.
        normalization: see there.
        lower: see there.
        upper: see there.

    Returns:
        ``capsules (b j e)`` and ``coefficients (b i j)``.
    """
    _check_capsules(lower_capsules, weight)
    settings = _checked(iterations, normalization, lower, upper)
    if torch.is_grad_enabled() and (lower_capsules.requires_grad or weight.requires_grad):
        capsules, coefficients = _RouteCapsules.apply(lower_capsules, weight, settings)  # type: ignore[no-untyped-call]
    else:
        steps = [_iterate(votes, settings)[-1] for _, votes in _pieces(lower_capsules, weight)]
        capsules, coefficients = _joined(steps, lower_capsules, weight)
    return Routing(capsules, coefficients.transpose(1, 2))


def routing_trace(
    votes: Tensor,
    iterations: int = 3,
    normalization: Normalization = "max_min",
    lower: float = 0.0,
    upper: float = 1.0,
) -> Tensor:
    """The coefficients used in every iteration (appendix, step 2), without gradient.

    Arguments as for `dynamic_routing`.

    Returns:
        ``(b r i j)``; ``[:, 0]`` is the uniform start, ``[:, -1]`` what `dynamic_routing` returns.
    """
    _check_votes(votes)
    settings = _checked(iterations, normalization, lower, upper)
    with torch.no_grad():
        steps = _iterate(votes.transpose(1, 2).contiguous(), settings)
        return torch.stack([step.coefficients.transpose(1, 2) for step in steps], dim=1)  # (b, r, i, j)


def trace_capsules(
    lower_capsules: Tensor,
    weight: Tensor,
    iterations: int = 3,
    normalization: Normalization = "max_min",
    lower: float = 0.0,
    upper: float = 1.0,
) -> Iterator[tuple[slice, list[Routing]]]:
    """Every iteration of `route_capsules`, for a few images after another: all of a batch would fill the memory.

    Arguments as for `route_capsules`; without gradient.

    Yields:
        Which images of the batch, and the capsules ``(b j e)`` and coefficients ``(b i j)`` of each iteration.
    """
    _check_capsules(lower_capsules, weight)
    settings = _checked(iterations, normalization, lower, upper)
    return _trace(lower_capsules.detach(), weight.detach(), settings)


def _trace(lower_capsules: Tensor, weight: Tensor, settings: _Settings) -> Iterator[tuple[slice, list[Routing]]]:
    for piece, votes in _pieces(lower_capsules, weight):
        steps = _iterate(votes, settings)
        yield piece, [Routing(step.capsules, step.coefficients.transpose(1, 2)) for step in steps]


def fast_routing(votes: Tensor, coefficients: Tensor) -> Tensor:
    """The Fast Routing Procedure: weight the votes with given coefficients, add them up, squash.

    Args:
        votes: ``(b i j e)``.
        coefficients: one matrix for all images ``(i j)``, or one an image ``(b i j)``.

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
    return squash(torch.einsum(f"bije,{indices}->bje", votes, coefficients))


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


def folded_routing(lower_capsules: Tensor, folded: Tensor, classes: int, parts: int = 1) -> Tensor:
    """Fast routing with weights that `fold_weights` made: one matrix product and squash.

    Args:
        lower_capsules: ``(b i d)``.
        folded: ``(i·d, j·e)``.
        classes: j.
        parts: into which the long sum over i·d is cut, each a product of its own. As many as there are threads is
            faster than one product that all of them share; what doesn't divide i·d is not used.

    Returns:
        Class capsules ``(b j e)``.
    """
    b, inputs = len(lower_capsules), lower_capsules.shape[1:].numel()
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
    return squash(sums.view(b, classes, folded.shape[1] // classes))  # (b, j, e)


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


def _checked(iterations: int, normalization: Normalization, lower: float, upper: float) -> _Settings:
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}, expected at least 1")
    check_normalization(normalization, lower, upper)
    return _Settings(iterations, normalization, lower, upper)


def _iterate(votes: Tensor, settings: _Settings) -> list[_Step]:
    """Lines 2 to 7 of the procedure, for votes ``(b j i e)``; what the last line 7 would compute is not used."""
    b, j, i, _ = votes.shape
    logits = votes.new_zeros(b, j, i)
    coefficients = votes.new_full((b, j, i), settings.start(j))
    sums = votes.sum(2) * settings.start(j)  # (b, j, e)
    steps = [_Step(logits, coefficients, sums, squash(sums))]
    for _ in range(1, settings.iterations):
        logits = logits + _agreement(votes, steps[-1].capsules)  # (b, j, i)
        coefficients = normalize(logits, settings.normalization, settings.lower, settings.upper, dim=1)
        sums = _weighted_sum(coefficients, votes)  # (b, j, e)
        steps.append(_Step(logits, coefficients, sums, squash(sums)))
    return steps


def _agreement(votes: Tensor, vectors: Tensor) -> Tensor:
    """Scalar product of each vote ``(b j i e)`` with its class's vector ``(b j e)``: ``(b j i)``."""
    return torch.matmul(vectors.unsqueeze(2), votes.transpose(2, 3)).squeeze(2)


def _weighted_sum(coefficients: Tensor, votes: Tensor) -> Tensor:
    """Sum over i of the votes ``(b j i e)`` times their coefficients ``(b j i)``: ``(b j e)``."""
    return torch.matmul(coefficients.unsqueeze(2), votes).squeeze(2)


def _votes_gradient(
    votes: Tensor,
    steps: list[_Step],
    settings: _Settings,
    on_capsules: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """Walk the iterations backwards, keeping the gradient on the logits; one product at the end writes all."""
    left: list[Tensor] = []  # (b, j, i) each
    right: list[Tensor] = []  # (b, j, e) each
    on_logits = torch.zeros_like(steps[0].logits)
    for t in reversed(range(len(steps))):
        if t < len(steps) - 1:
            on_capsules = _weighted_sum(on_logits, votes)  # (b, j, e)
            left.append(on_logits)
            right.append(steps[t].capsules)
        on_sums = squash_gradient(steps[t].sums, on_capsules)  # (b, j, e)
        left.append(steps[t].coefficients)
        right.append(on_sums)
        if t > 0:
            on_logits = on_logits + normalize_gradient(
                steps[t].logits,
                _agreement(votes, on_sums),
                settings.normalization,
                settings.lower,
                settings.upper,
                dim=1,
            )
    return torch.matmul(torch.stack(left, 2).transpose(2, 3), torch.stack(right, 2), out=out)  # (b, j, i, e)


class _DynamicRouting(torch.autograd.Function):
    """Votes ``(b j i e)`` to capsules ``(b j e)`` and coefficients ``(b j i)``."""

    @staticmethod
    def forward(ctx: Any, votes: Tensor, settings: _Settings) -> tuple[Tensor, Tensor]:
        steps = _iterate(votes, settings)
        ctx.settings = settings
        # Everything goes through save_for_backward: an output held by ctx itself would be a reference cycle.
        ctx.save_for_backward(votes, *_flat(steps))
        ctx.mark_non_differentiable(steps[-1].coefficients)
        return steps[-1].capsules, steps[-1].coefficients

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_capsules: Tensor, _: Tensor) -> tuple[Tensor, None]:
        votes, *saved = ctx.saved_tensors
        return _votes_gradient(votes, _steps(saved), ctx.settings, on_capsules), None


class _RouteCapsules(torch.autograd.Function):
    """Lower capsules ``(b i d)`` and weights ``(i d j e)`` to capsules ``(b j e)`` and coefficients ``(b j i)``."""

    @staticmethod
    def forward(ctx: Any, lower_capsules: Tensor, weight: Tensor, settings: _Settings) -> tuple[Tensor, Tensor]:
        pieces = [_iterate(votes, settings) for _, votes in _pieces(lower_capsules, weight)]
        capsules, coefficients = _joined([steps[-1] for steps in pieces], lower_capsules, weight)
        ctx.settings = settings
        ctx.save_for_backward(lower_capsules, weight, *(tensor for steps in pieces for tensor in _flat(steps)))
        ctx.mark_non_differentiable(coefficients)
        return capsules, coefficients

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_capsules: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
        lower_capsules, weight, *saved = ctx.saved_tensors
        i, d, j, e = weight.shape
        b = len(lower_capsules)
        matrices = weight.reshape(i, d, j * e)
        on_lower = lower_capsules.new_empty(i, b, d)
        on_weight = torch.zeros_like(matrices)
        kept = _steps(saved)
        gradient = on_votes = None
        for number, (piece, votes) in enumerate(_pieces(lower_capsules, weight)):
            if gradient is None or on_votes is None or len(votes) != len(gradient):
                gradient, on_votes = torch.empty_like(votes), votes.new_empty(i, len(votes), j, e)
            steps = kept[number * ctx.settings.iterations :][: ctx.settings.iterations]
            _votes_gradient(votes, steps, ctx.settings, on_capsules[piece], out=gradient)
            on_votes.copy_(gradient.permute(2, 0, 1, 3))
            by_capsule = on_votes.view(i, -1, j * e)  # (i, b, j·e)
            on_lower[:, piece] = torch.bmm(by_capsule, matrices.transpose(1, 2))
            on_weight.baddbmm_(lower_capsules[piece].permute(1, 2, 0), by_capsule)
        return on_lower.transpose(0, 1), on_weight.view_as(weight), None


def _pieces(lower_capsules: Tensor, weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The votes ``(b j i e)`` of a few images after another; each tensor is good until the next is asked for."""
    i, d, j, e = weight.shape
    matrices = weight.reshape(i, d, j * e)
    size = max(1, _PIECE_BYTES // (i * j * e * weight.element_size()))
    by_capsule = votes = None
    for start in range(0, len(lower_capsules), size):
        piece = slice(start, min(start + size, len(lower_capsules)))
        b = piece.stop - start
        if by_capsule is None or votes is None or len(votes) != b:
            by_capsule, votes = weight.new_empty(i, b, j * e), weight.new_empty(b, j, i, e)
        torch.bmm(lower_capsules[piece].transpose(0, 1), matrices, out=by_capsule)
        votes.copy_(by_capsule.view(i, b, j, e).permute(1, 2, 0, 3))
        yield piece, votes


def _joined(steps: list[_Step], lower_capsules: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The capsules ``(b j e)`` and coefficients ``(b j i)`` of all pieces."""
    i, _, j, e = weight.shape
    if not steps:
        return lower_capsules.new_empty(0, j, e), lower_capsules.new_empty(0, j, i)
    return torch.cat([step.capsules for step in steps]), torch.cat([step.coefficients for step in steps])


def _flat(steps: list[_Step]) -> list[Tensor]:
    return [tensor for step in steps for tensor in step]


def _steps(tensors: list[Tensor]) -> list[_Step]:
    width = len(_Step._fields)
    return [_Step(*tensors[at : at + width]) for at in range(0, len(tensors), width)]
