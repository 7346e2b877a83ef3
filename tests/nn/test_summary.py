"""Shapes, parameters and multiply-adds by layer."""

import torch
from torch import nn

from fastcaps import CapsNet, CapsNetConfig, fold
from fastcaps.nn.meta import without_weights


def test_the_paper_s_network():
    config = CapsNetConfig.mnist()
    with without_weights():
        model = CapsNet(config)
    summary = model.summary()
    assert [layer.output for layer in summary.layers] == [(256, 20, 20), (1152, 8), (10, 16), (1, 28, 28)]
    assert sum(layer.parameters for layer in summary.layers) == sum(p.numel() for p in model.parameters())
    stem, primary, routing, decoder = (layer.multiply_adds for layer in summary.layers)
    assert (stem, primary) == (20 * 20 * 256 * 81, 36 * 256 * 256 * 81)
    assert routing == 1152 * 160 * (8 + 5)
    assert decoder == 160 * 512 + 512 * 1024 + 1024 * 784
    assert "stem: Stem" in repr(summary)
    assert "1152×8" in summary._repr_html_()


def test_a_folded_network_has_no_loop():
    model = CapsNet(CapsNetConfig.mnist(stem_channels=4, capsule_types=2, decoder=(8,)))
    layers = {layer.name: layer for layer in fold(model, "uniform").summary().layers}
    assert layers["routing"].multiply_adds == 72 * 8 * 160
    assert layers["routing"].kind == "FoldedCapsuleLayer"


def test_the_counts_are_those_of_the_convolutions():
    config = CapsNetConfig.for_images(40, 32, 3, classes=5, stem="strided", stem_channels=8, capsule_types=2)
    model = CapsNet(config)
    counts = []

    def count(module: nn.Conv2d, inputs: object, output: torch.Tensor) -> None:
        counts.append(module.weight.numel() * output[0, 0].numel())

    for module in model.stem.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(count)
    model(torch.rand(1, 3, 40, 32))
    assert model.summary().layers[0].multiply_adds == sum(counts)
