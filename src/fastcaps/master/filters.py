"""Filters: which training images' coefficients are good enough to be accumulated (paper, appendix A, step 3).

The paper takes all of them. It names two other ways, clustering and similarity; a third is to trust the network.

| filter | leaves out |
|---|---|
| `Correct` | images that dynamic routing gives another class, or its own too narrowly |
| `Similarity` | images whose ground-truth column is not much more like their own class's mean than like another's |
| `KMeans`, `GaussianMixture` | images in outlying clusters of their class's ground-truth columns |

The *outlying* clusters of a class are those whose centres lie farthest from the class's mean, taken from the outside
inwards as long as together they hold at most a given share of the class. Size alone doesn't do: a small cluster in the
middle is where the algorithm happened to cut. Nor does distance: a large cluster far away is another way of writing
the digit, and nothing nearer than it is an outlier. So whatever the number of clusters, no class loses more than that
share, and a small class may lose none.

Any object with the four members of `Filter` is a filter; the report keeps the options of one that is a dataclass.
"""

import dataclasses
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, final, get_args

import numpy as np
from numpy.typing import NDArray

from fastcaps._extras import require
from fastcaps.distributed import SINGLE, World
from fastcaps.master.accumulator import filter_words
from fastcaps.master.observations import NothingToFilterError, Observations

Measure = Literal["pearson", "dot", "cosine"]

# Columns of a class that clusters are fitted to: 19 MB for MNIST. All of its columns are then assigned to them.
_SAMPLE = 4096


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
        """Which of the images to keep ``(n)``."""


def apply_filters(
    filters: Sequence[Filter], observations: Observations, world: World = SINGLE
) -> tuple[NDArray[np.bool_], list[dict[str, Any]]]:
    """Apply filters one after the other; each sees only what those before it kept.

    Args:
        filters: in their order.
        observations: of all images.
        world: whose first rank decides for all.

    Returns:
        Which images are kept ``(n)``, for `accumulate`, and a report as JSON: for each filter ``name``, ``options``,
        ``reason`` and how many images of each class it has ``seen`` and ``kept``.
    """
    kept, report = _applied(filters, observations) if world.is_main else (np.empty(0, bool), [])
    # The first rank's alone.
    words = world.all_gather(np.frombuffer(json.dumps(report).encode() if world.is_main else b"", np.uint8))
    return world.all_gather(kept), json.loads(words.tobytes())


def _applied(filters: Sequence[Filter], observations: Observations) -> tuple[NDArray[np.bool_], list[dict[str, Any]]]:
    kept = np.ones(len(observations), bool)
    report = []
    for one in filters:
        options = _options(one)
        chosen = np.asarray(one.keep(observations))
        if chosen.shape != (len(observations),) or chosen.dtype != np.bool_:
            raise ValueError(
                f"filter {one.name} gave {chosen.dtype} of shape {chosen.shape}, "
                f"expected true or false for each of {len(observations)} images"
            )
        left = observations.subset(chosen)
        seen, remaining = observations.counts, left.counts
        emptied = np.flatnonzero((seen > 0) & (remaining == 0))
        if len(emptied):
            raise NothingToFilterError(
                f"filter {filter_words(one.name, options)} keeps none of the {seen[emptied[0]]} images "
                f"of class {emptied[0]}: "
                "loosen its options, or leave it out"
            )
        kept[kept] = chosen
        observations = left
        report.append(
            {
                "name": one.name,
                "options": options,
                "reason": one.reason,
                "seen": seen.tolist(),
                "kept": remaining.tolist(),
            }
        )
    return kept, report


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
        """What the others have in common."""
        if not self.confidence:
            return "dynamic routing gives them another class"
        return f"their label's capsule is not longer than all others by {self.confidence:g}"

    def keep(self, observations: Observations) -> NDArray[np.bool_]:
        """Which of the images to keep ``(n)``."""
        lengths, rows = observations.lengths, np.arange(len(observations))
        own = lengths[rows, observations.labels]  # (n)
        others = lengths.copy()
        others[rows, observations.labels] = -np.inf
        return np.asarray(observations.correct & (own - others.max(1) >= self.confidence))


