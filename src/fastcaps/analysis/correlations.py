"""Similarity of the routing coefficients of images: correlations of ground-truth columns (paper, sections 4 and 6).

An image's *ground-truth column* is its label's column in its coefficient matrix of the last iteration. With each column
scaled to zero mean and unit norm, z, Pearson's correlation of two is ⟨z, z'⟩, and the mean over all pairs of two
classes is ⟨mean z, mean z'⟩: no pair is computed explicitly, and one pass over the training set is enough. Within a
class the pairs of an image with itself are left out: ``(n²·‖mean z‖² − Σ‖z‖²) / (n(n − 1))``. A constant column has no
correlation and is left out; where nothing is left the result is NaN.
"""

from typing import Any, NamedTuple, Self, final

import numpy as np
import torch
from numpy.typing import NDArray

from fastcaps.distributed import World
from fastcaps.functional._deprecated import warn

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


class Neighbor(NamedTuple):
    """Another class, and how high the correlation with it is."""

    label: int
    correlation: float


def standardized_columns(columns: NDArray[np.floating]) -> Floats:
    """Return columns ``(n i)`` with zero mean and unit norm, in float64; NaN where a column is constant."""
    values = np.asarray(columns, np.float64)
    constant = values.max(1) == values.min(1)  # (n)
    centered = values - values.mean(1, keepdims=True)
    norms = np.linalg.norm(centered, axis=1, keepdims=True)  # (n, 1)
    norms[constant] = np.nan
    standardized: Floats = centered / norms
    return standardized


def pairwise_correlations(columns: NDArray[np.floating]) -> Floats:
    """Return the correlation of every column with every other, ``(n i)`` → ``(n n)``; NaN where one is constant."""
    z = standardized_columns(columns)  # (n, i)
    return np.clip(z @ z.T, -1, 1)


@final
class ClassCorrelations:
    """Sums of standardized ground-truth columns by class: `update` with batches, `merge` with another object.

    Attributes:
        sums: sums of z ``(j i)``.
        squares: sums of ‖z‖² ``(j)``.
        counts: number of columns added ``(j)``.
        constant: number of columns left out because they are constant ``(j)``.
    """

    def __init__(self, lower_capsules: int, classes: int) -> None:
        """Start with empty sums."""
        self.sums = np.zeros((classes, lower_capsules))
        self.squares = np.zeros(classes)
        self.counts = np.zeros(classes, np.int64)
        self.constant = np.zeros(classes, np.int64)

    def update(self, columns: NDArray[np.floating], labels: Labels) -> Self:
        """Add the ground-truth columns ``(b i)`` of images with these labels ``(b)``."""
        classes, lower_capsules = self.sums.shape
        if columns.shape != (len(labels), lower_capsules):
            raise ValueError(
                f"columns have shape {columns.shape}, expected ({len(labels)}, {lower_capsules}) "
                f"for {len(labels)} labels"
            )
        z = standardized_columns(columns) if len(labels) else np.zeros((0, lower_capsules))
        varied = np.isfinite(z).all(1)  # (b)
        np.add.at(self.sums, labels[varied], z[varied])
        np.add.at(self.squares, labels[varied], np.square(z[varied]).sum(1))
        self.counts += np.bincount(labels[varied], minlength=classes)
        self.constant += np.bincount(labels[~varied], minlength=classes)
        return self

    def merge(self, other: "ClassCorrelations") -> Self:
        """Add the sums of another object."""
        self.sums += other.sums
        self.squares += other.squares
        self.counts += other.counts
        self.constant += other.constant
        return self

    def all_reduce(self, world: World) -> Self:
        """Replace the sums by their sum over all ranks."""
        world.all_reduce(*map(torch.from_numpy, (self.sums, self.squares, self.counts, self.constant)))
        return self

    def between_classes(self) -> Floats:
        """Return the mean correlation over all pairs of images of two classes ``(j j)``, without self-pairs."""
        n = self.counts.astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self.sums @ self.sums.T / np.outer(n, n)
            within = (np.square(self.sums).sum(1) - self.squares) / (n * (n - 1))
        means[np.diag_indices_from(means)] = within
        means[~np.isfinite(means)] = np.nan
        return means

    def with_columns(self, columns: NDArray[np.floating]) -> Floats:
        """Return the mean correlation of given columns (row) with the images of each class (column).

        Args:
            columns: such as the columns of a master matrix, ``(i j)``.

        Returns:
            ``(j j)``, not symmetric.
        """
        z = standardized_columns(columns.T)  # (j, i)
        with np.errstate(invalid="ignore", divide="ignore"):
            means: Floats = z @ self.sums.T / self.counts
        return means


def neighbors(correlations: Floats, label: int) -> list[Neighbor]:
    """Return the other classes sorted by their correlation with a class, highest first; undefined ones are left out."""
    row = correlations[label]
    order = np.argsort(-row, kind="stable")
    return [Neighbor(int(k), float(row[k])) for k in order if k != label and np.isfinite(row[k])]


def mean_within_and_between(correlations: Floats) -> tuple[float, float]:
    """Return the means of the diagonal and of all other entries of ``(j j)``, ignoring NaN; NaN if nothing is left."""
    own = np.eye(len(correlations), dtype=bool)
    means = []
    for chosen in (correlations[own], correlations[~own]):
        defined = chosen[np.isfinite(chosen)]
        means.append(float(defined.mean()) if len(defined) else float("nan"))
    return means[0], means[1]


def __getattr__(name: str) -> Any:
    """Return what an old name stands for, with a warning; for one release."""
    new = {"Neighbour": "Neighbor", "neighbours": "neighbors"}.get(name)
    if new is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn(f"{__name__}.{name}", f"{__name__}.{new}")
    return globals()[new]
