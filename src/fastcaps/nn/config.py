"""The configuration of a capsule network: sizes, routing, class names, and the preparation of its input.

This module does not import PyTorch: the command line and the runtime read a model's ``config.json`` without it.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Self

from fastcaps._machine import free_bytes
from fastcaps._result import ShortRepr

# Number of lower capsules of the paper's network for MNIST, and the maximum without further strides: twice as many.
_PAPER_CAPSULES, _MAX_CAPSULES = 1152, 2304
# Kernel size and stride of a strided convolution before the last one of the stem, and their maximum number.
_HALVING, _MAX_FRONT = (3, 2), 8
# Entries that determine the number of positions; "auto" does not change a network for which one of them is given.
_STRIDES = frozenset({"stem_layers", "stem_kernel", "stem_stride", "primary_kernel", "primary_stride"})
# Upper limits for files: a larger network would take hours, or more memory than any machine has.
_MAX_LAYERS, _MAX_ITERATIONS, _MAX_CLASSES, _MAX_BYTES = 100, 1000, 10**6, 2**50

# Entries of the paper's network for CIFAR-10 that differ from the one for MNIST.
CIFAR10_PRESET: dict[str, Any] = {
    "height": 24,
    "width": 24,
    "channels": 3,
    "capsule_types": 64,
    "lower_dimension": 4,
    "standardize": True,
    "resize": (32, 32),
    "class_names": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}


@dataclass(frozen=True, kw_only=True, repr=False)
class CapsNetConfig(ShortRepr):
    """The three-layer network of the paper's section 2, for images of any size.

    An image goes ``height × width × channels`` → stem → `stem_size` × `stem_channels` → PrimaryCaps →
    `grid` × `capsule_types` capsules of `lower_dimension` → `classes` capsules of `class_dimension`.

    Attributes:
        height: height of the network's input, in pixels.
        width: width of the network's input, in pixels.
        channels: 1 for gray, 3 for color.
        classes: number of class capsules.
        stem_layers: convolutions in front of the stem's last, each as (channels, kernel size, stride), without padding;
            none in the paper. They reduce large images.
        stem_channels: feature maps of the stem's last convolution.
        stem_kernel: side of its kernel; no padding.
        stem_stride: its stride.
        capsule_types: number of capsules at each position of the grid.
        lower_dimension: dimension of a lower capsule, d.
        primary_kernel: side of the second convolution's kernel; no padding.
        primary_stride: its stride.
        batch_norm: whether a BatchNorm follows each convolution; `fastcaps.fold` merges it into the convolution.
        class_dimension: dimension of a class capsule, e.
        class_bias: whether the sums of class capsules have a bias, as in Sabour's code.
        decoder: widths of the reconstruction network's hidden layers.
        routing: ``"dynamic"``, or the name of a custom routing (`fastcaps.nn.Routing`).
        iterations: number of iterations of dynamic routing.
        normalization: name of the normalization of the coefficients: ``"max_min"``, ``"softmax"``,
            ``"leaky_softmax"``, or a custom one (`fastcaps.functional.Normalization`).
        lower: lower bound of Max-Min.
        upper: upper bound of Max-Min.
        standardize: whether the network first scales each image to zero mean and unit variance.
        resize: height and width to which a picture is resized before its middle is cropped to the input size; the input
            size itself when None.
        class_names: one name per class; numbers by default.
    """

    height: int = 28
    width: int = 28
    channels: int = 1
    classes: int = 10
    stem_layers: tuple[tuple[int, int, int], ...] = ()
    stem_channels: int = 256
    stem_kernel: int = 9
    stem_stride: int = 1
    capsule_types: int = 32
    lower_dimension: int = 8
    primary_kernel: int = 9
    primary_stride: int = 2
    batch_norm: bool = False
    class_dimension: int = 16
    class_bias: bool = False
    decoder: tuple[int, ...] = (512, 1024)
    routing: str = "dynamic"
    iterations: int = 3
    normalization: str = "max_min"
    lower: float = 0.0
    upper: float = 1.0
    standardize: bool = False
    resize: tuple[int, int] | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Convert lists from JSON to tuples and 0 to 0.0, then check all values."""
        for name in ("decoder", "resize", "class_names"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.stem_layers, list | tuple):
            layers = tuple(tuple(layer) if isinstance(layer, list) else layer for layer in self.stem_layers)
            object.__setattr__(self, "stem_layers", layers)
        for field in dataclasses.fields(self):
            _check_type(field.name, field.type, getattr(self, field.name))
            if field.type is float:
                object.__setattr__(self, field.name, float(getattr(self, field.name)))
        self._check_positive()
        self._check_sizes()
        default = len(self.class_names) != self.classes and self.class_names == _numbers(len(self.class_names))
        if default:  # also after dataclasses.replace(config, classes=…)
            object.__setattr__(self, "class_names", self.derived()["class_names"])
        self._check_values()

    def derived(self) -> dict[str, Any]:
        """Return the default class names."""
        return {"class_names": _numbers(self.classes)}

    def _check_positive(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            numbers = value if name in ("decoder", "resize") and value is not None else [value]
            if name == "stem_layers":
                numbers = [number for layer in value for number in layer]
            for number in numbers:
                if type(number) is int and number < 1:
                    raise ValueError(f"{name} is {value}, expected at least 1")

    def _check_sizes(self) -> None:
        """Raise ValueError for sizes that no machine can hold, before memory is allocated."""
        for name in ("stem_layers", "decoder"):
            if len(getattr(self, name)) > _MAX_LAYERS:
                raise ValueError(f"{name} has {len(getattr(self, name)):,} entries, expected at most {_MAX_LAYERS}")
        if self.iterations > _MAX_ITERATIONS:
            raise ValueError(f"iterations is {self.iterations:,}, expected at most {_MAX_ITERATIONS:,}")
        if self.memory_bytes > _MAX_BYTES or self.classes > _MAX_CLASSES:
            raise ValueError(f"{self._words_on_memory}: choose fewer classes, smaller images or fewer capsules")

    @property
    def _convolutions(self) -> list[tuple[int, int, int]]:
        """For each convolution, with PrimaryCaps: number of outputs, of weights, and of weights per output."""
        rows, before, height, width = [], self.channels, self.height, self.width
        primary = (self.capsule_types * self.lower_dimension, self.primary_kernel, self.primary_stride)
        for maps, kernel, stride in (*self._stem_convolutions, primary):
            height, width = max(0, height - kernel) // stride + 1, max(0, width - kernel) // stride + 1
            rows.append((maps * height * width, maps * before * kernel**2, before * kernel**2))
            before = maps
        return rows

    @property
    def _routing_weights(self) -> int:
        numbers, _, _ = self._convolutions[-1]
        return numbers * self.classes * self.class_dimension

    @property
    def weight_count(self) -> int:
        """Number of weights, without biases."""
        sides = (self.classes * self.class_dimension, *self.decoder, self.channels * self.height * self.width)
        decoder = sum(one * other for one, other in itertools.pairwise(sides))
        return sum(weights for _, weights, _ in self._convolutions) + self._routing_weights + decoder

    @property
    def image_numbers(self) -> int:
        """Number of input values, activations and votes of one image."""
        pictures = self.height * self.width + (0 if self.resize is None else math.prod(self.resize))
        votes = -(-self._routing_weights // self.lower_dimension)
        return self.channels * pictures + sum(numbers for numbers, _, _ in self._convolutions) + votes

    def multiply_adds(self, iterations: int | None = None) -> dict[str, int]:
        """Return the multiply-adds per image of stem, PrimaryCaps and routing, convolutions counted as ordinary ones.

        Args:
            iterations: iterations of dynamic routing: each computes a sum, all but the last an agreement; None for a
                folded network.
        """
        *stem, primary = (numbers * each for numbers, _, each in self._convolutions)
        loop = 0 if iterations is None else (2 * iterations - 1) * (self._routing_weights // self.lower_dimension)
        return {"stem": sum(stem), "primary": primary, "routing": self._routing_weights + loop}

    @property
    def memory_bytes(self) -> int:
        """Bytes of the weights and of the activations of one image, in single precision."""
        return 4 * (self.weight_count + self.image_numbers)

    @property
    def _words_on_memory(self) -> str:
        return (
            f"a network for {self.classes:,} classes and images of {self.height:,}×{self.width:,}×{self.channels:,} "
            f"needs {self.memory_bytes / 2**30:,.1f} GiB"
        )

    def check_memory(self) -> None:
        """Raise ValueError if the network doesn't fit into the free memory."""
        free = free_bytes()
        if self.memory_bytes > free:
            raise ValueError(
                f"{self._words_on_memory}, {free / 2**30:,.1f} GiB of memory are free: choose fewer classes, smaller "
                "images (stem='strided') or fewer capsules"
            )

    def _check_values(self) -> None:
        if self.classes < 2:
            raise ValueError(f"classes is {self.classes}, expected at least 2")
        if not (math.isfinite(self.lower) and math.isfinite(self.upper) and self.lower < self.upper):
            raise ValueError(
                f"the bounds of Max-Min are lower={self.lower}, upper={self.upper}: "
                "expected finite numbers, lower < upper"
            )
        for name, example in {"normalization": "max_min", "routing": "dynamic"}.items():
            if not getattr(self, name).isidentifier():
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a name such as {example}")
        if len(self.class_names) != self.classes:
            raise ValueError(f"{len(self.class_names)} class names were given for {self.classes} classes")
        if len(set(self.class_names)) != self.classes:
            raise ValueError(f"class names repeat: {', '.join(self.class_names)}")
        needed = self.primary_kernel
        for _, kernel, stride in reversed(self._stem_convolutions):
            needed = kernel + stride * (needed - 1)
        if min(self.height, self.width) < needed:
            front = f"{len(self.stem_layers)} convolutions in front, " if self.stem_layers else ""
            raise ValueError(
                f"images of {self.height}×{self.width} are too small: {front}a {self.stem_kernel}×{self.stem_kernel} "
                f"stem (stride {self.stem_stride}) and a {self.primary_kernel}×{self.primary_kernel} PrimaryCaps "
                f"convolution need at least {needed}×{needed}: enlarge the images or choose smaller kernels"
            )
        if self.resize is not None and (self.resize[0] < self.height or self.resize[1] < self.width):
            raise ValueError(
                f"resize is {self.resize[0]}×{self.resize[1]}, smaller than the {self.height}×{self.width} "
                "that is cropped from it"
            )

    @classmethod
    def mnist(cls, **changes: Any) -> Self:
        """Return the paper's network for MNIST and its variants: 28×28×1 → 20×20×256 → 6×6×32 = 1152 capsules of 8."""
        return cls(**changes)

    @classmethod
    def cifar10(cls, **changes: Any) -> Self:
        """Return the paper's network for CIFAR-10: 24×24×3 → 16×16×256 → 4×4×64 = 1024 capsules of 4."""
        return cls(**(CIFAR10_PRESET | changes))

    @classmethod
    def for_images(
        cls,
        height: int,
        width: int,
        channels: int,
        *,
        classes: int,
        stem: Literal["auto", "paper", "strided"] = "paper",
        **changes: Any,
    ) -> Self:
        """Return the MNIST network for images of another size; the grid of capsules follows from the size.

        Args:
            height: height of the images.
            width: width of the images.
            channels: channels of the images.
            classes: number of classes.
            stem: ``"paper"`` for one convolution; ``"strided"`` to add convolutions of stride 2 in front of it until
                there are at most twice as many lower capsules as in the paper. If there would be more than that,
                ``"auto"`` chooses strides and convolutions in front that bring the number closest to the paper's.
            changes: other entries of the configuration.
        """
        if stem not in ("auto", "paper", "strided"):
            raise ValueError(f"stem is {stem!r}, expected auto, paper or strided")
        config = cls(height=height, width=width, channels=channels, classes=classes, **changes)
        if stem == "auto" and config.lower_capsules > _MAX_CAPSULES and not _STRIDES & changes.keys():
            return min(config._strided(), key=lambda one: abs(math.log(one.lower_capsules / _PAPER_CAPSULES)))
        while stem == "strided" and config.lower_capsules > _MAX_CAPSULES:
            try:
                config = config._with_front(len(config.stem_layers) + 1)
            except ValueError:
                break  # another one would leave no positions
        return config

    def _strided(self) -> Iterator[Self]:
        """Yield this network with all combinations of strides and convolutions in front that leave any positions."""
        for front, stem_stride, primary_stride in itertools.product(range(_MAX_FRONT + 1), (1, 2), (2, 3)):
            with suppress(ValueError):
                config = self._with_front(front)
                yield dataclasses.replace(config, stem_stride=stem_stride, primary_stride=primary_stride)

    def _with_front(self, count: int) -> Self:
        """Return this network with ``count`` strided convolutions in front of the last one of the stem."""
        # Each has twice the channels of the one before, up to those of the last one of the stem.
        widths = [max(1, self.stem_channels >> (count - k)) for k in range(count)]
        return dataclasses.replace(self, stem_layers=tuple((maps, *_HALVING) for maps in widths))

    @property
    def _stem_convolutions(self) -> tuple[tuple[int, int, int], ...]:
        """Channels, kernel size and stride of all convolutions of the stem."""
        return (*self.stem_layers, (self.stem_channels, self.stem_kernel, self.stem_stride))

    @property
    def stem_size(self) -> tuple[int, int]:
        """Height and width of the stem's feature maps."""
        height, width = self.height, self.width
        for _, kernel, stride in self._stem_convolutions:
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        return height, width

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the grid of positions that have lower capsules."""
        height, width = self.stem_size
        return (
            (height - self.primary_kernel) // self.primary_stride + 1,
            (width - self.primary_kernel) // self.primary_stride + 1,
        )

    @property
    def lower_capsules(self) -> int:
        """Number of lower capsules, i: positions × types."""
        return self.grid[0] * self.grid[1] * self.capsule_types

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the configuration from the values of `to_dict`; missing entries get their defaults."""
        unknown = sorted(set(values) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"the configuration has unknown entries: {', '.join(unknown)}")
        return cls(**values)

    def to_json(self) -> str:
        """Return a JSON document."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the configuration of a document from `to_json`."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"the configuration is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ValueError(f"the configuration is a JSON {type(values).__name__}, expected an object")
        return cls.from_dict(values)


def _numbers(classes: int) -> tuple[str, ...]:
    """Return the default class names."""
    return tuple(str(k) for k in range(classes))


def _check_type(name: str, kind: Any, value: Any) -> None:
    expected: dict[Any, tuple[str, bool]] = {
        int: ("a whole number", type(value) is int),
        float: ("a number", type(value) in (int, float)),
        str: ("a string", type(value) is str),
        bool: ("true or false", type(value) is bool),
        tuple[int, ...]: ("a list of whole numbers", _is_tuple_of(value, int)),
        tuple[str, ...]: ("a list of strings", _is_tuple_of(value, str)),
        tuple[tuple[int, int, int], ...]: (
            "a list of (channels, kernel size, stride)",
            type(value) is tuple and all(_is_tuple_of(layer, int) and len(layer) == 3 for layer in value),
        ),
        tuple[int, int] | None: (
            "two whole numbers or null",
            value is None or (_is_tuple_of(value, int) and len(value) == 2),
        ),
    }
    words, fits = expected[kind]
    if not fits:
        raise ValueError(f"{name} is {value!r}, expected {words}")


def _is_tuple_of(value: Any, kind: type) -> bool:
    return type(value) is tuple and all(type(entry) is kind for entry in value)
