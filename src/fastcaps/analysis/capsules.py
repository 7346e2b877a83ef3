"""Lengths of class capsules with dynamic and with fast routing, and what the entries of a capsule mean."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps.distributed import SINGLE, World
from fastcaps.nn import CapsNet, FastCapsNet
from fastcaps.nn.inference import Batches, gather_batches

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


class Lengths(NamedTuple):
    """Labels ``(n)``, and lengths ``(n j)`` with dynamic and with fast routing."""

    labels: Labels
    dynamic: NDArray[np.float32]
    fast: NDArray[np.float32]

    def subset(self, numbers: Labels) -> "Lengths":
        """Return the labels and lengths of the images at indices ``(m)``."""
        return Lengths(self.labels[numbers], self.dynamic[numbers], self.fast[numbers])


def output_lengths(
    model: CapsNet,
    fast: FastCapsNet,
    batches: Batches,
    observe: Callable[[int], None] = lambda images: None,
    world: World = SINGLE,
) -> Lengths:
    """Return the lengths of the class capsules with dynamic and with fast routing.

    Args:
        model: the trained network.
        fast: the same, folded.
        batches: images ``(b c h w)`` and labels ``(b)``.
        observe: called with the number of images after each batch.
        world: the ranks, each with its own images in their order; all get the same result.
    """

    def step(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"dynamic": model(images).lengths.float(), "fast": fast(images).lengths.float()}

    return Lengths(**gather_batches(model, batches, step, observe=observe, world=world))


def tuning_curves(lengths: NDArray[np.floating], labels: Labels) -> Floats:
    """Return the mean of lengths ``(n j)`` per true class (row) and class capsule (column) ``(j j)``.

    The row of a class without images is NaN.
    """
    classes = lengths.shape[1]
    sums = np.zeros((classes, classes))
    np.add.at(sums, labels, lengths)
    counts = np.bincount(labels, minlength=classes)
    with np.errstate(invalid="ignore"):
        curves: Floats = sums / counts[:, None]
    return curves


def disagreements(lengths: Lengths) -> Labels:
    """Return the indices of the images that change class from dynamic to fast routing ``(m)``."""
    return np.flatnonzero(lengths.dynamic.argmax(1) != lengths.fast.argmax(1))


@torch.no_grad()
def varied_reconstructions(model: CapsNet, capsules: Tensor, labels: Tensor, offsets: Sequence[float]) -> Floats:
    """Return reconstructions with one entry of the label's capsule changed.

    Args:
        model: network whose decoder reconstructs.
        capsules: class capsules ``(b j e)``.
        labels: class of the capsule to reconstruct ``(b)``.
        offsets: values to add to the entry ``(s)``.

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
    images: Floats = drawn.reshape(b, e, s, *drawn.shape[1:]).double().cpu().numpy()
    return images
