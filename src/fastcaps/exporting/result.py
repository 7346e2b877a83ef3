"""The result of `fastcaps.export`: the file, its metadata, and the comparison with the network."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fastcaps._json import convert_json
from fastcaps._result import Result, Table
from fastcaps.runtime.metadata import CapsNetMetadata, Check, ModuleMetadata, read_metadata

# Maximum difference of a capsule length, or of another output, from PyTorch in float32.
TOLERANCE = 1e-3
# A loss of up to this many images may be chance.
_FEW = 3


def find_problem(check: Check, precision: str, max_drop: float) -> str | None:
    """Return why a file must not be written, or None; ``max_drop`` is in points of accuracy."""
    if precision == "float32":
        if check.largest_difference <= TOLERANCE:
            return None
        return (
            f"a length differs from PyTorch's by {check.largest_difference:.1e} on {check.images:,} images, expected "
            f"at most {TOLERANCE:.0e}: are these weights of a trained network?"
        )
    if check.correct is None or check.original_correct is None:
        return "int8 needs tests with labels, so that a loss of accuracy is seen"
    lost = check.original_correct - check.correct
    drop = 100 * lost / check.images
    if lost <= _FEW or drop <= max_drop:
        return None
    return (
        f"in int8 accuracy falls from {check.original_accuracy:.2%} to {check.accuracy:.2%}, {drop:.2f} points, "
        f"expected at most {max_drop:g}: export float32, or allow more with max_drop"
    )


@dataclass(frozen=True)
class _Stored:
    """The entries of a result except the metadata."""

    file: str
    bytes: int


@dataclass(frozen=True, repr=False, eq=False)
class ExportResult(Result):
    """An exported file.

    Attributes:
        file: its path.
        size: size in bytes.
        check: the comparison with the network.
        metadata: all metadata of the file.
    """

    file: Path
    size: int = field(metadata={"key": "bytes"})
    check: Check = field(metadata={"omit": True})
    metadata: CapsNetMetadata | ModuleMetadata = field(metadata={"flat": True})

    @classmethod
    def from_dict(cls, values: Any, source: str | None = None) -> Self:
        """Return the result from the values of `to_dict`; raise ValueError if an entry is missing or wrong."""
        source = source or f"the {cls.__name__}"
        own = convert_json(values, _Stored, source)
        metadata = read_metadata(json.dumps(values), source)
        check = metadata.accuracy or metadata.check
        if check is None:
            raise ValueError(f"{source} is damaged: it has no comparison with the network, accuracy or check")
        return cls(Path(own.file), own.bytes, check, metadata)

    @property
    def routing(self) -> str:
        """``"fast"``, ``"dynamic"``, or ``"none"`` for a module without capsules."""
        return self.metadata.routing

    @property
    def precision(self) -> str:
        """``"float32"`` or ``"int8"``."""
        return self.metadata.precision

    def tables(self) -> list[Table]:
        """Return size and accuracies as one row."""
        accuracies = (self.check.accuracy, self.check.original_accuracy)
        row = [
            self.routing,
            self.precision,
            f"{self.size / 1e6:.1f}",
            f"{self.check.images:,}",
            *("–" if accuracy is None else f"{accuracy:.2%}" for accuracy in accuracies),
            str(self.check.changed),
            f"{self.check.largest_difference:.1e}",
        ]
        columns = ["routing", "precision", "MB", "images", "accuracy", "original", "changed", "lengths differ by"]
        return [Table(str(self.file), columns, [row])]

    def sentences(self) -> list[str]:
        """Return a note about the images that it was compared on, if needed."""
        note = self.check.images_note
        unchecked = f"Not compared on test images: the accuracy of {self.file} is not known."
        return ([] if note is None else [f"Note: {note}."]) + ([unchecked] if self.check.correct is None else [])
