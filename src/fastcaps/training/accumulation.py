"""Accumulate over a part of a data set, in any number of processes and within the available memory.

If the sums of all classes fit into memory, each rank takes its share of the images, and the sums are reduced over all
ranks. Otherwise classes are divided: each rank takes all images of some classes, in groups of classes that fit, and
only finished columns are exchanged. In both cases each image is read once, by one rank, and the matrix is the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps._machine import free_bytes
from fastcaps.data import DataSet, Split, batches
from fastcaps.distributed import SINGLE, World, current
from fastcaps.master import MasterAccumulator, MasterCoefficients, Method, Selection, accumulate
from fastcaps.master.accumulator import accumulate_batch, checked_iteration, combined
from fastcaps.nn import CapsNet
from fastcaps.nn.inference import evaluating
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training.run import training_provenance
from fastcaps.training.settings import TrainSettings

# Copies of the sums in memory: the sums themselves, those of the result, and the content of the file.
_COPIES = 3
_BYTES_PER_NUMBER = 8
# Lower limit of the memory that may be used.
_MIN_BYTES = 2**28


class AccumulateOptions(TypedDict, total=False):
    """Options of `fastcaps.accumulate` that `accumulate_split` takes; ``selection`` covers the images of all ranks."""

    iteration: int | Literal["final"] | None
    method: Method
    selection: Selection | None
    observe: Callable[[int], None]
    provenance: dict[str, Any] | None
    world: World


class Plan(NamedTuple):
    """How classes are divided so that their sums fit into memory.

    Attributes:
        parts: the groups of classes that this rank processes one after another; None if all classes fit at once.
        message: explanation for the user; empty if all classes fit at once.
    """

    parts: list[range] | None
    message: str


def plan(counts: NDArray[np.int64], lower_capsules: int, memory: int, world: World = SINGLE) -> Plan:
    """Decide how to divide the classes so that their sums fit into memory.

    Args:
        counts: images per class ``(j)``.
        lower_capsules: rows of a coefficient matrix.
        memory: bytes that sums may take in each process; the same on all ranks.
        world: the ranks that share the work.
    """
    classes = len(counts)
    class_bytes = classes * lower_capsules * _BYTES_PER_NUMBER
    if _COPIES * classes * class_bytes <= memory:
        return Plan(None, "")
    # Each rank gets consecutive classes with about the same number of images.
    before = np.concatenate([[0], np.cumsum(counts)])  # (j + 1)
    bounds = np.searchsorted(before, before[-1] * np.arange(world.size + 1) / world.size)  # (ranks + 1)
    bounds[0], bounds[-1] = 0, classes
    own = range(int(bounds[world.rank]), int(bounds[world.rank + 1]))
    size = max(1, memory // class_bytes)
    parts = [own[k : k + size] for k in range(0, len(own), size)] or [own]
    where = f" by {world.size} processes" if not world.is_single else ""
    message = (
        f"the sums of {classes} classes take {classes * class_bytes / 1e9:.2g} GB, and {memory / 1e9:.2g} GB are "
        f"available: classes are taken {min(size, max(np.diff(bounds)))} at a time{where}, and sums are not stored"
    )
    return Plan(parts, message)


def available_memory(world: World = SINGLE) -> int:
    """Return the bytes that each process may use: its share of half of the free memory, at least 256 MB.

    With several ranks, return the minimum over all ranks.
    """
    return world.all_min(max(_MIN_BYTES, free_bytes() // (2 * world.local_size)))


def accumulate_split(
    model: CapsNet,
    images: Split,
    view: Callable[[Tensor], Tensor],
    batch_size: int,
    *,
    memory: int | None = None,
    announce: Callable[[str], None] = lambda message: None,
    **options: Unpack[AccumulateOptions],
) -> MasterCoefficients:
    """Accumulate over images, each read once by one rank.

    Args:
        model: the trained network.
        images: images whose coefficients are accumulated.
        view: converts images to inputs, as for `fastcaps.data.batches`.
        batch_size: images per batch on each rank.
        memory: bytes that sums may take in each process; `available_memory` when None.
        announce: called with an explanation if classes are divided.
        options: as for `fastcaps.accumulate`; all ranks of ``world`` get the same result.
    """
    config, world, selection = model.config, options.get("world", SINGLE), options.get("selection")
    chosen = torch.arange(len(images)) if selection is None else torch.from_numpy(selection.keep).nonzero().flatten()
    counts = torch.bincount(images.labels[chosen], minlength=config.classes).numpy()
    planned = plan(counts, config.lower_capsules, available_memory(world) if memory is None else memory, world)
    if planned.parts is None:
        share = world.share(len(images))
        part = images.subset(torch.arange(len(images))[share])
        master = accumulate(
            model,
            batches(part, batch_size, view=view),
            iteration=options.get("iteration"),
            method=options.get("method", "per_class"),
            selection=None if selection is None else Selection(selection.keep[share], selection.report),
            observe=options.get("observe", lambda count: None),
            world=world,
        )
        return replace(master, provenance=options.get("provenance") or {})
    announce(planned.message)
    number, model_hash = checked_iteration(model.routing.routing, options.get("iteration")), weights_hash(model)
    observe: Callable[[int], None] = options.get("observe", lambda count: None)

    def sums(parts: Sequence[range]) -> Iterator[MasterAccumulator]:
        for classes in parts:
            accumulator = MasterAccumulator.for_layer(model.routing, number, model_hash, classes)
            accumulator.filters = () if selection is None else tuple(selection.report)
            members = (images.labels[chosen] >= classes.start) & (images.labels[chosen] < classes.stop)
            for inputs, labels in batches(images.subset(chosen[members]), batch_size, view=view):
                accumulate_batch(model, inputs, labels, "routing", accumulator)
                observe(len(labels))
            yield accumulator
            del accumulator

    method = options.get("method", "per_class")
    return combined(sums(planned.parts), options.get("provenance"), method, world, keep_sums=False)


def accumulate_between_epochs(
    model: CapsNet,
    images: Split,
    data: DataSet,
    settings: TrainSettings,
    epoch: int,
    previous: MasterCoefficients | None,
    observe: Callable[[str, int], None],
) -> MasterCoefficients:
    """Accumulate the coefficients that the next epochs of a run are trained with, in all processes.

    Args:
        model: the network in training; its mode is restored afterwards.
        images: images whose coefficients are accumulated.
        data: their data set.
        settings: settings of the run.
        epoch: number of epochs done.
        previous: coefficients of the previous epochs, whose iteration and method are reused.
        observe: called with the task and the number of images after each batch.
    """
    task, world = "accumulating", current()

    def announce(message: str) -> None:
        nonlocal task
        task = "accumulating in parts"

    iteration: int | Literal["final"] | None = None if previous is None else previous.iteration
    if iteration == model.routing.routing.iterations + 1:
        iteration = "final"
    with evaluating(model):
        return accumulate_split(
            model,
            images,
            data.augmentation.test_view,
            settings.batch_size,
            iteration=iteration,
            method="per_class" if previous is None else cast(Method, previous.method),
            observe=world.counting(lambda count: observe(task, count)),
            announce=announce,
            world=world,
            provenance={**training_provenance(data, settings), "epoch": epoch},
        )
