"""The convolution of PrimaryCaps: ordinary against each tile of Winograd's method, alone and after the stem."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.printing import print_machine, table
from fastcaps import CapsNet, CapsNetConfig
from fastcaps.benchmark.measure import peak_memory, times
from fastcaps.kernels import winograd

NETWORKS = {"MNIST": CapsNetConfig.mnist(), "CIFAR-10": CapsNetConfig.cifar10()}
BATCHES = [1, 8, 32, 128]
VARIANTS = ["ordinary", *(f"tile {tile}" for tile in winograd.TILES)]

Run = Callable[[], Tensor]


def convolution(network: str, variant: str, batch: int, training: bool) -> Run:
    """Return one variant of the convolution, prepared, from maps in the memory order that suits it."""
    config = NETWORKS[network]
    h, w = config.stem_size
    torch.manual_seed(0)
    conv = CapsNet(config).primary.conv
    weight, bias, stride = conv.weight, conv.bias, config.primary_stride
    maps = torch.randn(h, w, batch, config.stem_channels).relu().permute(2, 3, 0, 1)
    pool = winograd.WorkspacePool()
    if variant == "ordinary":
        maps = maps.contiguous()
        forward = partial(torch.conv2d, maps, weight, bias, stride)
    elif training:
        forward = partial(winograd.winograd_conv2d, maps, weight, bias, stride, int(variant[-1]), pool)
    else:
        tile, size = int(variant[-1]), config.primary_kernel
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
    """Return the step from images to lower capsules, with the given convolution."""
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
        runs = {variant: convolution(network, variant, batch, training) for variant in VARIANTS}
        exact = runs["ordinary"]()
        errors = {variant: float((run() - exact).abs().max() / exact.std()) for variant, run in runs.items()}
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
        faster = [f"{seconds['ordinary'] / seconds[variant]:.2f} ({errors[variant]:.0e})" for variant in VARIANTS[1:]]
        rows.append([str(batch), f"{seconds['ordinary'] / batch * 1e3:.2f}", *faster, str(chosen or "ordinary")])
    print(f"{network}, {'forward and backward' if training else 'inference'}: times faster (largest difference)\n")
    table(["batch", "ordinary, ms per image", *VARIANTS[1:], "chosen"], rows)
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
            variants = ["direct", "auto"]
            seconds = times({variant: layers(network, variant, batch, training) for variant in variants}, repetitions=5)
            memory = {variant: peak_memory(layers, network, variant, batch, training) for variant in variants}
            rows.append(
                [
                    f"{network}, {'training' if training else 'inference'}",
                    *(f"{seconds[variant] / batch * 1e3:.2f}" for variant in variants),
                    f"{seconds['direct'] / seconds['auto']:.2f}",
                    *(f"{memory[variant]:.0f}" for variant in variants),
                ]
            )
    table(
        ["", "ordinary, ms per image", "auto, ms per image", "times faster", "ordinary, peak MB", "auto, peak MB"], rows
    )


if __name__ == "__main__":
    print_machine()
    main()
