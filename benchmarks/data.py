"""Cost of a batch relative to a training step: reading and augmenting images, as of MNIST and of CIFAR-10."""

from functools import partial

import torch

from benchmarks.printing import table
from benchmarks.training import SHAPES, B, step
from fastcaps.benchmark.measure import times
from fastcaps.data import Augmentation, Split, batches

EVERYTHING = Augmentation(crop=(24, 24), flip=True, brightness=0.25, contrast=0.8)


def main() -> None:
    torch.manual_seed(0)
    rows = []
    for shape, words, side, view in (
        ("MNIST", "shifted", 28, Augmentation(shift=2)),
        ("CIFAR-10", "cropped and flipped", 32, Augmentation(crop=(24, 24), flip=True)),
        ("CIFAR-10", "with all there is", 32, EVERYTHING),
    ):
        pixels = torch.randint(0, 256, (20 * B, SHAPES[shape]().channels, side, side), dtype=torch.uint8)
        split = Split(torch.arange(len(pixels)) % 10, pixels.__getitem__)
        stream = batches(split, B, view=view, shuffle_seed=0)
        seconds = times({"batch": partial(next, stream), "step": step(shape, "fastcaps")}, repetitions=7)
        share = f"{100 * seconds['batch'] / seconds['step']:.2f} %"
        rows.append([f"{shape}, {words}", f"{1e3 * seconds['batch']:.2f}", f"{1e3 * seconds['step']:.0f}", share])
    print(f"Making a batch of {B} beside one step of training on it\n")
    table(["", "batch, ms", "step, ms", "share"], rows)