@final
@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Keep the images whose ground-truth column is like their own class's mean column.

    An image is compared with the mean of the *other* images of its class. It would otherwise be like its class because
    it is part of it, the more so the smaller the class, while it is part of no other class that it is compared with.
    The only image of a class is kept, there being nothing to compare it with. A column without any variation (of
    length 0 for the cosine) has similarity 0 with everything.

    Attributes:
        measure: Pearson's correlation, the scalar product, or the cosine.
        kept: the part of each class that is kept, the images whose similarity with their own class's mean exceeds that
            with the most similar other class's by most; 0.95 when neither this nor ``margin`` is given.
        margin: instead, an image is kept when its similarity with its own class's mean minus that with the most
            similar other class's is at least this much.
    """

    name: ClassVar[str] = "similarity"
    uses_columns: ClassVar[bool] = True
    measure: Measure = "pearson"
    kept: float | None = None
    margin: float | None = None

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        _check(self.measure in get_args(Measure), "measure", self.measure, f"one of {', '.join(get_args(Measure))}")
        if self.margin is not None:
            _check(math.isfinite(self.margin), "margin", self.margin, "a finite number")
            _check(self.kept is None, "margin", self.margin, f"none together with kept={self.kept}")
            return
        if self.kept is None:
            object.__setattr__(self, "kept", 0.95)  # said, so that reports show it
        _check(0 < (self.kept or 0) <= 1, "kept", self.kept, "a part of each class, above 0 and at most 1")

    @property
    def reason(self) -> str:
        """What the others have in common."""
        if self.margin is None:
            return (
                f"their columns tell their class's mean from others less than the {self.kept:g} kept ({self.measure})"
            )
        return f"their columns are not more like their class's mean than another's by {self.margin:g} ({self.measure})"

    def keep(self, observations: Observations) -> NDArray[np.bool_]:
        """Which of the images to keep ``(n)``."""
        own, other = self.similarities(observations)
        if self.kept is None:
            return own - other >= (self.margin or 0.0)
        keep = np.zeros(len(observations), bool)
        for label in range(observations.classes):
            members = observations.of_class(label)
            order = np.lexsort((-own[members], other[members] - own[members]))
            keep[members[order[: max(1, round(self.kept * len(members)))]]] = True
        return keep

    def similarities(self, observations: Observations) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Similarity of each image's column with the mean of its class's other images, and with the nearest other mean.

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
            several = counts[labels] > 1
            rest = sums[labels[several]] - columns[several]
            rest = self._prepared(rest / (counts[labels[several], None] - 1))  # (b, i)
            own[numbers[several]] = np.einsum("bi,bi->b", images[several], rest)
        return own, other

    def _prepared(self, columns: NDArray[Any]) -> NDArray[np.float64]:
        """Columns ``(b i)`` such that the measure is their scalar product."""
        columns = columns.astype(np.float64)
        if self.measure == "dot":
            return columns
        if self.measure == "pearson":
            centred = columns - columns.mean(1, keepdims=True)
            # What rounding leaves of a column without variation is none.
            centred[np.abs(centred).max(1) <= 1e-9 * np.abs(columns).max(1)] = 0
            columns = centred
        length = np.linalg.norm(columns, axis=1, keepdims=True)
        return columns / np.where(length > 0, length, 1)


@final
@dataclass(frozen=True, kw_only=True)
class KMeans:
    """Leave out outlying clusters that K-means finds among a class's ground-truth columns.

    Attributes:
        clusters: of each class.
        outlying: the share of its class that outlying clusters may hold, at most.
        seed: of what is random in finding clusters.
    """

    name: ClassVar[str] = "kmeans"
    uses_columns: ClassVar[bool] = True
    clusters: int = 20
    outlying: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what can't be."""
        _check_clustering(self.clusters, self.outlying, self.seed)

    @property
    def reason(self) -> str:
        """What the others have in common."""
        return _clustering_reason(self.outlying)

    def keep(self, observations: Observations) -> NDArray[np.bool_]:
        """Which of the images to keep ``(n)``."""
        return _without_outlying_clusters(self.name, observations, self._fitted, self.outlying, self.seed)

    def _fitted(self, sample: NDArray[np.float32]) -> "_Clusters":
        from sklearn.cluster import MiniBatchKMeans

        found = MiniBatchKMeans(min(self.clusters, len(sample)), n_init=3, random_state=self.seed).fit(sample)
        return found.predict, found.cluster_centers_ - sample.mean(0)


