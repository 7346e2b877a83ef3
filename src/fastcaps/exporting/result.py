"""What `fastcaps.export` returns: the file, what it says about itself, and how it compares with the network."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastcaps._result import Result, Table, plain

# Largest difference of a capsule's length, or of another output, from PyTorch's that float32 may have.
TOLERANCE = 1e-3
# A loss of so few images may be chance.
_FEW = 3


@dataclass(frozen=True)
class Check:
    """An exported file compared with the PyTorch network on the same inputs.

    Attributes:
        images: number of inputs.
        changed: number of predictions that differ.
        largest_difference: of a capsule's length, or of another output.
        correct: number of correct predictions of the file; None without labels.
        original_correct: number of correct predictions of the network; None without labels.
    """

    images: int
    changed: int
    largest_difference: float
    correct: int | None = None
    original_correct: int | None = None

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the file."""
        return None if self.correct is None else self.correct / self.images

    @property
    def original_accuracy(self) -> float | None:
        """Accuracy of the network."""
        return None if self.original_correct is None else self.original_correct / self.images

    def problem(self, precision: str, max_drop: float) -> str | None:
        """Say why the file must not be written, if so; ``max_drop`` is in points of accuracy."""
        if precision == "float32":
            if self.largest_difference <= TOLERANCE:
                return None
            return (
                f"a length differs from PyTorch's by {self.largest_difference:.1e} on {self.images:,} images, expected "
                f"at most {TOLERANCE:.0e}: are these weights of a trained network?"
            )
        if self.correct is None or self.original_correct is None:
            return "int8 needs tests with labels, so that a loss of accuracy is seen"
        lost = self.original_correct - self.correct
        drop = 100 * lost / self.images
        if lost <= _FEW or drop <= max_drop:
            return None
        return (
            f"in int8 accuracy falls from {self.original_accuracy:.2%} to {self.accuracy:.2%}, {drop:.2f} points, "
            f"expected at most {max_drop:g}: export float32, or allow more with max_drop"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        labeled = {
            "correct": self.correct,
            "accuracy": self.accuracy,
            "original_correct": self.original_correct,
            "original_accuracy": self.original_accuracy,
        }
        return {
            "images": self.images,
            **(labeled if self.correct is not None else {}),
            "changed": self.changed,
            "largest_difference": self.largest_difference,
        }


@dataclass(frozen=True, repr=False, eq=False)
class ExportResult(Result):
    """An exported file.

    Attributes:
        file: its path.
        size: in bytes.
        routing: ``"fast"``, ``"dynamic"``, or ``"none"`` for a module without capsules.
        precision: ``"float32"`` or ``"int8"``.
        check: the comparison with the network.
        metadata: everything that the file says about itself.
    """

    file: Path
    size: int
    routing: str
    precision: str
    check: Check
    metadata: Mapping[str, Any]

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
        """Say what is special of the images that it was compared on."""
        note = self.metadata.get("accuracy", {}).get("images_note")
        unchecked = f"Not compared on test images: the accuracy of {self.file} is not known."
        return ([] if note is None else [f"Mind that {note}."]) + ([unchecked] if self.check.correct is None else [])

    def to_dict(self) -> dict[str, Any]:
        """Return path, size and metadata as plain values for JSON."""
        return {"file": str(self.file), "bytes": self.size, **plain(dict(self.metadata))}
