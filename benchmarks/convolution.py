"""The convolution of PrimaryCaps: ordinary against each tile of Winograd's method, alone and after the stem."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fastcaps import CapsNet, CapsNetConfig
from fastcaps.benchmark.measure import peak_memory, print_machine, table, times
from fastcaps.kernels import winograd

NETWORKS = {"MNIST": CapsNetConfig.mnist(), "CIFAR-10": CapsNetConfig.cifar10()}
BATCHES = [1, 8, 32, 128]
WAYS = ["ordinary", *(f"tile {tile}" for tile in winograd.TILES)]

Run = Callable[[], Tensor]


def convolution(network: str, way: str, batch: int, training: bool) -> Run:
    """One way of the convolution, from maps in the memory order that the way likes, with what is made once made."""
    config = NETWORKS[network]
    h, w = config.stem_size
    torch.manual_seed(0)
    conv = CapsNet(config).primary.conv
    weight, bias, stride = conv.weight, conv.bias, config.primary_stride
    maps = torch.randn(h, w, batch, config.stem_channels).relu().permute(2, 3, 0, 1)
    pool = winograd.WorkspacePool()
    if way == "ordinary":
        maps = maps.contiguous()
        forward = partial(torch.conv2d, maps, weight, bias, stride)
    elif training:
        forward = partial(winograd.winograd_conv2d, maps, weight, bias, stride, int(way[-1]), pool)
    else:
        tile, size = int(way[-1]), config.primary_kernel
        kernel = winograd.transform_kernel(weight.detach(), stride, tile)
        forward = partial(winograd.winograd_conv2d_transformed, maps, kernel, bias, size, tile, pool)
    maps.requires_grad_(training)
    conv.requires_grad_(training)

    def run() -> Tensor:
        result = forward()
        if training:
            torch.autograd.grad(result, (maps, *conv.parameters()), torch.ones_like(result))
        return result.detach()

    return run


def layers(network: str, convolution: str, batch: int, training: bool) -> Run:
    """Images to lower capsules, with the given convolution."""
    config = NETWORKS[network]
    torch.manual_seed(0)
    model = CapsNet(config).requires_grad_(training)
    stem, primary = model.stem, model.primary
    primary.convolution = convolution  # type: ignore[assignment]
    images = torch.rand(batch, config.channels, config.height, config.width)

    def run() -> Tensor:
        maps = torch.relu(stem.conv(images)) if convolution == "direct" else stem(images)
        capsules: Tensor = primary(maps)
        if training:
            capsules.sum().backward()  # type: ignore[no-untyped-call]
            stem.zero_grad()
            primary.zero_grad()
        return capsules.detach()

    return run


def report(network: str, training: bool) -> None:
    config = NETWORKS[network]
    rows = []
    for batch in BATCHES:
        runs = {way: convolution(network, way, batch, training) for way in WAYS}
        exact = runs["ordinary"]()
        errors = {way: float((run() - exact).abs().max() / exact.std()) for way, run in runs.items()}
        seconds = times(runs, repetitions=5)
        chosen = winograd.choose_tile(
            config.primary_kernel,
            config.primary_stride,
            config.stem_size,
            config.stem_channels,
            config.capsule_types * config.lower_dimension,
            batch,
            "cpu",
            training,
        )
        faster = [f"{seconds['ordinary'] / seconds[way]:.2f} ({errors[way]:.0e})" for way in WAYS[1:]]
        rows.append([str(batch), f"{seconds['ordinary'] / batch * 1e3:.2f}", *faster, str(chosen or "ordinary")])
    print(f"{network}, {'forward and backward' if training else 'inference'}: times faster (largest difference)\n")
    table(["batch", "ordinary, ms an image", *WAYS[1:], "chosen"], rows)
    print()


def main() -> None:
    for network in NETWORKS:
        for training in (False, True):
            report(network, training)
    batch = 128
    print(f"From images to lower capsules, batch {batch}\n")
    rows = []
    for network in NETWORKS:
        for training in (False, True):
            ways = ["direct", "auto"]
            seconds = times({way: layers(network, way, batch, training) for way in ways}, repetitions=5)
            memory = {way: peak_memory(layers, network, way, batch, training) for way in ways}
            rows.append(
                [
                    f"{network}, {'training' if training else 'inference'}",
                    *(f"{seconds[way] / batch * 1e3:.2f}" for way in ways),
                    f"{seconds['direct'] / seconds['auto']:.2f}",
                    *(f"{memory[way]:.0f}" for way in ways),
                ]
            )
    table(
        ["", "ordinary, ms an image", "auto, ms an image", "times faster", "ordinary, peak MB", "auto, peak MB"], rows
    )


if __name__ == "__main__":
    print_machine()
    main()
