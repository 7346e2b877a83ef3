"""Normalizations: from routing logits to routing coefficients (paper, eq. 2).

A normalization is one class. It defines the initial coefficient of routing and how logits become coefficients. Its
closed-form gradient and its ONNX nodes are optional: without them autograd and PyTorch's own exporter are used.

    class Sparsemax(Normalization):
        name = "sparsemax"

        def start(self, classes):
            return 1 / classes

        def __call__(self, logits):  # (… j) to (… j)
            ...

Defining the class registers it by its name, for configurations. The command line finds it in installed packages and in
the modules that the environment variable ``FASTCAPS_PLUGINS`` names.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final

import torch
from torch import Tensor

from fastcaps._registry import Registry, options_of

REGISTRY: Registry["Normalization"] = Registry("normalization")


class OnnxGraph(Protocol):
    """The interface of an ONNX graph with which a normalization writes its own nodes."""

    def add(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Add a node with one output; return the name of the output."""

    def constant(self, name: str, value: Any) -> str:
        """Add a float32 constant; return its name."""

    def axes(self, *axes: int) -> str:
        """Add axes as a constant; return its name."""


class Normalization(ABC):
    """Base class of normalizations. A normalization has no trainable parameters.

    Attributes:
        name: name in configurations, in files and on the command line.
        title: name in figures and tables; ``name`` by default.
        bounds: smallest and largest possible coefficient.
        agreement_gain: covariance of a coefficient with its standardized logit, in the limit of small logits. It tells
            `CapsuleLayer.reset_parameters` how much votes that agree by chance add up. 0 for a normalization that is
            flat at zero, as softmax is.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    bounds: tuple[float, float] = (0.0, 1.0)
    agreement_gain: float = 0.0

    def __init_subclass__(cls, **options: Any) -> None:
        """Register the class by its name."""
        super().__init_subclass__(**options)
        REGISTRY.register(cls)
        if "title" not in cls.__dict__:
            cls.title = cls.__dict__.get("name", cls.__name__)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same name and the same arguments."""
        return isinstance(other, Normalization) and (self.name, vars(self)) == (other.name, vars(other))

    def __hash__(self) -> int:
        """Return the hash of the name."""
        return hash(self.name)

    def __repr__(self) -> str:
        """Return the class with its arguments."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"

    @abstractmethod
    def start(self, classes: int) -> float:
        """Return the coefficient that every capsule has in the first iteration."""

    @abstractmethod
    def __call__(self, logits: Tensor) -> Tensor:
        """Return the coefficients ``(… j)`` of logits ``(… j)``, normalized over the last axis."""

    def gradient(self, logits: Tensor, on_coefficients: Tensor) -> Tensor:
        """Return the gradient on the logits, given that on the coefficients, both ``(… j)``.

        Uses autograd; a subclass may compute it in closed form.
        """
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            coefficients = self(leaf)
            if not coefficients.requires_grad:  # constant
                return torch.zeros_like(logits)
            (on_logits,) = torch.autograd.grad(coefficients, leaf, on_coefficients, materialize_grads=True)
        return on_logits

    def onnx(self, graph: OnnxGraph, logits: str, name: str) -> str | None:
        """Add nodes that turn ``logits (b j 1 i)`` into coefficients over axis 1; return the name of their output.

        None when the normalization has no nodes of its own: then its PyTorch code is exported.
        """
        return None

    def options(self) -> dict[str, Any]:
        """Return the arguments it was made with, for files; a class that takes arguments must be a dataclass."""
        return options_of(self)


@final
@dataclass(frozen=True)
class MaxMin(Normalization):
    """Stretch each row of logits to the bounds: its smallest entry to ``lower``, its largest to ``upper`` (eq. 2).

    A row whose entries are all equal gives ``upper`` everywhere, with zero gradient.

    Attributes:
        lower: the paper's p.
        upper: the paper's q.
    """

    name: ClassVar[str] = "max_min"
    title: ClassVar[str] = "Max-Min"
    lower: float = 0.0
    upper: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError for an empty range."""
        if not (math.isfinite(self.lower) and math.isfinite(self.upper) and self.lower < self.upper):
            raise ValueError(
                f"the bounds of Max-Min are lower={self.lower}, upper={self.upper}: "
                "expected finite numbers, lower < upper"
            )

    @property
    def bounds(self) -> tuple[float, float]:  # type: ignore[override]
        """Lower and upper bound."""
        return self.lower, self.upper

    @property
    def agreement_gain(self) -> float:  # type: ignore[override]
        """The gain for ten normal logits: 0.9 / 3.08, where 3.08 is their mean range, times the width of the bounds."""
        return 0.3 * (self.upper - self.lower)

    def start(self, classes: int) -> float:
        """Return 1, whatever the bounds are: the paper's start."""
        return 1.0

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the coefficients ``(… j)`` of logits ``(… j)``."""
        least, greatest = logits.amin(-1, keepdim=True), logits.amax(-1, keepdim=True)
        spread = greatest - least
        varies = spread != 0  # also True for NaN, so that broken logits are not hidden
        position = (logits - least) / torch.where(varies, spread, 1)  # 0 … 1
        position = torch.where(varies, position, 1)
        if (self.lower, self.upper) == (0.0, 1.0):
            return position
        # Exact at both ends, which p + x·(q − p) is not.
        return torch.lerp(position.new_tensor(self.lower), position.new_tensor(self.upper), position)

    def gradient(self, logits: Tensor, on_coefficients: Tensor) -> Tensor:
        """Return the gradient on the logits; ties share theirs evenly, as in autograd."""
        least, greatest = logits.amin(-1, keepdim=True), logits.amax(-1, keepdim=True)
        spread = greatest - least
        varies = spread != 0
        spread = torch.where(varies, spread, 1)
        scale = torch.where(varies, (self.upper - self.lower) / spread, 0)
        position = (logits - least).div_(spread)
        # ∂x_k/∂b_l = (δ_kl − δ_l,least·(1 − x_k) − δ_l,greatest·x_k) / spread
        on_greatest = (on_coefficients * position).sum(-1, keepdim=True)
        on_least = on_coefficients.sum(-1, keepdim=True) - on_greatest
        on_logits = on_coefficients * scale
        for end, on_end in ((least, on_least), (greatest, on_greatest)):
            is_end = torch.eq(logits, end, out=position)
            on_logits.addcmul_(is_end, on_end * scale / is_end.sum(-1, keepdim=True), value=-1)
        return on_logits

    def onnx(self, graph: OnnxGraph, logits: str, name: str) -> str:
        """Add nodes that turn ``logits (b j 1 i)`` into coefficients over axis 1."""
        least = graph.add("ReduceMin", [logits, graph.axes(1)], f"{name}_least", keepdims=1)  # (b, 1, 1, i)
        greatest = graph.add("ReduceMax", [logits, graph.axes(1)], f"{name}_greatest", keepdims=1)  # (b, 1, 1, i)
        spread = graph.add("Sub", [greatest, least], f"{name}_spread")
        one = graph.constant("one", 1)
        flat = graph.add("Equal", [spread, graph.constant("zero", 0)], f"{name}_flat")
        divisor = graph.add("Where", [flat, one, spread], f"{name}_divisor")
        above = graph.add("Sub", [logits, least], f"{name}_above")
        position = graph.add("Div", [above, divisor], f"{name}_ratio")
        position = graph.add("Where", [flat, one, position], f"{name}_position")
        if self.bounds == (0.0, 1.0):
            return position
        width = graph.constant("bounds", self.upper - self.lower)
        stretched = graph.add("Mul", [position, width], f"{name}_stretched")
        return graph.add("Add", [stretched, graph.constant("lower_bound", self.lower)], name)


@final
@dataclass(frozen=True)
class Softmax(Normalization):
    """Softmax over the classes, as in Sabour et al. (2017)."""

    name: ClassVar[str] = "softmax"

    def start(self, classes: int) -> float:
        """Return 1 / classes."""
        return 1.0 / classes

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the coefficients ``(… j)`` of logits ``(… j)``."""
        if torch.compiler.is_compiling():
            return torch.softmax(logits, -1)
        # In memory order: routing stores classes first, and softmax would copy a tensor that is not contiguous.
        order = sorted(range(logits.ndim), key=logits.stride, reverse=True)
        in_memory = torch.softmax(logits.permute(order), order.index(logits.ndim - 1))
        return in_memory.permute([order.index(axis) for axis in range(logits.ndim)])

    def gradient(self, logits: Tensor, on_coefficients: Tensor) -> Tensor:
        """Return the gradient on the logits."""
        return _softmax_gradient(self(logits), on_coefficients)

    def onnx(self, graph: OnnxGraph, logits: str, name: str) -> str:
        """Add nodes that turn ``logits (b j 1 i)`` into coefficients over axis 1."""
        return graph.add("Softmax", [logits], name, axis=1)


