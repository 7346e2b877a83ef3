"""Accumulate routing coefficients by class into one matrix: sum, normalize, reduce (paper, section 5).

Three pure steps and a small class that holds their sums. Sums are float64, so that the result does not depend on the
order of the batches or on the number of machines.

The containers have classes² × lower capsules entries: 0.9 MB for MNIST's ten classes, 9 GB for a thousand. The
container of a class becomes one column of the matrix, independently of all others. So an accumulator may hold only some
of the classes, and `combined` builds the matrix from such parts, one after another or one per machine.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import (
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    final,
    get_args,
    overload,
)

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcaps.distributed import SINGLE, World
from fastcaps.functional import Normalization, get_normalization
from fastcaps.functional._deprecated import accept_bounds, warn
from fastcaps.functional.labels import checked_labels
from fastcaps.master.coefficients import MasterCoefficients, current_method, current_reports
from fastcaps.master.recording import PassCheck, capsule_layers, class_layer_path, observing
from fastcaps.master.summary import FilterReport, Method
from fastcaps.nn.capsnet import CapsNet
from fastcaps.nn.capsules import CapsuleLayer
from fastcaps.nn.inference import Batches, device_of, evaluating, run_batches
from fastcaps.nn.pretrained import weights_hash
from fastcaps.nn.routing import Routing

P = ParamSpec("P")
R = TypeVar("R")

# Number of coefficients that are normalized at a time (0.5 MB), and computed by the network at a time (256 MB).
NORMALIZE_ELEMENTS, ROUTE_ELEMENTS = 2**16, 2**26
# Attributes that all parts of one matrix share.
_DESCRIBED = ("normalization", "iteration", "filters", "model_hash")


@final
class MasterAccumulator:
    """Sums of coefficient matrices by class: `update` with batches, `merge` with another accumulator, `compute`."""

    @accept_bounds(3)
    def __init__(
        self,
        lower_capsules: int,
        classes: int,
        normalization: str | Normalization = "max_min",
        *,
        only: range | None = None,
    ) -> None:
        """Make an empty accumulator for coefficient matrices of ``lower_capsules × classes``.

        Args:
            lower_capsules: number of rows of a matrix.
            classes: number of columns of a matrix.
            normalization: normalization of the network's routing; a registered name or an object.
            only: the classes whose sums are held; all when None.
        """
        if lower_capsules < 1 or classes < 2:
            raise ValueError(
                f"coefficients of {lower_capsules}×{classes} capsules can't be accumulated: "
                "expected at least 1 lower capsule and 2 classes"
            )
        self.normalization = get_normalization(normalization)
        self.only = range(classes) if only is None else only
        if not 0 <= self.only.start <= self.only.stop <= classes or self.only.step != 1:
            raise ValueError(f"only is {only}, expected a range of the {classes} classes")
        self.containers = torch.zeros(len(self.only), lower_capsules, classes, dtype=torch.float64)  # (j, i, j)
        self.counts = torch.zeros(classes, dtype=torch.int64)  # (j)
        self.iteration: int | None = None
        self.filters: tuple[FilterReport, ...] = ()
        self.model_hash: str | None = None

    def __repr__(self) -> str:
        """Return sizes and number of images."""
        _, i, j = self.containers.shape
        return f"MasterAccumulator({i}×{j}, {int(self.counts.sum()):,} images, {self.normalization.name})"

    @classmethod
    def for_layer(
        cls, layer: CapsuleLayer, iteration: int, model_hash: str | None = None, only: range | None = None
    ) -> Self:
        """Make an empty accumulator for one iteration of a layer, in a model with the given hash."""
        sums = cls(layer.in_capsules, layer.out_capsules, layer.routing.normalization, only=only)
        sums.iteration, sums.model_hash = iteration, model_hash
        return sums

    @classmethod
    def from_coefficients(cls, master: MasterCoefficients) -> Self:
        """Return the sums of master coefficients, to merge them with others or to add more images."""
        if master.containers is None:
            raise ValueError(
                f"the sums of these coefficients of {len(master.counts)} classes were not kept, since they were "
                "accumulated in parts: accumulate all images at once"
            )
        lower_capsules, classes = master.values.shape
        sums = cls(lower_capsules, classes, master.normalization)
        sums.containers += master.containers
        sums.counts += master.counts
        sums.iteration, sums.model_hash = master.iteration, master.model_hash
        sums.filters = master.filters
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
        # Minimum and maximum tell whether all values are finite, without a large boolean tensor.
        if len(labels) and not torch.stack(torch.aminmax(coefficients.detach())).isfinite().all():
            number = int((~coefficients.isfinite()).flatten(1).any(1).nonzero()[0])
            raise ValueError(
                f"coefficients of image {number} of this batch are not finite: check the network's weights"
            )
        # Images are added one by one in float64, so that no copy of a large batch is made.
        for label, values in zip(labels.tolist(), coefficients.detach().cpu(), strict=True):
            self.containers[label - self.only.start].add_(values)
        self.counts += torch.bincount(labels, minlength=classes)
        return self

    def merge(self, other: "MasterAccumulator") -> Self:
        """Add the sums of another accumulator."""
        if self._settings() != other._settings():
            raise ValueError(f"can't merge sums of {other._settings()} into sums of {self._settings()}")
        self.containers += other.containers
        self.counts += other.counts
        self.filters = tuple(mine.merged(theirs) for mine, theirs in zip(self.filters, other.filters, strict=True))
        return self

    def all_reduce(self, world: World) -> Self:
        """Replace the sums by their sum over all ranks, each of which has processed some of the images."""
        world.all_reduce(self.containers, self.counts)
        return self

    def compute(self, provenance: dict[str, Any] | None = None, method: Method = "per_class") -> MasterCoefficients:
        """Return the master coefficients of all images added so far.

        Args:
            provenance: further information to store with them, as JSON.
            method: how they are computed from the sums. ``"per_class"`` (section 5) takes the mean matrix of each
                class, normalizes its rows, and keeps the column of that class. ``"columns"`` (appendix, step 4; worse)
                averages only the column of each class, and normalizes the rows of the resulting matrix. ``"pooled"``
                ignores classes: it normalizes the rows of the mean of all matrices.
        """
        return combined([self], provenance, method)

    def contribution(self, method: Method) -> Tensor:
        """Return the contribution ``(i j)`` of this part to the matrix, to be summed over all parts.

        For ``"per_class"`` and ``"columns"``, the columns of the classes of this part, and zero elsewhere. For
        ``"pooled"``, the sum of all coefficients.
        """
        _, lower_capsules, classes = self.containers.shape
        if method == "pooled":
            return self.containers.sum(0)  # (i, j)
        columns = torch.zeros(lower_capsules, classes, dtype=torch.float64)
        size = max(1, NORMALIZE_ELEMENTS // classes)
        for sums, label in zip(self.containers, self.only, strict=True):
            # In chunks that stay in the cache: only one entry of each row is needed.
            for rows, own in zip(torch.split(sums, size), torch.split(columns[:, label], size), strict=True):
                mean = rows / self.counts[label].clamp_min(1)  # (some of i, j)
                if method == "per_class":
                    mean = self.normalization(mean)
                own.copy_(mean[:, label])
        return columns

    def _settings(self) -> str:
        _, lower_capsules, classes = self.containers.shape
        options = ", ".join(f"{name}={value}" for name, value in self.normalization.options().items())
        text = f"{lower_capsules}×{classes} capsules with {self.normalization.name}({options})"
        if len(self.only) < classes:
            text += f", classes {self.only.start} … {self.only.stop - 1}"
        text += f", iteration {self.iteration}" if self.iteration is not None else ""
        text += "".join(f", filter {report}" for report in self.filters)
        return text + (f", weights {self.model_hash[:12]}" if self.model_hash is not None else "")


def combined(
    parts: Iterable[MasterAccumulator],
    provenance: dict[str, Any] | None = None,
    method: Method = "per_class",
    world: World = SINGLE,
    *,
    keep_sums: bool = True,
) -> MasterCoefficients:
    """Return the master coefficients of accumulators that each hold some of the classes, and together all of them.

    Args:
        parts: at least one accumulator; each is released before the next is requested, so a generator saves memory.
        provenance: as for `MasterAccumulator.compute`.
        method: as for `MasterAccumulator.compute`.
        world: the ranks, if the parts of other ranks hold other classes; all ranks get the same result.
        keep_sums: whether the result includes the sums, if one part holds all classes.
    """
    method = current_method(method)
    if method not in get_args(Method):
        raise ValueError(f"method is {method!r}, expected one of {', '.join(get_args(Method))}")
    total: tuple[Tensor, Tensor] | None = None
    for part in parts:
        share = part.contribution(method)
        total = (share, part.counts.clone()) if total is None else (total[0] + share, total[1] + part.counts)
        about = {name: getattr(part, name) for name in _DESCRIBED}
        is_whole = keep_sums and world.is_single and len(part.only) == len(part.counts)
        whole = part.containers.clone() if is_whole else None
        del part  # release it before the next one is made
    if total is None:
        raise ValueError("there are no parts to combine: expected at least one")
    values, counts = total
    world.all_reduce(values, counts)
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty:
        words = ", ".join(str(k) for k in empty)
        raise ValueError(
            f"no image of class {words} was accumulated, of {len(counts)} classes: every class needs at least one"
        )
    if method == "pooled":
        values = values / counts.sum()
    if method != "per_class":
        values = about["normalization"](values)
    return MasterCoefficients(
        values=values.contiguous(),
        containers=whole,
        counts=counts,
        method=method,
        provenance=provenance or {},
        **copy.deepcopy(about),
    )


def checked_iteration(routing: Routing, iteration: int | Literal["final"] | None) -> int:
    """Return the number of an iteration: from 1 to the last, one more for ``"final"``, or the last for None."""
    last = routing.iterations
    if iteration is None:
        return last
    if str(iteration) == "after":
        warn('iteration="after"', 'iteration="final"')
        iteration = "final"
    if iteration == "final":
        return last + 1
    if type(iteration) is not int or not 1 <= iteration <= last:
        raise ValueError(f"iteration is {iteration!r}, expected 1 to {last}, or 'final'")
    return iteration


@final
class MeanAccumulator:
    """The sum of the coefficient matrices of a hidden layer: `update`, `all_reduce`, `compute`."""

    def __init__(self, layer: CapsuleLayer, model_hash: str | None = None) -> None:
        """Make an empty accumulator for the coefficients of the last iteration of a layer."""
        self.sums = torch.zeros(layer.in_capsules, layer.out_capsules, dtype=torch.float64)  # (i, j)
        self.count = torch.zeros(1, dtype=torch.int64)
        self._routing, self._model_hash = layer.routing, model_hash

    def update(self, coefficients: Tensor) -> Self:
        """Add coefficients ``(b i j)``."""
        self.sums += coefficients.detach().cpu().sum(0, dtype=torch.float64)
        self.count += len(coefficients)
        return self

    def all_reduce(self, world: World) -> Self:
        """Replace the sums by their sum over all ranks, each of which has processed some of the images."""
        world.all_reduce(self.sums, self.count)
        return self

    def compute(self, filters: tuple[FilterReport, ...] = ()) -> MasterCoefficients:
        """Return the mean of all coefficients added so far."""
        if not int(self.count):
            raise ValueError("no image was accumulated: expected at least one")
        return MasterCoefficients(
            values=self.sums / self.count,
            containers=None,
            counts=self.count.clone(),
            normalization=self._routing.normalization,
            method="mean",
            iteration=self._routing.iterations,
            filters=filters,
            model_hash=self._model_hash,
        )


def accept_former_options(function: Callable[P, R]) -> Callable[P, R]:
    """Let `accumulate` take ``keep``, ``filters`` and ``provenance`` for one release, with a warning."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        keep, filters = kwargs.pop("keep", None), kwargs.pop("filters", ())
        if keep is not None:
            warn("keep and filters", "selection=apply_filters(…)")
            kwargs["selection"] = Selection(keep, filters)
        provenance = kwargs.pop("provenance", None)
        master = function(*args, **kwargs)
        if provenance is None:
            return master
        warn("provenance", "dataclasses.replace(master, provenance=…)")
        if isinstance(master, MasterCoefficients):
            return replace(master, provenance=provenance)
        return {
            path: replace(one, provenance=provenance)
            for path, one in cast(dict[str, MasterCoefficients], master).items()
        }

    return cast(Callable[P, R], wrapper)


