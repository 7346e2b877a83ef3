"""Accumulating routing coefficients by class into one matrix: sum, normalise, reduce (paper, section 5).

Three pure steps and a small class that holds their sums. Sums are float64, so that pieces in any order, or on any
number of machines, give the same result.
"""

from collections.abc import Callable, Iterable
from typing import Any, Self, cast, final

import torch
from torch import Tensor

from fastcaps._checks import check_normalization
from fastcaps.functional import Normalization, normalize
from fastcaps.functional.labels import checked_labels
from fastcaps.master.coefficients import MasterCoefficients
from fastcaps.nn.capsnet import CapsNet
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
        self.model_hash: str | None = None

    @classmethod
    def from_coefficients(cls, master: MasterCoefficients) -> Self:
        """The sums that a file of master coefficients keeps, to be merged with others or added to."""
        lower_capsules, classes = master.values.shape
        sums = cls(lower_capsules, classes, master.normalization, master.lower, master.upper)
        sums.containers += master.containers
        sums.counts += master.counts
        sums.iteration, sums.model_hash = master.iteration, master.model_hash
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
        return self

    def compute(self, provenance: dict[str, Any] | None = None) -> MasterCoefficients:
        """The master coefficients of what was added so far.

        Args:
            provenance: anything worth keeping with them, as JSON.
        """
        empty = (self.counts == 0).nonzero().flatten().tolist()
        if empty:
            words = ", ".join(str(k) for k in empty)
            raise ValueError(
                f"no image of class {words} was accumulated, of {len(self.counts)} classes: "
                "every class needs at least one"
            )
        means = self.containers / self.counts[:, None, None]  # (j, i, j)
        rows = normalize(means, self.normalization, self.lower, self.upper)  # (j, i, j)
        values = rows.diagonal(dim1=0, dim2=2).contiguous()  # (i, j): of each class's container its own column
        return MasterCoefficients(
            values=values,
            containers=self.containers.clone(),
            counts=self.counts.clone(),
            normalization=self.normalization,
            lower=self.lower,
            upper=self.upper,
            iteration=self.iteration,
            model_hash=self.model_hash,
            provenance=provenance or {},
        )

    def _settings(self) -> str:
        classes, lower_capsules, _ = self.containers.shape
        bounds = f" from {self.lower} to {self.upper}" if self.normalization == "max_min" else ""
        text = f"{lower_capsules}×{classes} capsules with {self.normalization}{bounds}"
        text += f", iteration {self.iteration}" if self.iteration is not None else ""
        return text + (f", weights {self.model_hash[:12]}" if self.model_hash is not None else "")


@torch.no_grad()
def accumulate(
    model: CapsNet,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    iteration: int | None = None,
    observe: Callable[[int], None] = lambda images: None,
    provenance: dict[str, Any] | None = None,
) -> MasterCoefficients:
    """Run the training images through a trained network once and accumulate its routing coefficients.

    Args:
        model: the trained network; not touched.
        batches: images ``(b c h w)`` and labels ``(b)``, as the network sees them when it is used: no augmentation.
        iteration: of routing whose coefficients are taken, from 1; the network's last when None.
        observe: told how many images were just done.
        provenance: anything worth keeping with the result, as JSON, such as where the images came from.

    Returns:
        The master coefficients, for `fold`.
    """
    config = model.config
    if iteration is None:
        iteration = config.iterations
    if iteration < 1:
        raise ValueError(f"iteration is {iteration}, expected at least 1")
    sums = MasterAccumulator(
        config.lower_capsules,
        config.classes,
        cast(Normalization, config.normalization),
        config.lower,
        config.upper,
    )
    sums.iteration, sums.model_hash = iteration, weights_hash(model)
    device = model.routing.weight.device
    for images, labels in batches:
        # The coefficients of iteration k don't depend on those that follow: route only that far.
        output = model(images.to(device), with_coefficients=True, iterations=iteration)
        sums.update(output.coefficients, labels)
        observe(len(labels))
    return sums.compute(provenance)
