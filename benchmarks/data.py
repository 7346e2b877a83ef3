"""What a batch costs beside a training step: taking images and augmenting them, as of MNIST and of CIFAR-10."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import table, times
from fastcaps import CapsNet, CapsNetConfig
from fastcaps.data import Augmentation, Split, batches
from fastcaps.functional import margin_loss, reconstruction_loss

B = 128
EVERYTHING = Augmentation(crop=(24, 24), flip=True, brightness=0.25, contrast=0.8)


def training_step(config: CapsNetConfig, images: Tensor, labels: Tensor) -> Callable[[], object]:
    model = CapsNet(config)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        output = model(images)
        loss = margin_loss(output.lengths, labels)
        loss = loss + reconstruction_loss(model.reconstruct(output.capsules, labels), images)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def main() -> None:
    torch.manual_seed(0)
    rows = []
    for name, config, side, view in (
        ("MNIST, shifted", CapsNetConfig.mnist(), 28, Augmentation(shift=2)),
        ("CIFAR-10, cropped and flipped", CapsNetConfig.cifar10(), 32, Augmentation(crop=(24, 24), flip=True)),
        ("CIFAR-10, with all there is", CapsNetConfig.cifar10(), 32, EVERYTHING),
    ):
        pixels = torch.randint(0, 256, (20 * B, config.channels, side, side), dtype=torch.uint8)
        split = Split(torch.arange(len(pixels)) % 10, pixels.__getitem__)
        stream = batches(split, B, view=view, shuffle_seed=0)
        images, labels = next(stream)
        step = training_step(config, images, labels)
        seconds = times({"batch": partial(next, stream), "step": step}, repetitions=7)
        share = f"{100 * seconds['batch'] / seconds['step']:.2f} %"
        rows.append([name, f"{1e3 * seconds['batch']:.2f}", f"{1e3 * seconds['step']:.0f}", share])
    print(f"Making a batch of {B} beside one step of training on it\n")
    table(["", "batch, ms", "step, ms", "share"], rows)
