"""Measure the time of networks of several sizes, and of Efficient-CapsNet."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec

import torch

from fastcaps.benchmark.engines import (
    EFFICIENT,
    ONNX_EFFICIENT,
    Engine,
    Networks,
    engine,
    graph_engine,
    module_engine,
    some_images,
)
from fastcaps.benchmark.measure import measured
from fastcaps.compression import multiply_adds
from fastcaps.compression.results import NetworkTime
from fastcaps.exporting.exporter import calibrated
from fastcaps.nn import FastCapsNet

PYTORCH, ONNX_RUNTIME, INT8 = "PyTorch", "ONNX Runtime", "ONNX Runtime int8"
# Images that the ranges of int8 come from; noise is enough to measure times.
_CALIBRATION = 16


@torch.no_grad()
def time_networks(
    networks: Mapping[str, FastCapsNet],
    batches: tuple[int, ...] = (1, 128),
    repetitions: int = 9,
    least: float = 0.05,
    budget: float = 1.0,
) -> tuple[NetworkTime, ...]:
    """Measure folded networks in turns, in PyTorch and, if it is installed, in ONNX Runtime in float32 and int8.

    Args:
        networks: networks by name; all for the same images. Efficient-CapsNet for these images is added.
        batches: batch sizes.
        repetitions: turns of each.
        least: minimum duration of a turn in seconds.
        budget: maximum seconds of a network per batch size.
    """
    threads, config = torch.get_num_threads(), next(iter(networks.values())).config
    engines: dict[tuple[str, str], Engine] = {}
    with_onnx = all(find_spec(name) is not None for name in ("onnx", "onnxruntime", "onnxscript"))
    for name, network in networks.items():
        count = multiply_adds(network.config)
        engines[name, PYTORCH] = module_engine(network, count)
        if with_onnx:
            engines[name, ONNX_RUNTIME] = graph_engine(network, "fast", threads, count)
            ranges = calibrated(network, [some_images(network.config, _CALIBRATION)])
            engines[name, INT8] = graph_engine(network, "fast", threads, count, ranges)
    kinds = [(EFFICIENT, PYTORCH), (ONNX_EFFICIENT, ONNX_RUNTIME)] if with_onnx else [(EFFICIENT, PYTORCH)]
    for name, kind in kinds:
        try:
            engines[EFFICIENT, kind] = engine(name, Networks(config), threads)
        except ValueError:  # images that are too small for it
            break
    times = []
    for batch in batches:
        images = some_images(config, batch)
        runs = {key: _bound(one, images) for key, one in engines.items()}
        for (name, kind), seconds in measured(runs, repetitions, least, budget=budget).items():
            milliseconds = 1e3 * seconds.median / batch
            times.append(NetworkTime(network=name, batch=batch, engine=kind, ms_per_image=milliseconds))
    return tuple(times)


def _bound(one: Engine, images: torch.Tensor) -> Callable[[], object]:
    return lambda: one.run(images)
