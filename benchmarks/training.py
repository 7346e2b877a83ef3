"""A whole training step at the paper's two shapes, batch 128, with dynamic routing and with fixed coefficients."""

from collections.abc import Callable
from unittest import mock

import torch

from benchmarks.printing import table
from fastcaps import CapsNet, CapsNetConfig, _products
from fastcaps.benchmark.measure import peak_memory, times
from fastcaps.benchmark.plain import PlainCapsNet
from fastcaps.functional import margin_loss, reconstruction_loss
from fastcaps.kernels import order_for_training

B = 128
FASTCAPS, FIXED, UNORDERED = "fastcaps", "fastcaps, coefficients fixed", "fastcaps, kernel in the usual memory order"
# The same where `large_products` changes nothing.
MKL = "fastcaps, all products by MKL"
SHAPES = {"MNIST": CapsNetConfig.mnist, "CIFAR-10": CapsNetConfig.cifar10}


def step(shape: str, kind: str) -> Callable[[], object]:
    """Return one step of Adam on random images."""
    torch.manual_seed(0)
    config = SHAPES[shape](standardize=False)
    model = CapsNet(config)
    images, labels = torch.rand(B, config.channels, config.height, config.width), torch.arange(B) % config.classes
    plain = PlainCapsNet(model)
    optimizer = torch.optim.Adam(model.parameters(), fused=kind != "plain")
    model.primary.convolution = "direct" if kind == "closed-form routing alone" else "auto"
    if kind in (FASTCAPS, FIXED, MKL):
        weight = model.primary.conv.weight
        weight.data = order_for_training(weight.data)
    fixed = torch.rand(config.lower_capsules, config.classes) if kind == FIXED else None

    def run() -> None:
        with mock.patch.object(_products, "uses_onednn", return_value=kind != MKL and _products.uses_onednn()):
            take_step()

    def take_step() -> None:
        capsules = plain(images) if kind == "plain" else model(images, fixed=fixed).capsules
        loss = margin_loss(torch.linalg.vector_norm(capsules, dim=-1), labels)
        loss = loss + reconstruction_loss(model.reconstruct(capsules, labels), images)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    return run


def main() -> None:
    kinds = [
        "plain",
        "closed-form routing alone",
        UNORDERED,
        *([MKL] if _products.uses_onednn() else []),
        FASTCAPS,
        FIXED,
    ]
    for shape in SHAPES:
        seconds = times({kind: step(shape, kind) for kind in kinds}, repetitions=7)
        memory = {kind: peak_memory(step, shape, kind) for kind in kinds}
        print(f"{shape} shape, batch {B}\n")
        table(
            ["training step", "ms/image", "plain ÷ this", "fastcaps ÷ this", "peak MB"],
            [
                [
                    kind,
                    f"{seconds[kind] / B * 1e3:.2f}",
                    f"{seconds['plain'] / seconds[kind]:.2f}",
                    f"{seconds[FASTCAPS] / seconds[kind]:.2f}",
                    f"{memory[kind]:.0f}",
                ]
                for kind in kinds
            ],
        )
        print()