class Selection(NamedTuple):
    """Which images to accumulate, as `apply_filters` chose them.

    Attributes:
        keep: whether to accumulate each image ``(n)``.
        report: what each filter did.
    """

    keep: NDArray[np.bool_]
    report: Sequence[FilterReport]


class _Options(TypedDict, total=False):
    iteration: int | Literal["final"] | None
    method: Method
    class_layer: str | None
    selection: Selection | None
    observe: Callable[[int], None]
    world: World


@overload
def accumulate(  # type: ignore[overload-overlap]
    model: CapsNet, batches: Batches, **options: Unpack[_Options]
) -> MasterCoefficients: ...


@overload
def accumulate(model: nn.Module, batches: Batches, **options: Unpack[_Options]) -> dict[str, MasterCoefficients]: ...


@accept_former_options
def accumulate(
    model: nn.Module,
    batches: Batches,
    *,
    iteration: int | Literal["final"] | None = None,
    method: Method = "per_class",
    class_layer: str | None = None,
    selection: Selection | None = None,
    observe: Callable[[int], None] = lambda images: None,
    world: World = SINGLE,
) -> MasterCoefficients | dict[str, MasterCoefficients]:
    """Run the training images through a trained network once and accumulate its routing coefficients.

    The coefficients of the class layer are accumulated per class, as in the paper. The capsules of a hidden layer are
    not classes, so its coefficients are averaged over all images; this goes beyond the paper. The model runs in
    evaluation mode; its own mode is restored afterwards.

    Args:
        model: the trained network: a `CapsNet`, or any module with capsule layers.
        batches: any iterable of inputs ``(b …)`` and labels ``(b)``, such as a list or a DataLoader; without
            augmentation, as the network sees them when it is used.
        iteration: iteration of the class layer's routing whose coefficients are accumulated, from 1 (where all are
            equal) to the last (default); ``"final"`` for the update after the last iteration.
        method: how the class layer's matrix is computed from the sums, see `MasterAccumulator.compute`.
        class_layer: path of the layer whose capsules are the classes; the last by default.
        selection: the images to accumulate, from `apply_filters`; all by default.
        observe: called with the number of images after each batch.
        world: the ranks, each with its own images; all get the same result.

    Returns:
        The master coefficients, for `fold`: one for a `CapsNet`, otherwise one per capsule layer, by its path.
    """
    layers = capsule_layers(model)
    path = class_layer_path(layers, class_layer)
    model_hash = weights_hash(model)
    sums = MasterAccumulator.for_layer(layers[path], checked_iteration(layers[path].routing, iteration), model_hash)
    sums.filters = () if selection is None else current_reports(selection.report)
    hidden = {name: MeanAccumulator(layer, model_hash) for name, layer in layers.items() if name != path}
    images = 0

    def step(inputs: Tensor, labels: Tensor) -> None:
        nonlocal images
        first, images = images, images + len(labels)
        if selection is not None:
            if images > len(selection.keep):
                raise _wrong_selection(selection, "more")
            chosen = torch.from_numpy(selection.keep[first:images]).to(inputs.device)
            inputs, labels = inputs[chosen], labels[chosen]
        accumulate_batch(model, inputs, labels, path, sums, hidden)

    run_batches(model, batches, step, observe=observe)
    if selection is not None and images != len(selection.keep):
        raise _wrong_selection(selection, images)
    if not images and world.is_single:
        raise ValueError("there were no images to accumulate: is the loader empty, or the generator used up?")
    master = sums.all_reduce(world).compute(method=method)
    if isinstance(model, CapsNet):
        return master
    means = {name: mean.all_reduce(world).compute(filters=sums.filters) for name, mean in hidden.items()}
    return {name: master if name == path else means[name] for name in layers}


