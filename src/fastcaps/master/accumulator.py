"""Accumulating routing coefficients by class into one matrix: sum, normalise, reduce (paper, section 5).

Three pure steps and a small class that holds their sums. Sums are float64, so that pieces in any order, or on any
number of machines, give the same result.

Containers take classes² × lower capsules numbers: 0.9 MB for MNIST's ten classes, 9 GB for a thousand. Each class's
container becomes its column of the matrix by itself, so that an accumulator may hold some of the classes only, and
`combined` makes the matrix from such parts, one after another or one on each of several machines.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Self, cast, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps._checks import check_normalization
from fastcaps.distributed import ALONE, World
from fastcaps.functional import Normalization, normalize
from fastcaps.functional.labels import checked_labels
from fastcaps.master.coefficients import MasterCoefficients, Method
from fastcaps.nn.capsnet import CapsNet
from fastcaps.nn.config import CapsNetConfig
from fastcaps.nn.pretrained import weights_hash

# Coefficients that are normalised at a time (0.5 MB), and asked of the network at a time (256 MB).
_NORMALIZED, _ROUTED = 2**16, 2**26
# What the parts of one matrix have in common.
_DESCRIBED = ("normalization", "lower", "upper", "iteration", "filters", "model_hash")


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
        only: range | None = None,
    ) -> None:
        """Start from nothing, for coefficient matrices of ``lower_capsules × classes``.

        Args:
            lower_capsules: rows of a matrix.
            classes: its columns.
            normalization: of the network's routing.
            lower: lower bound of Max-Min.
            upper: upper bound of Max-Min.
            only: the classes whose images will come, where a part of the sums is to be held; all when None.
        """
        if lower_capsules < 1 or classes < 2:
            raise ValueError(
                f"coefficients of {lower_capsules}×{classes} capsules can't be accumulated: "
                "expected at least 1 lower capsule and 2 classes"
            )
        check_normalization(normalization, lower, upper)
        self.normalization: Normalization = normalization
        self.lower, self.upper = lower, upper
        self.only = range(classes) if only is None else only
        if not 0 <= self.only.start <= self.only.stop <= classes or self.only.step != 1:
            raise ValueError(f"only is {only}, expected a range of the {classes} classes")
        self.containers = torch.zeros(len(self.only), lower_capsules, classes, dtype=torch.float64)  # (j, i, j)
        self.counts = torch.zeros(classes, dtype=torch.int64)  # (j)
        self.iteration: int | None = None
        self.filters: list[dict[str, Any]] = []
        self.model_hash: str | None = None

    @classmethod
    def for_model(cls, model: CapsNet, iteration: int, only: range | None = None) -> Self:
        """Start from nothing, for the coefficients of this iteration of a network."""
        config = model.config
        normalization = cast(Normalization, config.normalization)
        sums = cls(config.lower_capsules, config.classes, normalization, config.lower, config.upper, only)
        sums.iteration, sums.model_hash = iteration, weights_hash(model)
        return sums

    @classmethod
    def from_coefficients(cls, master: MasterCoefficients) -> Self:
        """The sums that a file of master coefficients keeps, to be merged with others or added to."""
        if master.containers is None:
            raise ValueError(
                f"the sums of these coefficients of {len(master.counts)} classes were not kept, since they were "
                "accumulated in parts: accumulate all images at once"
            )
        lower_capsules, classes = master.values.shape
        sums = cls(lower_capsules, classes, master.normalization, master.lower, master.upper)
        sums.containers += master.containers
        sums.counts += master.counts
        sums.iteration, sums.model_hash = master.iteration, master.model_hash
        sums.filters = copy.deepcopy(master.filters)
        return sums

    def update(self, coefficients: Tensor, labels: Tensor) -> Self:
        """Add the coefficients ``(b i j)`` of images with these labels ``(b)``."""
        _, lower_capsules, classes = self.containers.shape
        if coefficients.ndim != 3 or coefficients.shape[1:] != (lower_capsules, classes):
            raise ValueError(
                f"coefficients have shape {tuple(coefficients.shape)}, expected (batch, {lower_capsules}, {classes})"
            )
        labels = checked_labels(labels.cpu(), len(coefficients), classes)
        for label in labels.tolist():
            if label not in self.only:
                raise ValueError(
                    f"label {label} is outside the classes {self.only.start} … {self.only.stop - 1} of this part"
                )
        # Its smallest and largest number tell whether all are finite, without a tensor of answers.
        if len(labels) and not torch.stack(torch.aminmax(coefficients.detach())).isfinite().all():
            number = int((~coefficients.isfinite()).flatten(1).any(1).nonzero()[0])
            raise ValueError(
                f"coefficients of image {number} of this batch are not finite: check the network's weights"
            )
        # Added in float64 one by one: no copy is made of what may be large.
        for label, values in zip(labels.tolist(), coefficients.detach().cpu(), strict=True):
            self.containers[label - self.only.start].add_(values)
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

    def add_up(self, world: World) -> Self:
        """Replace the sums by those of all ranks, each of which has had some of the images."""
        world.add_up(self.containers, self.counts)
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
        return combined([self], provenance, method)

    def contribution(self, method: Method) -> Tensor:
        """What this part's classes bring to the matrix ``(i j)``, zero in other columns; parts add up.

        For ``"containers"`` and ``"columns"`` their own columns, for ``"pooled"`` the sum of all coefficients.
        """
        _, lower_capsules, classes = self.containers.shape
        if method == "pooled":
            return self.containers.sum(0)  # (i, j)
        found = torch.zeros(lower_capsules, classes, dtype=torch.float64)
        size = max(1, _NORMALIZED // classes)
        for sums, label in zip(self.containers, self.only, strict=True):
            # In pieces that stay in the cache: of each row only one number is wanted.
            for rows, own in zip(torch.split(sums, size), torch.split(found[:, label], size), strict=True):
                mean = rows / self.counts[label].clamp_min(1)  # (some of i, j)
                if method == "containers":
                    mean = normalize(mean, self.normalization, self.lower, self.upper)
                own.copy_(mean[:, label])
        return found

    def _settings(self) -> str:
        _, lower_capsules, classes = self.containers.shape
        bounds = f" from {self.lower} to {self.upper}" if self.normalization == "max_min" else ""
        text = f"{lower_capsules}×{classes} capsules with {self.normalization}{bounds}"
        if len(self.only) < classes:
            text += f", classes {self.only.start} … {self.only.stop - 1}"
        text += f", iteration {self.iteration}" if self.iteration is not None else ""
        text += "".join(f", filter {filter_words(entry['name'], entry['options'])}" for entry in self.filters)
        return text + (f", weights {self.model_hash[:12]}" if self.model_hash is not None else "")


def combined(
    parts: Iterable[MasterAccumulator],
    provenance: dict[str, Any] | None = None,
    method: Method = "containers",
    world: World = ALONE,
    *,
    keep_sums: bool = True,
) -> MasterCoefficients:
    """The master coefficients of accumulators that hold some of the classes each, and together all of them.

    Args:
        parts: at least one; each is done with when the next is asked for, so that they need not exist together.
        provenance: as for `MasterAccumulator.compute`.
        method: as for `MasterAccumulator.compute`.
        world: when the parts of other ranks hold other classes; then all get the same result.
        keep_sums: whether the result has the sums, too, where one part holds all classes.
    """
    if method not in get_args(Method):
        raise ValueError(f"method is {method!r}, expected one of {', '.join(get_args(Method))}")
    found: tuple[Tensor, Tensor] | None = None
    for part in parts:
        brought = part.contribution(method)
        found = (brought, part.counts.clone()) if found is None else (found[0] + brought, found[1] + part.counts)
        about = {name: getattr(part, name) for name in _DESCRIBED}
        kept = keep_sums and world.alone and len(part.only) == len(part.counts)
        whole = part.containers.clone() if kept else None
        del part  # before the next is made
    if found is None:
        raise ValueError("there are no parts to combine: expected at least one")
    values, counts = found
    world.add_up(values, counts)
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty:
        words = ", ".join(str(k) for k in empty)
        raise ValueError(
            f"no image of class {words} was accumulated, of {len(counts)} classes: every class needs at least one"
        )
    if method == "pooled":
        values = values / counts.sum()
    if method != "containers":
        values = normalize(values, about["normalization"], about["lower"], about["upper"])
    return MasterCoefficients(
        values=values.contiguous(),
        containers=whole,
        counts=counts,
        method=method,
        provenance=provenance or {},
        **copy.deepcopy(about),
    )


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
    world: World = ALONE,
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
        world: where each rank has its own images; then all get the same result.

    Returns:
        The master coefficients, for `fold`.
    """
    number = checked_iteration(model.config, iteration)
    sums = MasterAccumulator.for_model(model, number)
    sums.filters = copy.deepcopy(list(filters))
    seen = 0
    for images, labels in batches:
        total = len(labels)
        if keep is not None:
            chosen = torch.from_numpy(keep[seen : seen + total])
            if len(chosen) < total:
                raise ValueError(f"keep is for {len(keep)} images, but more came: it must be of the same images")
            images, labels = images[chosen.to(images.device)], labels[chosen.to(labels.device)]
        seen += total
        add_routed(model, images, labels, sums, number)
        observe(total)
    if keep is not None and seen != len(keep):
        raise ValueError(f"keep is for {len(keep)} images, but {seen} came: it must be of the same images")
    return sums.add_up(world).compute(provenance, method)


@torch.no_grad()
def add_routed(model: CapsNet, images: Tensor, labels: Tensor, sums: MasterAccumulator, iteration: int) -> None:
    """Add the coefficients that an iteration of routing gives images ``(b c h w)``, few at a time if they are large."""
    device = model.routing.weight.device
    size = max(1, _ROUTED // (model.config.lower_capsules * model.config.classes))
    for some, their in zip(torch.split(images, size), torch.split(labels, size), strict=True):
        if len(their):
            # The coefficients of iteration k don't depend on those that follow: route only that far.
            output = model(some.to(device), with_coefficients=True, iterations=iteration)
            sums.update(output.coefficients, their)
