"""Filters: which training images' coefficients are good enough to be accumulated (paper, appendix A, step 3).

The paper takes all of them. It names two other ways, clustering and similarity; a third is to trust the network.

| filter | leaves out |
|---|---|
| `Correct` | images that dynamic routing gives another class, or its own too narrowly |
| `Similarity` | images whose ground-truth column is not much more like their own class's mean than like another's |
| `KMeans`, `GaussianMixture` | images in outlying clusters of their class's ground-truth columns |

The *outlying* clusters of a class are those whose centers lie farthest from the class's mean, taken from the outside
inwards as long as together they hold at most a given share of the class. Size alone doesn't do: a small cluster in the
middle is where the algorithm happened to cut. Nor does distance: a large cluster far away is another way of writing
the digit, and nothing nearer than it is an outlier. So whatever the number of clusters, no class loses more than that
share, and a small class may lose none.

Any object with the four members of `Filter` is a filter; the report keeps the options of one that is a dataclass.
"""

import dataclasses
import functools
import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar, final, get_args

import numpy as np
from numpy.typing import NDArray

from fastcaps._extras import require
from fastcaps._json import parse_json
from fastcaps._result import plain
from fastcaps.distributed import SINGLE, World
from fastcaps.functional._deprecated import warn
from fastcaps.master.accumulator import Selection
from fastcaps.master.observations import NothingToFilterError, Observations
from fastcaps.master.summary import FORMER_OPTIONS, FilterReport

T = TypeVar("T")
Measure = Literal["pearson", "dot", "cosine"]

# Columns of a class that clusters are fitted to: 19 MB for MNIST. All of its columns are then assigned to them.
SAMPLE_SIZE = 4096


class Filter(Protocol):
    """What a filter is."""

    @property
    def name(self) -> str:
        """By which it is called in reports."""

    @property
    def reason(self) -> str:
        """What the images that it leaves out have in common, for a sentence that begins with them."""

    @property
    def uses_columns(self) -> bool:
        """Whether it goes by ground-truth columns; at iteration 1 there are none, since all coefficients are equal."""

    def keep(self, observations: Observations) -> NDArray[np.bool_]:
        """Return which of the images to keep ``(n)``."""


def apply_filters(filters: Sequence[Filter], observations: Observations, world: World = SINGLE) -> Selection:
    """Apply filters one after the other; each sees only what those before it kept.

    Args:
        filters: in their order.
        observations: of all images.
        world: the ranks; the first decides for all.
    """
    selection = _select(filters, observations) if world.is_main else Selection(np.empty(0, bool), ())
    # The first rank's alone.
    words = json.dumps(plain(selection.report)).encode() if world.is_main else b""
    gathered = world.all_gather(np.frombuffer(words, np.uint8)).tobytes()
    return Selection(world.all_gather(selection.keep), parse_json(gathered, tuple[FilterReport, ...], "the report"))


def _select(filters: Sequence[Filter], observations: Observations) -> Selection:
    selected = np.ones(len(observations), bool)
    reports = []
    for one in filters:
        keep = np.asarray(one.keep(observations))
        if keep.shape != (len(observations),) or keep.dtype != np.bool_:
            raise ValueError(
                f"filter {one.name} gave {keep.dtype} of shape {keep.shape}, "
                f"expected true or false for each of {len(observations)} images"
            )
        remaining = observations.subset(keep)
        seen, left = observations.counts, remaining.counts
        options: Mapping[str, Any] = plain(one) if dataclasses.is_dataclass(one) else {}
        report = FilterReport(one.name, options, one.reason, tuple(seen.tolist()), tuple(left.tolist()))
        emptied = np.flatnonzero((seen > 0) & (left == 0))
        if len(emptied):
            raise NothingToFilterError(
                f"filter {report} keeps none of the {seen[emptied[0]]} images "
                f"of class {emptied[0]}: loosen its options, or leave it out"
            )
        selected[selected] = keep
        observations = remaining
        reports.append(report)
    return Selection(selected, tuple(reports))