def _wrong_selection(selection: Selection, images: int | str) -> ValueError:
    return ValueError(
        f"the selection is for {len(selection.keep)} images, but {images} came: it must be of the same images"
    )


@torch.no_grad()
def accumulate_batch(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    class_layer: str,
    sums: MasterAccumulator,
    hidden: Mapping[str, MeanAccumulator] | None = None,
) -> None:
    """Add the routing coefficients of inputs ``(b …)``, in chunks if they are large.

    Args:
        model: the trained network.
        inputs: ``(b …)``.
        labels: ``(b)``.
        class_layer: path of the layer whose capsules are the classes.
        sums: accumulator of that layer.
        hidden: accumulators of other layers by their path.
    """
    layers = capsule_layers(model)
    number, last = sums.iteration, layers[class_layer].routing.iterations
    check = PassCheck(layers, class_layer)
    chunk_labels = labels

    def observer(path: str, lower_capsules: Tensor) -> Tensor:
        layer, first = layers[path], check.start(path, lower_capsules)
        output = layer.route(lower_capsules)
        if path != class_layer:
            if hidden is not None:
                hidden[path].update(output.coefficients)
            return output.capsules
        accumulated = output if number in (None, last) else layer.route(lower_capsules, number)
        image_labels = chunk_labels[first : first + len(lower_capsules)]
        if len(image_labels) == len(lower_capsules):  # otherwise `check.finish` raises
            sums.update(accumulated.coefficients, image_labels)
        return output.capsules

    size = max(1, ROUTE_ELEMENTS // max(layer.in_capsules * layer.out_capsules for layer in layers.values()))
    with evaluating(model), observing(layers, observer):
        for chunk, chunk_labels in zip(torch.split(inputs, size), torch.split(labels, size), strict=True):
            if len(chunk_labels):
                model(chunk.to(device_of(model)))
                check.finish(len(chunk_labels))
