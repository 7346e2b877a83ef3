"""Accumulating routing coefficients by class into one matrix: sum, normalise, reduce (paper, section 5).

Three pure steps and a small class that holds their sums. Sums are float64, so that pieces in any order, or on any
number of machines, give the same result.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Self, cast, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps._checks import check_normalization
from fastcaps.functional import Normalization, normalize
from fastcaps.functional.labels import checked_labels
from fastcaps.master.coefficients import MasterCoefficients, Method
from fastcaps.nn.capsnet import CapsNet
from fastcaps.nn.config import CapsNetConfig
from fastcaps.nn.pretrained import weights_hash


@final
class MasterAccumulator:
    """Sums of coefficient matrices by class: `update` with pieces, `merge` with another's sums, `compute`."""

    def __init__(
        self,
        lower_capsules: int,
        classes: int,
        normalization: Normalization = "max_min",
        lower: float = 0.0,
        upper: float = 1.0,
    ) -> None:
        """Start from nothing, for coefficient matrices of ``lower_capsules × classes``."""
        if lower_capsules < 1 or classes < 2:
            raise ValueError(
                f"coefficients of {lower_capsules}×{classes} capsules can't be accumulated: "
                "expected at least 1 lower capsule and 2 classes"
            )
        check_normalization(normalization, lower, upper)
        self.normalization: Normalization = normalization
        self.lower, self.upper = lower, upper
        self.containers = torch.zeros(classes, lower_capsules, classes, dtype=torch.float64)  # (j, i, j)
        self.counts = torch.zeros(classes, dtype=torch.int64)  # (j)
        self.iteration: int | None = None
        self.filters: list[dict[str, Any]] = []
        self.model_hash: str | None = None

    @classmethod
    def for_model(cls, model: CapsNet, iteration: int) -> Self:
        """Start from nothing, for the coefficients of this iteration of a network."""
        config = model.config
        normalization = cast(Normalization, config.normalization)
        sums = cls(config.lower_capsules, config.classes, normalization, config.lower, config.upper)
        sums.iteration, sums.model_hash = iteration, weights_hash(model)
        return sums

    @classmethod
    def from_coefficients(cls, master: MasterCoefficients) -> Self:
        """The sums that a file of master coefficients keeps, to be merged with others or added to."""
        lower_capsules, classes = master.values.shape
        sums = cls(lower_capsules, classes, master.normalization, master.lower, master.upper)
        sums.containers += master.containers
        sums.counts += master.counts
        sums.iteration, sums.model_hash = master.iteration, master.model_hash
        sums.filters = copy.deepcopy(master.filters)
        return sums

    def update(self, coefficients: Tensor, labels: Tensor) -> Self:
        """Add the coefficients ``(b i j)`` of images with these labels ``(b)``."""
        classes, lower_capsules, _ = self.containers.shape
        if coefficients.ndim != 3 or coefficients.shape[1:] != (lower_capsules, classes):
            raise ValueError(
                f"coefficients have shape {tuple(coefficients.shape)}, expected (batch, {lower_capsules}, {classes})"
            )
        labels = checked_labels(labels.cpu(), len(coefficients), classes)
        values = coefficients.detach().to("cpu", torch.float64)
        if not values.isfinite().all():
            number = int((~values.isfinite()).flatten(1).any(1).nonzero()[0])
            raise ValueError(
                f"coefficients of image {number} of this batch are not finite: check the network's weights"
            )
        self.containers.index_add_(0, labels, values)
        self.counts += torch.bincount(labels, minlength=classes)
        return self

    def merge(self, other: "MasterAccumulator") -> Self:
        """Add another's sums to these."""
        if self._settings() != other._settings():
            raise ValueError(f"can't merge sums of {other._settings()} into sums of {self._settings()}")
        self.containers += other.containers
        self.counts += other.counts
        for mine, theirs in zip(self.filters, other.filters, strict=True):
            for name in ("seen", "kept"):
                mine[name] = [a + b for a, b in zip(mine[name], theirs[name], strict=True)]
        return self

    def compute(self, provenance: dict[str, Any] | None = None, method: Method = "containers") -> MasterCoefficients:
        """The master coefficients of what was added so far.

        Args:
            provenance: anything worth keeping with them, as JSON.
            method: how they follow from the sums. ``"containers"`` is section 5: the mean matrix of each class, its
                rows normalised, and of each its own column. ``"columns"`` is the appendix's poor variant (step 4): only
                the classes' own columns are averaged, into one matrix, and its rows normalised. ``"pooled"`` doesn't
                look at classes: the mean of all matrices, its rows normalised.
        """
        if method not in get_args(Method):
            raise ValueError(f"method is {method!r}, expected one of {', '.join(get_args(Method))}")
        empty = (self.counts == 0).nonzero().flatten().tolist()
        if empty:
            words = ", ".join(str(k) for k in empty)
            raise ValueError(
                f"no image of class {words} was accumulated, of {len(self.counts)} classes: "
                "every class needs at least one"
            )
        return MasterCoefficients(
            values=self._values(method),
            containers=self.containers.clone(),
            counts=self.counts.clone(),
            normalization=self.normalization,
            lower=self.lower,
            upper=self.upper,
            method=method,
            iteration=self.iteration,
            filters=copy.deepcopy(self.filters),
            model_hash=self.model_hash,
            provenance=provenance or {},
        )

    def _values(self, method: Method) -> Tensor:
        """The reduction of the sums ``(j i j)`` to one matrix ``(i j)``."""
        if method == "pooled":
            mean = self.containers.sum(0) / self.counts.sum()  # (i, j)
            return normalize(mean, self.normalization, self.lower, self.upper)
        means = self.containers / self.counts[:, None, None]  # (j, i, j)
        if method == "columns":
            own = means.diagonal(dim1=0, dim2=2)  # (i, j): of each class's mean its own column
            return normalize(own, self.normalization, self.lower, self.upper).contiguous()
        rows = normalize(means, self.normalization, self.lower, self.upper)  # (j, i, j)
        return rows.diagonal(dim1=0, dim2=2).contiguous()  # (i, j): of each class's container its own column

    def _settings(self) -> str:
        classes, lower_capsules, _ = self.containers.shape
        bounds = f" from {self.lower} to {self.upper}" if self.normalization == "max_min" else ""
        text = f"{lower_capsules}×{classes} capsules with {self.normalization}{bounds}"
        text += f", iteration {self.iteration}" if self.iteration is not None else ""
        text += "".join(f", filter {filter_words(entry['name'], entry['options'])}" for entry in self.filters)
        return text + (f", weights {self.model_hash[:12]}" if self.model_hash is not None else "")


