"""The result of an evaluation, as in ``evaluation.json``. Imports neither PyTorch nor SciPy."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastcaps._result import Result, Table, json_field
from fastcaps.master.summary import MasterSummary

MEANINGS = {
    "dynamic": "the routing loop for each image, as trained",
    "fast": "master coefficients, folded into the weights",
    "uniform": "equal coefficients: no routing at all",
    "ceiling": "each image with its own class's coefficients, which needs the answer",
    "other": "another run's network, as it was trained",
}


# Fewer images than this may all be predicted as one class by chance.
_FEW_IMAGES = 10


def note_sentences(images_note: str | None) -> list[str]:
    """Return the note of a result about images that are not those of the run, as a sentence."""
    return [] if images_note is None else [f"Note: {images_note}."]


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _no_labels() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of two sets of predictions for the same images.

    Attributes:
        changed: number of predictions that differ.
        gained: number of changed predictions that were wrong before and are correct now.
        lost: number of changed predictions that were correct before and are wrong now.
        p_value: p-value of McNemar's exact test that gains and losses are equally likely.
        difference: difference of accuracies, new minus old.
        interval: 95 % interval of the difference, paired (Wald with Agresti and Min's correction).
    """

    changed: int
    gained: int
    lost: int
    p_value: float
    difference: float
    interval: tuple[float, float]

    def sentence(self, name: str) -> str:
        """Return the result of the test as a sentence that compares fast routing with ``name``."""
        points = 100 * self.difference
        p_value = "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.2g}"
        counts = f"{_signed(points)} points, +{self.gained} −{self.lost} answers, McNemar {p_value}"
        if self.p_value >= 0.05:
            return f"Fast routing does not differ significantly from {name} ({counts})."
        word = "better" if points > 0 else "worse"
        return f"Fast routing is {word} than {name} ({counts})."


@dataclass(frozen=True, eq=False, kw_only=True)
class Variant:
    """One variant of routing on a set of images.

    Attributes:
        correct: number of correct predictions.
        errors: number of wrong predictions.
        accuracy: fraction of correct predictions.
        interval: 95 % interval of the accuracy (Wilson).
        per_class: accuracy per class ``(j)``; NaN for a class without images.
        confusion: number of images per true class (row) and predicted class (column) ``(j j)``.
        images_per_second: speed of the whole network; None if it was not measured.
        against_dynamic: comparison with dynamic routing; None for dynamic routing itself.
        against_uniform: comparison with uniform coefficients, for fast routing only.
        against_other: comparison with the other network, if there is one; for fast routing only.
        predictions: predicted class per image ``(n)``; empty when read from a file.
    """

    correct: int
    errors: int
    accuracy: float
    interval: tuple[float, float]
    per_class: NDArray[np.float64]
    confusion: NDArray[np.int64]
    images_per_second: float | None
    against_dynamic: Comparison | None
    against_uniform: Comparison | None
    against_other: Comparison | None = json_field(omit_none=True)
    predictions: NDArray[np.int64] = json_field(omit=True, default_factory=_no_labels)


