"""Count the images that a network classifies correctly."""

from collections.abc import Callable

import torch
from torch import Tensor

from fastcaps.data import Split, batches
from fastcaps.distributed import SINGLE, World
from fastcaps.nn import CapsuleNetwork, inference


def count_correct(
    model: CapsuleNetwork,
    split: Split,
    view: Callable[[Tensor], Tensor],
    batch_size: int = 256,
    world: World = SINGLE,
    observe: Callable[[int], None] = lambda images: None,
) -> int:
    """Return the number of images that a network classifies correctly.

    Args:
        model: the network; it runs in evaluation mode.
        split: the images.
        view: converts images to inputs, as for `fastcaps.data.batches`.
        batch_size: images per batch.
        world: processes that share the images; all get the same number.
        observe: called with the number of images after each batch.
    """
    share = split.subset(torch.arange(len(split))[world.share(len(split))])
    correct, _ = inference.count_correct(model, batches(share, batch_size, view=view), observe=observe)
    total = torch.tensor(correct)
    world.all_reduce(total)
    return int(total)