def filter_words(name: str, options: dict[str, Any]) -> str:
    """A filter with its options, such as ``correct (confidence=0.5)``."""
    words = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name} ({words})" if words else name


def checked_iteration(config: CapsNetConfig, iteration: int | Literal["after"] | None) -> int:
    """The number of an iteration of a network's routing: from 1 to its last, one more for ``"after"``, or its last."""
    if iteration is None:
        return config.iterations
    if iteration == "after":
        return config.iterations + 1
    if not 1 <= iteration <= config.iterations:
        raise ValueError(f"iteration is {iteration}, expected 1 to {config.iterations}, or 'after'")
    return iteration


@torch.no_grad()
def accumulate(
    model: CapsNet,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    iteration: int | Literal["after"] | None = None,
    method: Method = "containers",
    keep: NDArray[np.bool_] | None = None,
    filters: Sequence[dict[str, Any]] = (),
    observe: Callable[[int], None] = lambda images: None,
    provenance: dict[str, Any] | None = None,
) -> MasterCoefficients:
    """Run the training images through a trained network once and accumulate its routing coefficients.

    Args:
        model: the trained network; not touched.
        batches: images ``(b c h w)`` and labels ``(b)``, as the network sees them when it is used: no augmentation.
        iteration: of routing whose coefficients are taken, from 1 (where all are equal) to the network's last, which is
            taken when None; ``"after"`` for those of the update that follows the last.
        method: how the matrix follows from the sums, see `MasterAccumulator.compute`.
        keep: which images to take, of all that come ``(n)``; every one when None. See `apply_filters`.
        filters: its report, to be kept with the result.
        observe: told how many images were just done.
        provenance: anything worth keeping with the result, as JSON, such as where the images came from.

    Returns:
        The master coefficients, for `fold`.
    """
    number = checked_iteration(model.config, iteration)
    sums = MasterAccumulator.for_model(model, number)
    sums.filters = copy.deepcopy(list(filters))
    device = model.routing.weight.device
    seen = 0
    for images, labels in batches:
        total = len(labels)
        if keep is not None:
            chosen = torch.from_numpy(keep[seen : seen + total])
            if len(chosen) < total:
                raise ValueError(f"keep is for {len(keep)} images, but more came: it must be of the same images")
            images, labels = images[chosen.to(images.device)], labels[chosen.to(labels.device)]
        seen += total
        if len(labels):
            # The coefficients of iteration k don't depend on those that follow: route only that far.
            output = model(images.to(device), with_coefficients=True, iterations=number)
            sums.update(output.coefficients, labels)
        observe(total)
    if keep is not None and seen != len(keep):
        raise ValueError(f"keep is for {len(keep)} images, but {seen} came: it must be of the same images")
    return sums.compute(provenance, method)
