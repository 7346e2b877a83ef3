"""Batches in an order that follows from a seed and an epoch number, divided among ranks.

Step ``k`` of the whole job has images ``k·B … (k+1)·B − 1`` of the order, for any number of ranks. Of its ``m`` images,
rank ``r`` of ``R`` takes ``⌊r·m / R⌋ … ⌊(r+1)·m / R⌋ − 1``. So every image occurs once per epoch, all ranks have the
same number of steps, and an image is augmented in the same way for any number of ranks. Only the last step may be
smaller than ``B``; if it has fewer images than there are ranks, some ranks get an empty batch.

Images on disk are read in a background thread, one step ahead.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from fastcaps.data.augment import Augmentation
from fastcaps.data.dataset import Split

# Separate the random numbers of the order from those of the augmentation.
_ORDER, _CHANCES = 0, 1


def batches(
    split: Split,
    batch_size: int,
    *,
    view: Augmentation | Callable[[Tensor], Tensor],
    shuffle_seed: int | None = None,
    epoch: int = 0,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over a part of a data set once.

    Args:
        split: the part.
        batch_size: images per step, of all ranks together.
        view: an `Augmentation` for training, or a function from bytes ``(b c h w)`` to floating-point images for
            testing and accumulating, such as `Augmentation.test_view`.
        shuffle_seed: seed of the order and of the augmentation; None keeps the order of the set.
        epoch: number of this pass; each has its own order and augmentation.
        start: the first step to yield, so that a resumed run gets the same batches.
        rank: number of this process.
        world: number of processes.

    Yields:
        Images ``(b c h w)``, float32 between 0 and 1, and labels ``(b)``, int64.
    """
    steps = steps_per_epoch(split, batch_size)
    if isinstance(view, Augmentation) and shuffle_seed is None:
        raise ValueError(
            "shuffle_seed is None, expected a number for an augmentation: give one, or view=augmentation.test_view"
        )
    for name, value in (("shuffle_seed", shuffle_seed or 0), ("epoch", epoch)):
        if value < 0:
            raise ValueError(f"{name} is {value}, expected at least 0")
    if not 0 <= start <= steps:
        raise ValueError(f"start is {start}, expected 0 to {steps}, the steps of an epoch")
    if not 0 <= rank < world:
        raise ValueError(f"rank is {rank} of {world}, expected 0 to {world - 1}")
    return _generate(split, batch_size, view, shuffle_seed, epoch, range(start, steps), rank, world)


def steps_per_epoch(split: Sized, batch_size: int) -> int:
    """Return the number of batches of a part of a data set, the last one perhaps smaller."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, expected at least 1")
    return -(-len(split) // batch_size)


def _generate(
    split: Split,
    batch_size: int,
    view: Augmentation | Callable[[Tensor], Tensor],
    seed: int | None,
    epoch: int,
    steps: range,
    rank: int,
    world: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    count = len(split)
    if seed is None:
        order = torch.arange(count)
    else:
        order = torch.from_numpy(np.random.default_rng([_ORDER, seed, epoch]).permutation(count))

    def share(step: int) -> tuple[int, slice, Tensor]:
        """Return the number of images of a step, the slice of this rank, and the indices in it."""
        whole = order[step * batch_size : (step + 1) * batch_size]
        mine = slice(rank * len(whole) // world, (rank + 1) * len(whole) // world)
        return len(whole), mine, whole[mine]

    def read(step: int) -> Tensor:
        return split.images(share(step)[2])

    for step, images in zip(steps, _ahead(read, steps) if split.streams else map(read, steps), strict=True):
        count, mine, indices = share(step)
        if isinstance(view, Augmentation):
            random = np.random.default_rng([_CHANCES, seed or 0, epoch, step])
            chances = torch.from_numpy(np.hstack([random.random(shape) for shape in view.chance_shapes(count)]))
            yield view.apply(images, chances[mine]), split.labels[indices]
        else:
            yield view(images), split.labels[indices]


def _ahead(read: Callable[[int], Tensor], steps: Sequence[int]) -> Iterator[Tensor]:
    """Yield what ``read`` returns for each step; the next step, and no more, is read in the background."""
    with ThreadPoolExecutor(1) as reader:
        waiting: deque[Future[Tensor]] = deque()
        for step in steps:
            waiting.append(reader.submit(read, step))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