def _accept_former_options(cls: type[T]) -> type[T]:
    """Let a filter take the former names of its options for one release, with a warning."""
    original = cls.__init__

    @functools.wraps(original)
    def init(self: T, **options: Any) -> None:
        for old in FORMER_OPTIONS.keys() & options.keys():
            warn(f"{cls.__name__}({old}=…)", f"{FORMER_OPTIONS[old]}=…")
            options[FORMER_OPTIONS[old]] = options.pop(old)
        original(self, **options)

    cls.__init__ = init  # type: ignore[assignment]
    return cls


@final
@dataclass(frozen=True, kw_only=True)
class Correct:
    """Keep the images that dynamic routing gives their label.

    Attributes:
        confidence: by how much the label's capsule must be longer than the longest other, from 0 to 1.
    """

    name: ClassVar[str] = "correct"
    uses_columns: ClassVar[bool] = False
    confidence: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no pair of lengths can reach."""
        _check(0 <= self.confidence < 1, "confidence", self.confidence, "a number from 0 to below 1")

    @property
    def reason(self) -> str:
        """What the left-out images have in common."""
        if not self.confidence:
            return "dynamic routing gives them another class"
        return f"their label's capsule is not longer than all others by {self.confidence:g}"

    def keep(self, observations: Observations) -> NDArray[np.bool_]:
        """Return which of the images to keep ``(n)``."""
        lengths, rows = observations.lengths, np.arange(len(observations))
        own = lengths[rows, observations.labels]  # (n)
        others = lengths.copy()
        others[rows, observations.labels] = -np.inf
        return np.asarray(observations.correct & (own - others.max(1) >= self.confidence))


@final
@_accept_former_options
@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Keep the images whose ground-truth column is like their own class's mean column.

    An image is compared with the mean of the *other* images of its class. It would otherwise be like its class because
    it is part of it, the more so the smaller the class, while it is part of no other class that it is compared with.
    The only image of a class is kept, there being nothing to compare it with. A column without any variation (of
    length 0 for the cosine) has similarity 0 with everything.

    Attributes:
        measure: Pearson's correlation, the scalar product, or the cosine.
        keep_fraction: fraction of each class to keep: the images whose similarity with their own class's mean exceeds
            that with the most similar other class's by most; 0.95 when neither this nor ``margin`` is given.
        margin: instead, an image is kept when its similarity with its own class's mean minus that with the most
            similar other class's is at least this much.
    """

    name: ClassVar[str] = "similarity"
    uses_columns: ClassVar[bool] = True
    measure: Measure = "pearson"
    keep_fraction: float | None = None
    margin: float | None = None

    def __post_init__(self) -> None:
        """Refuse options without meaning."""
        _check(self.measure in get_args(Measure), "measure", self.measure, f"one of {', '.join(get_args(Measure))}")
        if self.margin is not None:
            _check(math.isfinite(self.margin), "margin", self.margin, "a finite number")
            _check(
                self.keep_fraction is None,
                "margin",
                self.margin,
                f"none together with keep_fraction={self.keep_fraction}",
            )
            return
        if self.keep_fraction is None:
            object.__setattr__(self, "keep_fraction", 0.95)  # set, so that reports show it
        fraction = self.keep_fraction or 0
        _check(0 < fraction <= 1, "keep_fraction", fraction, "a fraction of each class, above 0 and at most 1")

    @property
    def reason(self) -> str:
        """What the left-out images have in common."""
        if self.margin is None:
            limit = f"the {self.keep_fraction:g} kept ({self.measure})"
            return f"their columns tell their class's mean from others less than {limit}"
        return f"their columns are not more like their class's mean than another's by {self.margin:g} ({self.measure})"

    def keep(self, observations: Observations) -> NDArray[np.bool_]:
        """Return which of the images to keep ``(n)``."""
        own, other = self.similarities(observations)
        if self.keep_fraction is None:
            return own - other >= (self.margin or 0.0)
        keep = np.zeros(len(observations), bool)
        for label in range(observations.classes):
            members = observations.of_class(label)
            order = np.lexsort((-own[members], other[members] - own[members]))
            keep[members[order[: max(1, round(self.keep_fraction * len(members)))]]] = True
        return keep

    def similarities(self, observations: Observations) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the similarity of each column with the mean of its class's other images, and with the nearest mean.

        Returns:
            Both ``(n)``; infinite with its own class for the only image of one, minus infinite where no other class
            has images.
        """
        counts = observations.counts
        sums = observations.class_sums()  # (j, i)
        present = counts > 0
        means = self._prepared(sums[present] / counts[present, None])  # (classes with images, i)
        places = np.cumsum(present) - 1  # (j): row of a class's mean
        own, other = np.full(len(observations), np.inf), np.full(len(observations), -np.inf)
        for numbers, columns in observations.columns():
            labels = observations.labels[numbers]
            images = self._prepared(columns)  # (b, i)
            with_all = images @ means.T  # (b, classes with images)
            with_all[np.arange(len(labels)), places[labels]] = -np.inf
            other[numbers] = with_all.max(1)
            is_shared = counts[labels] > 1
            rest = sums[labels[is_shared]] - columns[is_shared]
            rest = self._prepared(rest / (counts[labels[is_shared], None] - 1))  # (b, i)
            own[numbers[is_shared]] = np.einsum("bi,bi->b", images[is_shared], rest)
        return own, other

    def _prepared(self, columns: NDArray[Any]) -> NDArray[np.float64]:
        """Return columns ``(b i)`` such that the measure is their scalar product."""
        columns = columns.astype(np.float64)
        if self.measure == "dot":
            return columns
        if self.measure == "pearson":
            centered = columns - columns.mean(1, keepdims=True)
            # What rounding leaves of a column without variation is none.
            centered[np.abs(centered).max(1) <= 1e-9 * np.abs(columns).max(1)] = 0
            columns = centered
        length = np.linalg.norm(columns, axis=1, keepdims=True)
        return columns / np.where(length > 0, length, 1)


# From columns (b i) to the numbers (b) of their clusters, and the clusters' centers seen from the class's mean (k …).
_Clusters = tuple[Callable[[NDArray[np.float32]], NDArray[np.integer]], NDArray[np.floating]]


@dataclass(frozen=True, kw_only=True)
class _Clustering(ABC):
    """Leave out outlying clusters of the ground-truth columns of a class."""

    name: ClassVar[str]
    uses_columns: ClassVar[bool] = True
    clusters: int = 20
    max_outlier_fraction: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse options without meaning."""
        fraction = self.max_outlier_fraction
        _check(self.clusters >= 2, "clusters", self.clusters, "at least 2")
        _check(0 < fraction < 1, "max_outlier_fraction", fraction, "a fraction of each class, above 0 and below 1")
        _check(0 <= self.seed < 2**32, "seed", self.seed, "a whole number from 0 to 2³² − 1")

    @property
    def reason(self) -> str:
        """What the left-out images have in common."""
        fraction = f"{self.max_outlier_fraction:g}"
        return (
            f"their columns are in the clusters farthest from their class's mean, which hold at most {fraction} of it"
        )

    def keep(self, observations: Observations) -> NDArray[np.bool_]:
        """Return which of the images to keep ``(n)``: those in clusters that are not outlying."""
        require(f"filter {self.name}", "sklearn")
        from sklearn.exceptions import ConvergenceWarning

        keep = np.ones(len(observations), bool)
        for label in range(observations.classes):
            members = observations.of_class(label)
            if len(members) < 2:
                continue
            random = np.random.default_rng([self.seed, label])
            chosen = members
            if len(members) > SAMPLE_SIZE:
                chosen = np.sort(random.choice(members, SAMPLE_SIZE, replace=False))
            sample = np.concatenate([columns for _, columns in observations.columns(chosen)])
            if (sample == sample[0]).all():
                continue
            with warnings.catch_warnings():
                # Where some columns are equal there are fewer clusters than asked for; a rough grouping is good enough.
                warnings.simplefilter("ignore", ConvergenceWarning)
                assign, centers = self._fit(sample)
            clusters = np.concatenate([assign(columns) for _, columns in observations.columns(members)])  # (m)
            sizes = np.bincount(clusters, minlength=len(centers))  # (k)
            keep[members] = ~is_outlying(sizes, centers, self.max_outlier_fraction)[clusters]
        return keep

    @abstractmethod
    def _fit(self, sample: NDArray[np.float32]) -> _Clusters:
        """Cluster columns ``(b i)``."""


