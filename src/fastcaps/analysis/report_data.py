"""The numbers of a report, section by section, as in ``analysis.json`` and on the page.

Numbers are rounded to six decimals. Undefined values, such as the mean of no pairs, are None.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcaps._result import Result, Table, json_field
from fastcaps.analysis.results import Evaluation
from fastcaps.master.summary import MasterSummary

Numbers = NDArray[np.float64]


def rounded(values: Any) -> Numbers:
    """Return an array of numbers for a report."""
    array = np.asarray(values, np.float64)
    return np.where(np.isfinite(array), array.round(6), np.nan)


def rounded_number(value: Any) -> float | None:
    """Return one number for a report."""
    return round(float(value), 6) if np.isfinite(value) else None


@dataclass(frozen=True)
class ReportSettings:
    """Everything that determines a report: hashes of weights, coefficients and images, and the number of images."""

    command: str | None
    limit: int | None
    weights: str
    master: str
    data_fingerprint: str


@dataclass(frozen=True)
class Finding:
    """The main finding of a report.

    Attributes:
        title: data set and network.
        speedup: ratio of the images per second with fast and with dynamic routing; None if speeds were not measured.
    """

    title: str
    speedup: float | None


@dataclass(frozen=True)
class TrainingImages:
    """Number of training images, in total and per class."""

    images: int
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class FirstImages:
    """Correlations of the first training images, pair by pair, as a lower triangle in the given order."""

    images: int
    sorted_by_class: bool
    order: NDArray[np.int64]
    labels: NDArray[np.int64]
    within: float | None
    between: float | None
    lowest: float | None
    correlations: tuple[Numbers, ...]


@dataclass(frozen=True)
class ClassCorrelation:
    """A class and a correlation with it."""

    name: str = field(metadata={"key": "class"})
    correlation: float | None


@dataclass(frozen=True)
class Pair:
    """Two classes and their correlation."""

    classes: tuple[str, str]
    correlation: float | None


@dataclass(frozen=True)
class Nearest:
    """The other classes that a class correlates with most."""

    name: str = field(metadata={"key": "class"})
    own: float | None
    others: tuple[ClassCorrelation, ...]
    own_is_highest: bool


@dataclass(frozen=True)
class Correlations:
    """Mean correlations between classes ``(j j)``, and their summary."""

    within: float | None
    between: float | None
    own_is_highest: int
    least_alike: ClassCorrelation | None
    most_alike: ClassCorrelation | None
    closest_pair: Pair | None
    in_words: str
    nearest: tuple[Nearest, ...]
    correlations: Numbers
    constant_columns: NDArray[np.int64] | None = json_field(omit_none=True)


@dataclass(frozen=True)
class Spread:
    """The histogram of coefficients per iteration, and its summary; mean and deviation use the centers of the bins."""

    normalization: str
    normalization_title: str
    start: float | None
    edges: Numbers
    counts: NDArray[np.int64]
    mean: Numbers
    deviation: Numbers
    near_start: Numbers
    near_0: Numbers
    near_1: Numbers
    run: str | None = json_field(omit_none=True)
    images: int | None = json_field(omit_none=True)


@dataclass(frozen=True)
class MasterMatrix:
    """The master matrix ``(i j)``, statistics of its values, and `MasterCoefficients.summary`."""

    summary: MasterSummary = field(metadata={"flat": True})
    mean: float | None
    deviation: float | None
    low: float | None
    high: float | None
    below_low: float | None
    above_high: float | None
    is_reduction: bool
    values: Numbers


@dataclass(frozen=True)
class HighestPosition:
    """Position of the highest mean coefficient of a class: row and column from 1."""

    name: str = field(metadata={"key": "class"})
    row: int
    column: int
    mean: float | None


@dataclass(frozen=True)
class PositionRange:
    """Difference between the highest and the lowest position of a class."""

    name: str = field(metadata={"key": "class"})
    range: float | None


@dataclass(frozen=True)
class Positions:
    """Mean master coefficients per class and position ``(j h w)``.

    Positions are only meaningful if the map of a class varies by more than `bound`.
    """

    bound: float | None
    means: Numbers
    highest: tuple[HighestPosition, ...]
    least_varied: PositionRange
    most_varied: PositionRange


@dataclass(frozen=True)
class ImageLengths:
    """One test image with its class and lengths by dynamic and by fast routing."""

    test_image: int
    label: str = field(metadata={"key": "is"})
    dynamic: str
    fast: str
    lengths_dynamic: Numbers
    lengths_fast: Numbers


@dataclass(frozen=True)
class Examples:
    """Some test images, and the number of correct predictions."""

    images: tuple[ImageLengths, ...]
    right_dynamic: int
    right_fast: int
    largest_difference: float | None


@dataclass(frozen=True)
class HighestOther:
    """The largest mean length of a capsule on images of another class."""

    images: str
    capsule: str
    length: float | None


@dataclass(frozen=True)
class TuningCurves:
    """Mean lengths of class capsules (columns) on the images of each class (rows) ``(j j)``."""

    classes: int
    peaked_at_own: int
    own: float | None
    others: float | None
    highest_other: HighestOther
    lengths: Numbers


@dataclass(frozen=True)
class Tuning:
    """Tuning curves of dynamic and of fast routing."""

    dynamic: TuningCurves
    fast: TuningCurves


@dataclass(frozen=True)
class Disagreements:
    """The test images that change class from dynamic to fast routing."""

    test_images: int
    changed: int
    gained: int
    lost: int
    wrong_in_both: int
    drawn: int
    listed: int
    images: tuple[ImageLengths, ...]


@dataclass(frozen=True)
class ClassDimensions:
    """Effect of each entry of a class capsule on the reconstruction of a test image ``(e)``."""

    name: str = field(metadata={"key": "class"})
    test_image: int
    strongest: int
    effects: Numbers


@dataclass(frozen=True)
class ShownDimensions:
    """The class whose entries are all drawn."""

    name: str = field(metadata={"key": "class"})
    test_image: int
    strongest: int
    largest_effect: float | None
    weakest: int
    smallest_effect: float | None
    visible: int


@dataclass(frozen=True)
class Reconstructions:
    """How well the decoder separates classes: root mean square difference of two classes, averaged over all pairs.

    Attributes:
        classes: number of classes with a correctly classified test image; the first one of each is compared.
        images: difference of the images.
        drawn: difference of their reconstructions.
        bound: smallest meaningful difference of reconstructions: a quarter of that of the images.
        differ: whether the reconstructions differ by more than `bound`.
    """

    classes: int
    images: float | None
    drawn: float | None
    bound: float | None
    differ: bool


@dataclass(frozen=True)
class Dimensions:
    """What the entries of class capsules mean.

    An effect is the root mean square difference of the reconstructions at the ends of a row. It is visible above
    `bound`, a fifth of the difference between images of two classes.
    """

    offsets: tuple[float, ...]
    bound: float | None
    classes: tuple[ClassDimensions, ...]
    shown: ShownDimensions | None = json_field(omit_none=True)


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class ReportData(Result):
    """All numbers and figures of a report.

    Attributes:
        finding: the main finding.
        run: name of the run; None for a bare module, like the settings.
        settings: everything that determines the report.
        network: configuration and sizes.
        training: the training images.
        evaluation: evaluation on the test images.
        first_images: correlations of single images.
        class_correlations: correlations between the ground-truth columns of classes.
        master_correlations: correlations of master columns with classes.
        coefficients: distribution of the coefficients.
        compared: the same for another run.
        master: the master matrix.
        positions: the master matrix by position.
        examples: single test images.
        tuning: lengths averaged per class.
        disagreements: images that change class.
        reconstructions: how well the decoder separates classes.
        dimensions: what the entries of a class capsule mean.
        figures: matplotlib figures by name.
    """

    finding: Finding
    run: str | None = json_field(omit_none=True)
    settings: ReportSettings | None = json_field(omit_none=True)
    network: Mapping[str, Any]
    training: TrainingImages
    evaluation: Evaluation
    first_images: FirstImages
    class_correlations: Correlations
    master_correlations: Correlations
    coefficients: Spread
    compared: Spread | None = json_field(omit_none=True)
    master: MasterMatrix
    positions: Positions
    examples: Examples
    tuning: Tuning
    disagreements: Disagreements
    reconstructions: Reconstructions
    dimensions: Dimensions
    figures: Mapping[str, Any] = json_field(omit=True, default_factory=dict)

    def tables(self) -> list[Table]:
        """Return accuracies per variant, and per class."""
        return self.evaluation.tables()
