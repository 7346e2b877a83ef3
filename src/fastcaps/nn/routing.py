"""Routing as an object: how a `CapsuleLayer` turns lower capsules into capsules.

A custom routing is a class with one method:

    class EvenRouting(Routing):
        def __call__(self, lower_capsules, weight, bias=None):
            votes = functional.prediction_vectors(lower_capsules, weight)          # (b, i, j, e)
            coefficients = votes.new_full(votes.shape[:3], 1 / votes.shape[2])     # (b, i, j)
            return RoutingOutput(functional.fast_routing(votes, coefficients, bias=bias), coefficients)
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from torch import Tensor

from fastcaps._registry import Registry
from fastcaps.functional import MaxMin, Normalization, RoutingOutput, route_capsules, trace_capsules
from fastcaps.functional.normalizations import Unnormalized

REGISTRY: Registry["Routing"] = Registry("routing")


class Routing(ABC):
    """Base class of routings. A routing has no trainable parameters.

    Attributes:
        name: name in configurations; a class without a name can't be used there.
        iterations: number of iterations.
        normalization: normalization of the coefficients, also of their means when they are accumulated per class.
    """

    name: ClassVar[str]
    iterations: int = 1
    normalization: Normalization = Unnormalized()

    def __init_subclass__(cls, **options: Any) -> None:
        """Register the class by its name."""
        super().__init_subclass__(**options)
        REGISTRY.register(cls)

    @abstractmethod
    def __call__(self, lower_capsules: Tensor, weight: Tensor, bias: Tensor | None = None) -> RoutingOutput:
        """Route lower capsules.

        Args:
            lower_capsules: ``(b i d)``.
            weight: ``(i d j e)``.
            bias: ``(j e)``, or None.

        Returns:
            Capsules ``(b j e)``, and the coefficients ``(b i j)`` that give them: ``squash(Σ_i c_ij W_ij u_i + bias)``.
        """

    def start(self, classes: int) -> float | None:
        """Return the coefficient of every capsule before routing; None if there is none."""
        return None

    def with_iterations(self, iterations: int) -> "Routing":
        """Return the same routing with another number of iterations."""
        if iterations == self.iterations:
            return self
        raise ValueError(f"iterations is {iterations}, but {type(self).__name__} always has {self.iterations}")

    def trace(
        self, lower_capsules: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Iterator[tuple[slice, list[RoutingOutput]]]:
        """Yield the result of every iteration, in chunks of a few images.

        Yields:
            The slice of the batch, and one output per iteration.
        """
        if self.iterations != 1:
            raise NotImplementedError(f"{type(self).__name__} has {self.iterations} iterations, but no trace method")
        yield slice(0, len(lower_capsules)), [RoutingOutput(*self(lower_capsules, weight, bias))]


@final
@dataclass(frozen=True)
class DynamicRouting(Routing):
    """Routing by agreement: the paper's Max-Min procedure, or that of another normalization.

    Attributes:
        iterations: the paper's r.
        normalization: normalization of the logits over the upper capsules.
    """

    name: ClassVar[str] = "dynamic"
    iterations: int = 3
    normalization: Normalization = field(default_factory=MaxMin)

    def __post_init__(self) -> None:
        """Raise ValueError for invalid values."""
        if type(self.iterations) is not int or self.iterations < 1:
            raise ValueError(f"iterations is {self.iterations!r}, expected a whole number, at least 1")
        if not isinstance(self.normalization, Normalization):
            raise ValueError(
                f"normalization is {self.normalization!r}, expected an object such as MaxMin() or Softmax(): "
                "fastcaps.functional.get_normalization(name) makes one from its name"
            )

    def __call__(self, lower_capsules: Tensor, weight: Tensor, bias: Tensor | None = None) -> RoutingOutput:
        """Return capsules ``(b j e)`` and the coefficients ``(b i j)`` of the last iteration."""
        return route_capsules(lower_capsules, weight, self.iterations, self.normalization, bias=bias)

    def start(self, classes: int) -> float:
        """Return the coefficient of the first iteration."""
        return self.normalization.start(classes)

    def with_iterations(self, iterations: int) -> "DynamicRouting":
        """Return the same routing with another number of iterations."""
        return dataclasses.replace(self, iterations=iterations)

    def trace(
        self, lower_capsules: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Iterator[tuple[slice, list[RoutingOutput]]]:
        """Yield every iteration's capsules and coefficients, in chunks of a few images; without gradient."""
        return trace_capsules(lower_capsules, weight, self.iterations, self.normalization, bias=bias)