@final
@dataclass(frozen=True, kw_only=True)
class GaussianMixture:
    """Leave out outlying clusters that a mixture of Gaussians (expectation-maximisation) finds among a class's columns.

    The columns are first reduced to their principal components, each divided by its standard deviation.

    Attributes:
        clusters: Gaussians of each class.
        components: principal components.
        outlying: the share of its class that outlying clusters may hold, at most.
        seed: of what is random in finding clusters.
    """

    name: ClassVar[str] = "em"
    uses_columns: ClassVar[bool] = True
    clusters: int = 20
    components: int = 16
    outlying: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what can't be."""
        _check_clustering(self.clusters, self.outlying, self.seed)
        _check(self.components >= 1, "components", self.components, "at least 1")

    @property
    def reason(self) -> str:
        """What the others have in common."""
        return _clustering_reason(self.outlying)

    def keep(self, observations: Observations) -> NDArray[np.bool_]:
        """Which of the images to keep ``(n)``."""
        return _without_outlying_clusters(self.name, observations, self._fitted, self.outlying, self.seed)

    def _fitted(self, sample: NDArray[np.float32]) -> "_Clusters":
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

# From columns (b i) to the numbers (b) of their clusters, and the clusters' centres seen from the class's mean (k …).
_Clusters = tuple[Callable[[NDArray[np.float32]], NDArray[np.integer]], NDArray[np.floating]]


def _without_outlying_clusters(
    name: str,
    observations: Observations,
    fitted: Callable[[NDArray[np.float32]], _Clusters],
    outlying: float,
    seed: int,
) -> NDArray[np.bool_]:
    """Cluster each class's columns and keep the images in clusters that are not outlying ``(n)``."""
    require(f"filter {name}", "sklearn")
    from sklearn.exceptions import ConvergenceWarning

    keep = np.ones(len(observations), bool)
    for label in range(observations.classes):
        members = observations.of_class(label)
        if len(members) < 2:
            continue
        random = np.random.default_rng([seed, label])
        chosen = members
        if len(members) > _SAMPLE:
            chosen = np.sort(random.choice(members, _SAMPLE, replace=False))
        sample = np.concatenate([columns for _, columns in observations.columns(chosen)])
        if (sample == sample[0]).all():
            continue
        with warnings.catch_warnings():
            # Where some columns are equal there are fewer clusters than asked for; a rough grouping is good enough.
            warnings.simplefilter("ignore", ConvergenceWarning)
            assign, centres = fitted(sample)
        clusters = np.concatenate([assign(columns) for _, columns in observations.columns(members)])  # (m)
        keep[members] = ~is_outlying(np.bincount(clusters, minlength=len(centres)), centres, outlying)[clusters]
    return keep


def is_outlying(sizes: NDArray[np.integer], centres: NDArray[np.floating], outlying: float) -> NDArray[np.bool_]:
    """Which clusters are outlying, as the head of this module says ``(k)``.

    Args:
        sizes: images in each ``(k)``.
        centres: seen from the class's mean ``(k …)``.
        outlying: the share of all images that they may hold, at most.
    """
    inwards = np.argsort(-np.linalg.norm(centres, axis=1), kind="stable")  # (k)
    result = np.zeros(len(sizes), bool)
    result[inwards[np.cumsum(sizes[inwards]) <= outlying * sizes.sum()]] = True
    return result


def _options(one: Any) -> dict[str, Any]:
    """A filter's options, as JSON."""
    fields = dataclasses.fields(one) if dataclasses.is_dataclass(one) else ()
    options = {field.name: getattr(one, field.name) for field in fields}
    plain: dict[str, Any] = json.loads(json.dumps(options, default=repr))
    return plain


def _clustering_reason(outlying: float) -> str:
    return f"their columns are in the clusters farthest from their class's mean, which hold at most {outlying:g} of it"


def _check_clustering(clusters: int, outlying: float, seed: int) -> None:
    _check(clusters >= 2, "clusters", clusters, "at least 2")
    _check(0 < outlying < 1, "outlying", outlying, "a part of each class, above 0 and below 1")
    _check(0 <= seed < 2**32, "seed", seed, "a whole number from 0 to 2³² − 1")


def _check(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}, expected {expected}")
