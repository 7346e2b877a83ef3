"""Filters: choose the training images whose coefficients are accumulated (paper, appendix A, step 3).

The paper accumulates all images. It names two alternatives, clustering and similarity; a third is to keep the images
that the network classifies correctly.

| filter | leaves out |
|---|---|
| `Correct` | images that dynamic routing classifies wrongly, or correctly with a small margin |
| `Similarity` | images whose ground-truth column is not clearly closest to the mean column of their own class |
| `KMeans`, `GaussianMixture` | images in outlying clusters of the ground-truth columns of their class |

The *outlying* clusters of a class are those whose centers are farthest from the mean of the class. They are taken from
the outside inwards as long as together they contain at most a given fraction of the class. Size alone is no criterion:
a small cluster in the middle only shows where the algorithm happened to cut. Nor is distance: a large cluster far away
is another way of writing the digit, and nothing nearer to the mean is an outlier. So no class loses more than that
fraction, for any number of clusters, and a small class may lose nothing.

Any object with the four members of `Filter` is a filter; if it is a dataclass, the report includes its options.
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

# Number of columns of a class that clusters are fitted to: 19 MB for MNIST. Then all its columns are assigned to them.
SAMPLE_SIZE = 4096


class Filter(Protocol):
    """Interface of a filter."""

    @property
    def name(self) -> str:
        """The name of the filter in reports."""

    @property
    def reason(self) -> str:
        """Why images are left out, as a clause such as ``"dynamic routing gives them another class"``."""

    @property
    def uses_columns(self) -> bool:
        """Whether it uses ground-truth columns; these are useless at iteration 1, where all coefficients are equal."""

    def keep(self, observations: Observations) -> NDArray[np.bool_]:
        """Return which of the images to keep ``(n)``."""


def apply_filters(filters: Sequence[Filter], observations: Observations, world: World = SINGLE) -> Selection:
    """Apply filters in sequence; each sees only the images that the previous ones kept.

    Args:
        filters: the filters, in their order.
        observations: observations of all images.
        world: the ranks; rank 0 decides for all.
    """
    selection = _select(filters, observations) if world.is_main else Selection(np.empty(0, bool), ())
    # Only rank 0 has the report.
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
    """Keep the images that dynamic routing classifies correctly.

    Attributes:
        confidence: minimum difference between the length of the label's capsule and the longest other one, from 0 to 1.
    """

    name: ClassVar[str] = "correct"
    uses_columns: ClassVar[bool] = False
    confidence: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError for a difference that lengths can't have."""
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
    """Keep the images whose ground-truth column is similar to the mean column of their class.

    An image is compared with the mean of the *other* images of its class. Including the image itself would bias the
    comparison towards its own class, the more so the smaller the class. The only image of a class is kept, because it
    can't be compared. A constant column (for the cosine, a column of length 0) has similarity 0 with everything.

    Attributes:
        measure: Pearson's correlation, the scalar product, or the cosine.
        keep_fraction: fraction of each class to keep: the images with the largest difference between the similarity
            with their own class and with the most similar other class; 0.95 if neither this nor ``margin`` is given.
        margin: instead of ``keep_fraction``, the minimum of this difference for an image to be kept.
    """

    name: ClassVar[str] = "similarity"
    uses_columns: ClassVar[bool] = True
    measure: Measure = "pearson"
    keep_fraction: float | None = None
    margin: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for invalid options."""
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
        """Return the similarity of each column with the rest of its class, and with the most similar other class.

        Returns:
            Both ``(n)``. The first is infinite for the only image of a class, the second is minus infinity if no other
            class has images.
        """
        counts = observations.counts
        sums = observations.class_sums()  # (j, i)
        present = counts > 0
        means = self._prepared(sums[present] / counts[present, None])  # (classes with images, i)
        places = np.cumsum(present) - 1  # (j): row of the mean of each class
        own, other = np.full(len(observations), np.inf), np.full(len(observations), -np.inf)
        for numbers, columns in observations.columns():
            labels = observations.labels[numbers]
            images = self._prepared(columns)  # (b, i)
            with_all = images @ means.T  # (b, classes with images)
            with_all[np.arange(len(labels)), places[labels]] = -np.inf
            other[numbers] = with_all.max(1)
            comparable = counts[labels] > 1
            other_sums = sums[labels[comparable]] - columns[comparable]
            other_means = self._prepared(other_sums / (counts[labels[comparable], None] - 1))  # (b, i)
            own[numbers[comparable]] = np.einsum("bi,bi->b", images[comparable], other_means)
        return own, other

    def _prepared(self, columns: NDArray[Any]) -> NDArray[np.float64]:
        """Return columns ``(b i)`` such that the measure is their scalar product."""
        columns = columns.astype(np.float64)
        if self.measure == "dot":
            return columns
        if self.measure == "pearson":
            centered = columns - columns.mean(1, keepdims=True)
            # Rounding errors of a constant column don't count as variation.
            centered[np.abs(centered).max(1) <= 1e-9 * np.abs(columns).max(1)] = 0
            columns = centered
        length = np.linalg.norm(columns, axis=1, keepdims=True)
        return columns / np.where(length > 0, length, 1)


# A function from columns (b i) to the indices (b) of their clusters, and the centers relative to the class mean (k …).
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
        """Raise ValueError for invalid options."""
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
                # Equal columns give fewer clusters than requested; a rough grouping is good enough.
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
        clusters: number of clusters per class.
        max_outlier_fraction: largest fraction of a class in outlying clusters.
        seed: seed of the clustering.
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
    """Leave out outlying clusters that a Gaussian mixture (expectation-maximization) finds among a class's columns.

    The columns are first reduced to their principal components, each divided by its standard deviation.

    Attributes:
        clusters: number of Gaussians per class.
        max_outlier_fraction: largest fraction of a class in outlying clusters.
        seed: seed of the clustering.
        components: number of principal components.
    """

    name: ClassVar[str] = "em"
    components: int = 16

    def __post_init__(self) -> None:
        """Raise ValueError for invalid options."""
        super().__post_init__()
        _check(self.components >= 1, "components", self.components, "at least 1")

    def _fit(self, sample: NDArray[np.float32]) -> _Clusters:
        from sklearn.decomposition import PCA
        from sklearn.mixture import GaussianMixture as Mixture

        # n columns have at most n − 1 components with variance; whitening another one would amplify rounding errors.
        components = min(self.components, len(sample) - 1, sample.shape[1])
        reduction = PCA(components, whiten=True, random_state=self.seed)
        reduced = reduction.fit_transform(sample)  # (b, components)
        # Diagonal covariance: a full matrix per Gaussian would have more entries than a small class has images.
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
