"""Capsule layers: one that routes, and one with its coefficients folded into the weights."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fastcaps._renamed import renamed_attributes
from fastcaps._tracing import is_plain
from fastcaps.functional import RoutingOutput, fold_weights, folded_routing
from fastcaps.nn.meta import without_weights
from fastcaps.nn.routing import DynamicRouting, Routing


@renamed_attributes(draw_for="reset_parameters")
class CapsuleLayer(nn.Module):
    """Every lower capsule votes for every upper capsule, and routing decides which votes count.

    ``Tensor (b i d) → Tensor (b j e)``, so it fits into `torch.nn.Sequential`.

    The initial weights decide whether training with Max-Min starts at all. Let the weights have standard
    deviation σ, so that a vote has τ = σ‖u‖ in each of its e directions. The first iteration adds up the votes of all i
    lower capsules with the same coefficient c₀ (1 for Max-Min, 1/j for softmax): a sum of length ``c₀ τ √(i · e)``.
    From the second iteration on, Max-Min gives each capsule a large coefficient where its vote agrees, however small
    the agreement: the covariance of the two is about 0.3 (q − p) τ, and i of them add up to ``0.3 (q − p) τ i`` in one
    direction. So σ is chosen to make the length of both together that of a lower capsule, for any number of them.
    Softmax does nothing of the kind while agreements are small, and they stay small if no vote is longer than its
    capsule: σ is at most 1 / √e. With a fixed σ, lengths grow with i: at 0.1 the 1152 capsules of the MNIST network
    start where squash has no slope, and the loss never moves.

    Attributes:
        weight: ``(i d j e)``.
        bias: ``(j e)``, added to the sums of every iteration, or None.
        routing: decides the coefficients.
    """

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        out_capsules: int,
        out_dim: int,
        *,
        routing: Routing | None = None,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a layer.

        Args:
            in_capsules: number of lower capsules, i.
            in_dim: dimension of a lower capsule, d.
            out_capsules: number of upper capsules, j.
            out_dim: dimension of an upper capsule, e.
            routing: ``DynamicRouting(3, MaxMin())`` by default.
            bias: whether sums have a trainable bias, as in Sabour's code.
            device: device of the weights.
            dtype: dtype of the weights.
        """
        super().__init__()
        _check_sizes(in_capsules=in_capsules, in_dim=in_dim, out_capsules=out_capsules, out_dim=out_dim)
        self.in_capsules, self.in_dim = in_capsules, in_dim
        self.out_capsules, self.out_dim = out_capsules, out_dim
        self.routing = DynamicRouting() if routing is None else routing
        if not isinstance(self.routing, Routing):
            raise ValueError(f"routing is {routing!r}, expected an object such as DynamicRouting(3, MaxMin())")
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(in_capsules, in_dim, out_capsules, out_dim, **options))
        self.bias = nn.Parameter(torch.empty(out_capsules, out_dim, **options)) if bias else None
        # Set by `fastcaps.accumulate`: computes the output in place of the forward pass.
        self._observer: Callable[[Tensor], Tensor] | None = None
        # Set by `fastcaps.record`: gets the output of routing.
        self._recorder: Callable[[RoutingOutput], None] | None = None
        self.reset_parameters()

    def reset_parameters(self, coefficients: Tensor | None = None) -> None:
        """Reinitialize the weights and set the bias to 0.

        Args:
            coefficients: ``(i j)``, if the layer will be trained with them in place of routing. Without routing, votes
                don't agree at the start, and sums have length ``τ √(e · Σᵢ C²)``.
        """
        i, e = self.in_capsules, self.out_dim
        if coefficients is not None:
            gain = math.sqrt(float(coefficients.double().square().sum(0).mean()) * e)
        else:
            start = self.routing.start(self.out_capsules)
            at_random = math.sqrt(i * e) * (1.0 if start is None else start)
            in_agreement = self.routing.normalization.agreement_gain * i if self.routing.iterations > 1 else 0.0
            gain = math.hypot(at_random, in_agreement)
        nn.init.normal_(self.weight, std=1 / max(gain, math.sqrt(e)))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, lower_capsules: Tensor) -> Tensor:
        """Route lower capsules ``(b i d)`` to capsules ``(b j e)``."""
        if self._observer is not None:
            return self._observer(lower_capsules)
        return self.route(lower_capsules).capsules

    def route(self, lower_capsules: Tensor, iterations: int | None = None) -> RoutingOutput:
        """Return capsules ``(b j e)`` and the coefficients ``(b i j)`` that were used to compute them.

        Args:
            lower_capsules: ``(b i d)``.
            iterations: number of routing iterations, instead of the layer's own.
        """
        routing = self.routing if iterations is None else self.routing.with_iterations(iterations)
        with without_autocast(self.weight):
            output = RoutingOutput(*routing(self._checked(lower_capsules), self.weight, self.bias))
        if self._recorder is not None:
            self._recorder(output)
        return output

    def trace(
        self, lower_capsules: Tensor, iterations: int | None = None
    ) -> Iterator[tuple[slice, list[RoutingOutput]]]:
        """Yield the output of every iteration, in chunks of a few images; without gradient.

        Args:
            lower_capsules: ``(b i d)``.
            iterations: number of routing iterations, instead of the layer's own.

        Yields:
            The slice of the batch, and the capsules ``(b j e)`` and coefficients ``(b i j)`` of each iteration.
        """
        routing = self.routing if iterations is None else self.routing.with_iterations(iterations)
        with without_autocast(self.weight):
            yield from routing.trace(self._checked(lower_capsules), self.weight, self.bias)

    def apply_coefficients(self, lower_capsules: Tensor, coefficients: Tensor) -> Tensor:
        """Return the capsules ``(b j e)`` with fixed coefficients ``(i j)``: one matrix product, no routing.

        Differentiable, so that a layer can be trained with master coefficients.
        """
        folded = fold_weights(self.weight, coefficients.to(self.weight.device, self.weight.dtype))  # (i·d, j·e)
        with without_autocast(self.weight):
            return _folded(self._checked(lower_capsules), folded, self.out_capsules, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes, routing and bias."""
        sizes = f"{self.in_capsules}, {self.in_dim}, {self.out_capsules}, {self.out_dim}"
        return f"{sizes}, routing={self.routing}, bias={self.bias is not None}"

    def _checked(self, lower_capsules: Tensor) -> Tensor:
        return _checked(lower_capsules, self.in_capsules, self.in_dim, self.weight.dtype)


class FoldedCapsuleLayer(nn.Module):
    """A capsule layer with its coefficients multiplied into the weights: one matrix product and squash.

    `fastcaps.fold` makes it from a `CapsuleLayer`.

    Attributes:
        weight: ``(i·d, j·e)``.
        bias: ``(j e)``, or None.
    """

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        out_capsules: int,
        out_dim: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a layer with random weights; arguments as for `CapsuleLayer`."""
        super().__init__()
        _check_sizes(in_capsules=in_capsules, in_dim=in_dim, out_capsules=out_capsules, out_dim=out_dim)
        self.in_capsules, self.in_dim = in_capsules, in_dim
        self.out_capsules, self.out_dim = out_capsules, out_dim
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(in_capsules * in_dim, out_capsules * out_dim, **options))
        self.bias = nn.Parameter(torch.empty(out_capsules, out_dim, **options)) if bias else None
        self.reset_parameters()

    @classmethod
    def from_layer(cls, layer: CapsuleLayer, coefficients: Tensor) -> "FoldedCapsuleLayer":
        """Fold coefficients ``(i j)`` into the weights of a layer; the folded weights don't require gradients."""
        sizes = (layer.in_capsules, layer.in_dim, layer.out_capsules, layer.out_dim)
        weight = layer.weight.detach()
        with without_weights():
            folded = cls(*sizes, bias=layer.bias is not None)
        # On the CPU, because not every device has double precision.
        values = fold_weights(weight.cpu().double(), coefficients.detach().cpu().double())
        folded.weight = nn.Parameter(values.to(weight.device, weight.dtype))
        if layer.bias is not None:
            folded.bias = nn.Parameter(layer.bias.detach().clone())
        return folded.requires_grad_(False).train(layer.training)

    def reset_parameters(self) -> None:
        """Reinitialize the weights so that sums are about as long as lower capsules, and set the bias to 0."""
        nn.init.normal_(self.weight, std=1 / math.sqrt(max(self.in_capsules, 1) * self.out_dim))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, lower_capsules: Tensor) -> Tensor:
        """Return the capsules ``(b j e)`` of lower capsules ``(b i d)``."""
        lower_capsules = _checked(lower_capsules, self.in_capsules, self.in_dim, self.weight.dtype)
        with without_autocast(self.weight):
            return _folded(lower_capsules, self.weight, self.out_capsules, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes and bias."""
        sizes = f"{self.in_capsules}, {self.in_dim}, {self.out_capsules}, {self.out_dim}"
        return f"{sizes}, bias={self.bias is not None}"


def without_autocast(weight: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast, so that the layer computes in the precision of its weights."""
    device = weight.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):  # not available for "meta"
        return nullcontext()
    return torch.autocast(device, enabled=False)


def _checked(lower_capsules: Tensor, in_capsules: int, in_dim: int, dtype: torch.dtype) -> Tensor:
    if lower_capsules.ndim != 3 or lower_capsules.shape[1:] != (in_capsules, in_dim):
        raise ValueError(
            f"lower capsules have shape {tuple(lower_capsules.shape)}, expected (batch, {in_capsules}, {in_dim}): give "
            "the layer the number of capsules (in_capsules) and numbers per capsule (in_dim) that come before it"
        )
    return lower_capsules.to(dtype)


def _folded(lower_capsules: Tensor, weight: Tensor, classes: int, bias: Tensor | None) -> Tensor:
    parts = torch.get_num_threads() if is_plain(lower_capsules) else 1
    return folded_routing(lower_capsules, weight, classes, parts, bias=bias)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise ValueError(f"{name} is {size!r}, expected a whole number, at least 1")
