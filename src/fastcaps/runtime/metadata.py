"""Metadata of an exported file: written by `fastcaps.export`, read by `Predictor`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fastcaps._former_dict import FormerDict
from fastcaps._json import parse_json
from fastcaps._result import Record, json_field
from fastcaps.nn.config import CapsNetConfig
from fastcaps.runtime import structure

# Formats of files with a CapsNet, which have its configuration, and of files with any other module.
CAPSNET_FORMAT, MODULE_FORMAT = 1, 2
# Maximum number of elements and of axes of an input or output.
_MOST, _MOST_AXES = 2**27, 8


@dataclass(frozen=True)
class Check(Record):
    """An exported file compared with the PyTorch network on the same inputs.

    Attributes:
        images: number of inputs.
        changed: number of predictions that differ.
        largest_difference: largest difference of a capsule length, or of another output.
        correct: number of correct predictions of the file; None without labels.
        original_correct: number of correct predictions of the network; None without labels.
        images_note: how the inputs differ from those that the network was trained with, if they do.
    """

    images: int
    changed: int
    largest_difference: float
    correct: int | None = json_field(omit_none=True)
    original_correct: int | None = json_field(omit_none=True)
    images_note: str | None = json_field(omit_none=True)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the file."""
        return None if self.correct is None else self.correct / self.images

    @property
    def original_accuracy(self) -> float | None:
        """Accuracy of the network."""
        return None if self.original_correct is None else self.original_correct / self.images

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the accuracies."""
        accuracies = {"accuracy": self.accuracy, "original_accuracy": self.original_accuracy}
        return super().to_dict() | (accuracies if self.correct is not None else {})


@dataclass(frozen=True, kw_only=True)
class Metadata(FormerDict):
    """Metadata of every file.

    Attributes:
        format: `CAPSNET_FORMAT` or `MODULE_FORMAT`.
        routing: ``"fast"``, ``"dynamic"``, or ``"none"`` for a module without capsules.
        precision: precision of weights and activations.
        batch: fixed batch size of the file; None for any.
        fastcaps: version of fastcaps that wrote it.
        input: how an image becomes the input, in words.
        weights_sha256: SHA-256 of the weights of the network.
        accuracy: the comparison with the network on inputs with labels.
        check: the comparison with the network on inputs without labels.
    """

    format: int
    routing: Literal["fast", "dynamic", "none"]
    precision: Literal["float32", "int8"]
    batch: int | None
    fastcaps: str = ""
    input: str = ""
    weights_sha256: str = ""
    accuracy: Check | None = json_field(omit_none=True)
    check: Check | None = json_field(omit_none=True)

    def __post_init__(self) -> None:
        """Raise ValueError for an empty batch."""
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"batch is {self.batch}, expected at least 1")


@dataclass(frozen=True, kw_only=True)
class CapsNetMetadata(Metadata):
    """Metadata of a file with a `CapsNet`.

    Attributes:
        config: configuration of the network.
        background: brightness of the edge of the training images, between 0 and 1; None if it does not apply.
        provenance: provenance of the network.
    """

    config: CapsNetConfig
    background: float | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_own_graph(self) -> bool:
        """Whether the graph was written by fastcaps, not by the exporter of PyTorch."""
        built_in = self.config.routing == "dynamic" and self.config.normalization in structure.BUILT_IN
        return self.routing == "fast" or built_in


@dataclass(frozen=True, kw_only=True)
class ModuleMetadata(Metadata):
    """Metadata of a file with any other module.

    Attributes:
        model: name of its class.
        input_shape: shape of one input.
        input_type: type of the inputs; bytes are scaled by the module itself.
        outputs: names of the outputs.
        output_shapes: shape of each output for one input.
        class_names: names of the classes, in the order of the last output.
        background: as for a `CapsNet`.
    """

    model: str = ""
    input_shape: tuple[int, ...]
    input_type: Literal["float32", "uint8"]
    outputs: tuple[str, ...]
    output_shapes: tuple[tuple[int, ...], ...]
    class_names: tuple[str, ...]
    background: float | None = json_field(omit_none=True)

    def __post_init__(self) -> None:
        """Raise ValueError for shapes that no module can have."""
        super().__post_init__()
        if len(self.outputs) != len(self.output_shapes):
            raise ValueError(f"{len(self.outputs)} outputs have {len(self.output_shapes)} shapes")
        for shape in (self.input_shape, *self.output_shapes):
            # The number of axes is checked first: the product of very many sizes takes minutes.
            if len(shape) > _MOST_AXES or min(shape, default=1) < 1 or math.prod(shape) > _MOST:
                raise ValueError(
                    f"a shape has {len(shape)} sizes, {shape[:_MOST_AXES]} first: expected at most {_MOST_AXES} of at "
                    f"least 1, {_MOST:,} together"
                )
        if not self.input_shape:
            raise ValueError("input_shape has no sizes, expected at least one")


@dataclass(frozen=True)
class _Format:
    format: Any = None


def read_metadata(text: str, path: str) -> CapsNetMetadata | ModuleMetadata:
    """Return the metadata of a file; ``path`` is named in errors."""
    source = f"the metadata of {path}"
    number = parse_json(text, _Format, source).format
    kinds: dict[int, type[CapsNetMetadata | ModuleMetadata]] = {
        CAPSNET_FORMAT: CapsNetMetadata,
        MODULE_FORMAT: ModuleMetadata,
    }
    if type(number) is not int or number not in kinds:
        raise ValueError(
            f"{path} has format {number}, this version of fastcaps reads {' and '.join(map(str, kinds))}: "
            "export it with this version, or use the one that wrote it"
        )
    return parse_json(text, kinds[number], source)
