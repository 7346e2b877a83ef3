"""Count the images that a network classifies correctly."""

from collections.abc import Callable

import torch
from torch import Tensor

from fastcaps.data import Split, batches
from fastcaps.distributed import SINGLE, World
from fastcaps.nn import CapsuleNetwork
from fastcaps.nn.inference import run_batches


def count_correct(
    model: CapsuleNetwork,
    split: Split,
    view: Callable[[Tensor], Tensor],
    batch_size: int = 256,
    world: World = SINGLE,
) -> int:
    """Return the number of images that a network classifies correctly.

    Args:
        model: the network; it runs in evaluation mode.
        split: the images.
        view: converts images to inputs, as for `fastcaps.data.batches`.
        batch_size: images per batch.
        world: processes that share the images; all get the same number.
    """
    share = split.subset(torch.arange(len(split))[world.share(len(split))])
    total = torch.tensor(0)

    def step(images: Tensor, labels: Tensor) -> None:
        total.add_((model.predict(images) == labels).sum().cpu())

    run_batches(model, batches(share, batch_size, view=view), step)
    world.all_reduce(total)
    return int(total)
