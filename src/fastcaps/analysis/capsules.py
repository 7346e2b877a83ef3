"""What comes out: lengths of class capsules with dynamic and with fast routing, and what their numbers mean."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps.distributed import SINGLE, World
from fastcaps.nn import CapsNet, FastCapsNet

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


class Lengths(NamedTuple):
    """Labels ``(n)``, and the lengths ``(n j)`` that dynamic and fast routing give."""

    labels: Labels
    dynamic: NDArray[np.float32]
    fast: NDArray[np.float32]


@torch.no_grad()
def output_lengths(
    model: CapsNet,
    fast: FastCapsNet,
    batches: Iterable[tuple[Tensor, Tensor]],
    observe: Callable[[int], None] = lambda images: None,
    world: World = SINGLE,
) -> Lengths:
    """Lengths of the class capsules of images, in both ways.

    Args:
        model: the trained network.
        fast: the same, folded.
        batches: images ``(b c h w)`` and labels ``(b)``.
        observe: told how many images were just done.
        world: where each rank has its own images, those of one following those of the rank before; then all get the
            same result.
    """
    nothing = np.empty((0, model.config.classes), np.float32)
    labels, dynamic, folded = [np.empty(0, np.int64)], [nothing], [nothing]
    device = model.routing.weight.device
    for images, truth in batches:
        on_device = images.to(device)
        dynamic.append(model(on_device).lengths.float().cpu().numpy())
        folded.append(fast(on_device).lengths.float().cpu().numpy())
        labels.append(truth.cpu().numpy())
        observe(len(truth))
    found = Lengths(
        world.all_gather(np.concatenate(labels)),
        world.all_gather(np.concatenate(dynamic)),
        world.all_gather(np.concatenate(folded)),
    )
    if not len(found.labels):
        raise ValueError("there are no test images to measure lengths on")
    return found


def tuning_curves(lengths: NDArray[np.floating], labels: Labels) -> Floats:
    """Mean lengths ``(n j)`` over the images of each class: true class (row), class capsule (column) ``(j j)``.

    NaN for a class without images.
    """
    classes = lengths.shape[1]
    sums = np.zeros((classes, classes))
    np.add.at(sums, labels, lengths)
    counts = np.bincount(labels, minlength=classes)
    with np.errstate(invalid="ignore"):
        curves: Floats = sums / counts[:, None]
    return curves


def disagreements(lengths: Lengths) -> Labels:
    """Numbers of the images that change class from dynamic to fast routing ``(m)``."""
    return np.flatnonzero(lengths.dynamic.argmax(1) != lengths.fast.argmax(1))


@torch.no_grad()
def varied_reconstructions(model: CapsNet, capsules: Tensor, labels: Tensor, offsets: Sequence[float]) -> Floats:
    """Reconstructions while one number of the label's capsule is changed.

    Args:
        model: whose decoder draws.
        capsules: class capsules ``(b j e)``.
        labels: which of them is drawn ``(b)``.
        offsets: what is added to the number, one after the other ``(s)``.

    Returns:
        Images between 0 and 1 ``(b e s c h w)``.
    """
    b, _, e = capsules.shape
    s = len(offsets)
    steps = torch.tensor(offsets, dtype=capsules.dtype, device=capsules.device)
    changes = torch.einsum("ef,s->esf", torch.eye(e, dtype=capsules.dtype, device=capsules.device), steps)
    varied = capsules[:, None, None].expand(b, e, s, -1, -1).clone()  # (b, e, s, j, e)
    for k in range(b):
        varied[k, :, :, labels[k]] += changes
    drawn = model.reconstruct(varied.flatten(0, 2), labels.repeat_interleave(e * s))  # (b·e·s, c, h, w)
    found: Floats = drawn.reshape(b, e, s, *drawn.shape[1:]).double().cpu().numpy()
    return found