@dataclass(frozen=True)
class Other:
    """Another network that was evaluated on the same images.

    Attributes:
        run: its run.
        routing: routing it was trained with, ``"dynamic"`` or ``"fast"``.
        weights: hash of its weights.
    """

    run: str
    routing: str
    weights: str


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Evaluation(Result):
    """All variants of routing on the same images.

    `fastcaps.analysis.evaluate` fills the last fields; the others describe the run, and are None for a bare module.

    Attributes:
        run: folder of the run.
        command: command line that evaluated it.
        data: name of the data set.
        generated: whether its images are generated.
        images_note: how the images differ from those that the network was trained with; None for its own.
        part: ``"test"``, ``"validation"`` or ``"train"``.
        batch_size: images per batch.
        threads: CPU threads per process.
        processes: number of processes.
        versions: versions of packages, by name.
        master: summary of the master coefficients.
        master_range: smallest and largest master coefficient.
        other: the network that it was compared with.
        images: number of images.
        class_names: names of the classes, in the order of the labels.
        variants: variants by name: ``"dynamic"``, ``"fast"``, ``"uniform"``; ``"ceiling"`` if the coefficients have
            sums of the network's own weights; ``"other"`` if another network was compared.
        labels: true class per image ``(n)``; empty when read from a file.
    """

    run: str | None = json_field(omit_none=True)
    command: str | None = json_field(omit_none=True)
    data: str | None = json_field(omit_none=True)
    generated: bool | None = json_field(omit_none=True)
    images_note: str | None = json_field(omit_none=True)
    part: str | None = json_field(omit_none=True)
    batch_size: int | None = json_field(omit_none=True)
    threads: int | None = json_field(omit_none=True)
    processes: int | None = json_field(omit_none=True)
    versions: Mapping[str, str] | None = json_field(omit_none=True)
    master: MasterSummary | None = json_field(omit_none=True)
    master_range: tuple[float, float] | None = json_field(omit_none=True)
    other: Other | None = json_field(omit_none=True)
    images: int
    class_names: tuple[str, ...]
    variants: Mapping[str, Variant]
    labels: NDArray[np.int64] = json_field(omit=True, default_factory=_no_labels)

    def __post_init__(self) -> None:
        """Raise ValueError if a required variant is missing."""
        for name in ("dynamic", "fast", "uniform"):
            if name not in self.variants:
                raise ValueError(f"variants.{name} is missing")

    @property
    def dynamic(self) -> Variant:
        """Dynamic routing."""
        return self.variants["dynamic"]

    @property
    def fast(self) -> Variant:
        """Fast routing: the master coefficients, folded."""
        return self.variants["fast"]

    @property
    def uniform(self) -> Variant:
        """Uniform coefficients: no routing."""
        return self.variants["uniform"]

    def tables(self) -> list[Table]:
        """Return accuracies per variant, and per class."""
        return [self._variants_table(), self._classes_table()]

    def sentences(self) -> list[str]:
        """Return what fast routing changes, the comparison with the other network, and notes about the images."""
        compared = [] if self.other is None else [self.compare_with_other()]
        return [self.verdict(), *compared, *note_sentences(self.images_note), *self._one_class()]

    def _one_class(self) -> list[str]:
        """Return a warning if dynamic routing predicts one class for nearly all images, but not nearly all have it."""
        predicted = self.dynamic.confusion.sum(axis=0)
        top = int(predicted.argmax())
        labeled = self.dynamic.confusion.sum(axis=1)[top]
        if self.images < _FEW_IMAGES or predicted[top] < 0.95 * self.images or labeled > 0.8 * self.images:
            return []
        part = f"{self.part} " if self.part else ""
        count = f"All {self.images:,}" if predicted[top] == self.images else f"{predicted[top]:,} of {self.images:,}"
        name = self.class_names[top]
        return [f"{count} {part}images were classified as {name}: the network has learned nothing."]

    def verdict(self) -> str:
        """Return two sentences about what fast routing changes."""
        speed = "Speeds were not measured on so few images"
        if self.dynamic.images_per_second and self.fast.images_per_second:
            ratio = self.fast.images_per_second / self.dynamic.images_per_second
            speed = f"Without its routing loop the network is {ratio:.1f} times as fast"
        change = self.fast.against_dynamic
        if change is None:
            return f"{speed}."
        words = f"{change.changed:,} of {self.images:,} answers {'changes' if change.changed == 1 else 'change'}"
        words += f", {change.gained:,} for the better"
        return f"{speed}; {words} and {change.lost:,} for the worse. {self.compare_with_uniform()}"

    def compare_with_uniform(self) -> str:
        """Return a sentence that compares fast routing with no routing at all: the benefit of master coefficients."""
        against = self.fast.against_uniform
        return "" if against is None else against.sentence("equal coefficients, no routing at all")

    def compare_with_other(self) -> str:
        """Return a sentence that compares fast routing with the other network."""
        against = self.fast.against_other
        if self.other is None or against is None:
            raise ValueError("no other network was compared: evaluate with another one")
        return against.sentence(f"{self.other.run} with {self.other.routing} routing")

    def _variants_table(self) -> Table:
        rows = []
        for name, variant in self.variants.items():
            low, high = variant.interval
            change = variant.against_dynamic
            changed = ["", "", ""]
            if change is not None:
                changed = [str(change.changed), f"+{change.gained} −{change.lost}", f"{change.p_value:.2g}"]
            title = f"other: {self.other.run}" if name == "other" and self.other else name
            interval = f"{low:.2%} – {high:.2%}"
            speed = f"{variant.images_per_second:,.0f}" if variant.images_per_second else ""
            rows.append([title, f"{variant.accuracy:.2%}", interval, str(variant.errors), *changed, speed])
        data = f"{self.data}{' (generated)' if self.generated else ''}: " if self.data else ""
        part = f"{self.part} " if self.part else ""
        columns = ["routing", "accuracy", "95 %", "errors", "changed", "gained, lost", "McNemar p", "images/s"]
        return Table(f"{data}{self.images:,} {part}images", columns, rows)

    def _classes_table(self) -> Table:
        shares = [self.dynamic.per_class, self.fast.per_class]
        rows = [
            [name, *("–" if np.isnan(share[k]) else f"{share[k]:.2%}" for share in shares)]
            for k, name in enumerate(self.class_names)
        ]
        return Table("Accuracy by class", ["class", "dynamic", "fast"], rows)
