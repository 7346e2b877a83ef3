"""Accumulating over a part of a data set, in as many processes as there are and within the memory at hand.

As long as the containers of all classes fit, each rank takes its share of the images and the sums are added up. Where
they don't, classes are divided: each rank takes all images of some classes, as many classes at a time as fit, and only
the finished columns travel. Either way an image is read once, by one rank, and the matrix is the same.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps._machine import free_bytes
from fastcaps.data import DataSet, Split, batches
from fastcaps.distributed import SINGLE, World, current
from fastcaps.master import MasterAccumulator, MasterCoefficients, Method, accumulate
from fastcaps.master.accumulator import accumulate_batch, checked_iteration, combined
from fastcaps.nn import CapsNet
from fastcaps.nn.inference import evaluating
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training.run import training_provenance
from fastcaps.training.settings import TrainSettings

# Sums, their copy in the result, and the content of the file.
_COPIES = 3
_NUMBER = 8
# Bytes that are never too many.
_LEAST = 2**28


class Plan(NamedTuple):
    """How containers are held.

    Attributes:
        parts: the classes that this rank takes one after another; None when all fit at once.
        words: the same for people; empty when all fit at once.
    """

    parts: list[range] | None
    words: str


def plan(counts: NDArray[np.int64], lower_capsules: int, memory: int, world: World = SINGLE) -> Plan:
    """Decide how containers are held.

    Args:
        counts: images of each class ``(j)``.
        lower_capsules: rows of a coefficient matrix.
        memory: bytes that they may take in each process; the same on all ranks.
        world: the ranks that share the work.
    """
    classes = len(counts)
    one = classes * lower_capsules * _NUMBER
    if _COPIES * classes * one <= memory:
        return Plan(None, "")
    # Neighbouring classes with about as many images for each rank.
    before = np.concatenate([[0], np.cumsum(counts)])  # (j + 1)
    bounds = np.searchsorted(before, before[-1] * np.arange(world.size + 1) / world.size)  # (ranks + 1)
    bounds[0], bounds[-1] = 0, classes
    mine = range(int(bounds[world.rank]), int(bounds[world.rank + 1]))
    size = max(1, memory // one)
    parts = [mine[k : k + size] for k in range(0, len(mine), size)] or [mine]
    where = f" by {world.size} processes" if not world.is_single else ""
    words = (
        f"the sums of {classes} classes take {classes * one / 1e9:.2g} GB, and {memory / 1e9:.2g} GB are at hand: "
        f"classes are taken {min(size, max(np.diff(bounds)))} at a time{where}, and sums are not kept"
    )
    return Plan(parts, words)


def memory_at_hand(world: World = SINGLE) -> int:
    """Bytes that each process may take: half of what is free on its machine, a quarter of a gigabyte at least.

    Of several ranks the least.
    """
    return world.all_min(max(_LEAST, free_bytes() // (2 * world.local_size)))


def accumulate_split(
    model: CapsNet,
    images: Split,
    view: Callable[[Tensor], Tensor],
    batch_size: int,
    *,
    iteration: int | Literal["after"] | None = None,
    method: Method = "containers",
    keep: NDArray[np.bool_] | None = None,
    filters: Sequence[dict[str, Any]] = (),
    observe: Callable[[int], None] = lambda images: None,
    announce: Callable[[str], None] = lambda words: None,
    provenance: dict[str, Any] | None = None,
    memory: int | None = None,
    world: World = SINGLE,
) -> MasterCoefficients:
    """Accumulate over images, each read once by one rank.

    Args:
        model: the trained network; not touched.
        images: whose coefficients are accumulated.
        view: of them, as for `batches`.
        batch_size: images at a time on each rank.
        iteration: as for `accumulate`.
        method: as for `accumulate`.
        keep: which images to take ``(n)``; every one when None.
        filters: the report of the filters that chose them.
        observe: told how many images were just done.
        announce: told how classes are divided, where they are.
        provenance: as for `accumulate`.
        memory: bytes that sums may take in each process; `memory_at_hand` when None.
        world: the ranks that share the work; all get the same result.
    """
    config = model.config
    chosen = torch.arange(len(images)) if keep is None else torch.from_numpy(keep).nonzero().flatten()
    counts = torch.bincount(images.labels[chosen], minlength=config.classes).numpy()
    planned = plan(counts, config.lower_capsules, memory_at_hand(world) if memory is None else memory, world)
    if planned.parts is None:
        mine = world.share(len(images))
        return accumulate(
            model,
            batches(images.subset(torch.arange(len(images))[mine]), batch_size, view=view),
            iteration=iteration,
            method=method,
            keep=None if keep is None else keep[mine],
            filters=filters,
            observe=observe,
            provenance=provenance,
            world=world,
        )
    announce(planned.words)
    number, model_hash = checked_iteration(model.routing.routing, iteration), weights_hash(model)

    def sums(parts: Sequence[range]) -> Iterator[MasterAccumulator]:
        for classes in parts:
            one = MasterAccumulator.for_layer(model.routing, number, model_hash, classes)
            one.filters = list(filters)
            mine = (images.labels[chosen] >= classes.start) & (images.labels[chosen] < classes.stop)
            for some, labels in batches(images.subset(chosen[mine]), batch_size, view=view):
                accumulate_batch(model, some, labels, "routing", one)
                observe(len(labels))
            yield one
            del one

    return combined(sums(planned.parts), provenance, method, world, keep_sums=False)


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
        model: the network in training; it gets its mode back.
        images: images whose coefficients are accumulated.
        data: their data set.
        settings: constants of the run.
        epoch: number of epochs done.
        previous: coefficients of the epochs before, whose iteration and method are kept.
        observe: told what is done, and the number of images after each batch.
    """
    task, world = "accumulating", current()

    def announce(words: str) -> None:
        nonlocal task
        task = "accumulating in parts"

    iteration: int | Literal["after"] | None = None if previous is None else previous.iteration
    if iteration == model.config.iterations + 1:
        iteration = "after"
    with evaluating(model):
        return accumulate_split(
            model,
            images,
            data.augmentation.test_view,
            settings.batch_size,
            iteration=iteration,
            method="containers" if previous is None else cast(Method, previous.method),
            observe=world.counting(lambda count: observe(task, count)),
            announce=announce,
            world=world,
            provenance={**training_provenance(data, settings.to_dict()), "epoch": epoch},
        )