@final
@dataclass(frozen=True)
class LeakySoftmax(Normalization):
    """Softmax with one more logit, always 0, whose share belongs to no class: Sabour's "leaky" routing."""

    name: ClassVar[str] = "leaky_softmax"
    title: ClassVar[str] = "leaky softmax"

    def start(self, classes: int) -> float:
        """Return 1 / (classes + 1)."""
        return 1.0 / (classes + 1)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the coefficients ``(… j)`` of logits ``(… j)``; they add up to less than 1."""
        leak = logits.new_zeros(*logits.shape[:-1], 1)
        return torch.softmax(torch.cat([leak, logits], -1), -1)[..., 1:]

    def gradient(self, logits: Tensor, on_coefficients: Tensor) -> Tensor:
        """Return the gradient on the logits."""
        return _softmax_gradient(self(logits), on_coefficients)

    def onnx(self, graph: OnnxGraph, logits: str, name: str) -> str:
        """Add nodes that turn ``logits (b j 1 i)`` into coefficients over axis 1."""
        # Bounded from below by 0, the logit of the leak, so that no exponential overflows.
        greatest = graph.add("ReduceMax", [logits, graph.axes(1)], f"{name}_greatest", keepdims=1)  # (b, 1, 1, i)
        shift = graph.add("Max", [greatest, graph.constant("zero", 0)], f"{name}_shift")
        shifted = graph.add("Sub", [logits, shift], f"{name}_shifted")
        exponentials = graph.add("Exp", [shifted], f"{name}_exp")
        leak = graph.add("Exp", [graph.add("Neg", [shift], f"{name}_negative")], f"{name}_leak")
        total = graph.add("ReduceSum", [exponentials, graph.axes(1)], f"{name}_total", keepdims=1)
        return graph.add("Div", [exponentials, graph.add("Add", [total, leak], f"{name}_sum")], name)


@final
@dataclass(frozen=True)
class Unnormalized(Normalization):
    """Return logits unchanged: for coefficients that are averaged and not normalized again."""

    name: ClassVar[str] = "none"
    title: ClassVar[str] = "not normalized"

    def start(self, classes: int) -> float:
        """Return 1."""
        return 1.0

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the logits."""
        return logits


def _softmax_gradient(coefficients: Tensor, on_coefficients: Tensor) -> Tensor:
    return coefficients * (on_coefficients - (coefficients * on_coefficients).sum(-1, keepdim=True))


def normalization_names() -> list[str]:
    """Return the names of all registered normalizations that normalize, in the order of their definition."""
    return [name for name in REGISTRY.names() if name != Unnormalized.name]


def get_normalization(normalization: str | Normalization, **options: Any) -> Normalization:
    """Return a normalization by its name; an object is returned unchanged.

    Args:
        normalization: a registered name, or an object.
        options: arguments of the class; those it does not take are ignored.
    """
    return normalization if isinstance(normalization, Normalization) else REGISTRY.make(normalization, **options)