@final
@_accept_former_options
@dataclass(frozen=True, kw_only=True)
class KMeans(_Clustering):
    """Leave out outlying clusters that K-means finds among a class's ground-truth columns.

    Attributes:
        clusters: of each class.
        max_outlier_fraction: largest fraction of a class in outlying clusters.
        seed: of what is random in finding clusters.
    """

    name: ClassVar[str] = "kmeans"

    def _fit(self, sample: NDArray[np.float32]) -> _Clusters:
        from sklearn.cluster import MiniBatchKMeans

        fitted = MiniBatchKMeans(min(self.clusters, len(sample)), n_init=3, random_state=self.seed).fit(sample)
        return fitted.predict, fitted.cluster_centers_ - sample.mean(0)


@final
@_accept_former_options
@dataclass(frozen=True, kw_only=True)
class GaussianMixture(_Clustering):
    """Leave out outlying clusters that a mixture of Gaussians (expectation-maximization) finds among a class's columns.

    The columns are first reduced to their principal components, each divided by its standard deviation.

    Attributes:
        clusters: Gaussians of each class.
        max_outlier_fraction: largest fraction of a class in outlying clusters.
        seed: of what is random in finding clusters.
        components: principal components.
    """

    name: ClassVar[str] = "em"
    components: int = 16

    def __post_init__(self) -> None:
        """Refuse options without meaning."""
        super().__post_init__()
        _check(self.components >= 1, "components", self.components, "at least 1")

    def _fit(self, sample: NDArray[np.float32]) -> _Clusters:
        from sklearn.decomposition import PCA
        from sklearn.mixture import GaussianMixture as Mixture

        # Of n columns n − 1 components vary; dividing by the deviation of another would blow up rounding errors.
        components = min(self.components, len(sample) - 1, sample.shape[1])
        reduction = PCA(components, whiten=True, random_state=self.seed)
        reduced = reduction.fit_transform(sample)  # (b, components)
        # Diagonal: a full matrix for each Gaussian would have more entries than a small class has images.
        mixture = Mixture(
            min(self.clusters, len(sample)), covariance_type="diag", reg_covar=1e-3, random_state=self.seed
        ).fit(reduced)
        return lambda columns: mixture.predict(reduction.transform(columns)), mixture.means_


FILTERS: dict[str, type[Correct | Similarity | KMeans | GaussianMixture]] = {
    "correct": Correct,
    "similarity": Similarity,
    "kmeans": KMeans,
    "em": GaussianMixture,
}


def is_outlying(
    sizes: NDArray[np.integer], centers: NDArray[np.floating], max_outlier_fraction: float
) -> NDArray[np.bool_]:
    """Return which clusters are outlying ``(k)``; see the top of this module.

    Args:
        sizes: number of images per cluster ``(k)``.
        centers: relative to the mean of the class ``(k …)``.
        max_outlier_fraction: largest fraction of all images that they may hold.
    """
    inwards = np.argsort(-np.linalg.norm(centers, axis=1), kind="stable")  # (k)
    result = np.zeros(len(sizes), bool)
    result[inwards[np.cumsum(sizes[inwards]) <= max_outlier_fraction * sizes.sum()]] = True
    return result


def _check(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}, expected {expected}")
