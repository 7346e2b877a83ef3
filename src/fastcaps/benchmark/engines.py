"""Every way to run the same network, behind one face: images in, capsules out, with its size and its layers' shares."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from fastcaps.benchmark.plain import ConvolutionalBaseline, PlainCapsNet
from fastcaps.exporting.exporter import calibrated
from fastcaps.exporting.graph import network_graph
from fastcaps.master import fold
from fastcaps.nn import CapsNet, CapsNetConfig

# In PyTorch unless the name says ONNX; "folded" alone takes for each batch the fastest way of convolution.
PLAIN, DYNAMIC, FAST_VOTES = "plain dynamic", "dynamic", "fast, votes × C"
FOLDED, WINOGRAD, FOLDED_AUTO = "folded, nn.Conv2d", "folded, Winograd", "folded"
ONNX_DYNAMIC, ONNX, ONNX_INT8 = "ONNX dynamic", "ONNX folded", "ONNX folded int8"
CNN, ONNX_CNN = "CNN baseline", "ONNX CNN baseline"
ENGINES = (PLAIN, DYNAMIC, FAST_VOTES, FOLDED, WINOGRAD, FOLDED_AUTO, ONNX_DYNAMIC, ONNX, ONNX_INT8, CNN, ONNX_CNN)
LAYERS = ("stem", "PrimaryCaps", "routing")

_CALIBRATION = 64


@dataclass(frozen=True)
class Engine:
    """One way.

    Attributes:
        run: images, bytes ``(b c h w)``, to an answer.
        size: bytes of its weights, in ONNX of the whole file.
        shares: images to the share of time of each of `LAYERS`; None for the baseline, which has others.
        multiplications: multiply-adds of an image, counted as ordinary convolution and votes.
    """

    run: Callable[[Tensor], object]
    size: int
    shares: Callable[[Tensor], dict[str, float]] | None
    multiplications: int


def engine(
    name: str,
    config: CapsNetConfig,
    threads: int,
    cnn_channels: tuple[int, int, int] = (256, 256, 128),
    trained: tuple[CapsNet, Tensor] | None = None,
    calibration: list[Tensor] | None = None,
) -> Engine:
    """One of `ENGINES`.

    Args:
        name: of the engine.
        config: of the network.
        threads: for ONNX Runtime; PyTorch has its own number.
        cnn_channels: of the convolutional baseline.
        trained: a network and coefficients ``(i j)``. When None the weights are as they are before training: how long
            it takes doesn't depend on them.
        calibration: batches of training images, bytes, for the ranges of int8; noise when None.
    """
    torch.manual_seed(0)
    if name in (CNN, ONNX_CNN):
        baseline = ConvolutionalBaseline(config, cnn_channels)
        count = _baseline_multiplications(baseline, config)
        if name == CNN:
            return Engine(lambda images: baseline(images / 255), _weights(baseline), None, count)
        content = baseline.onnx(config).SerializeToString()
        return Engine(_Session(content, threads).run, len(content), None, count)
    model, coefficients = trained or (CapsNet(config).eval(), torch.rand(config.lower_capsules, config.classes))
    fast = fold(model, coefficients)
    count = multiplications(config, "dynamic" if name in (PLAIN, DYNAMIC, ONNX_DYNAMIC) else "fast")
    if name in (ONNX_DYNAMIC, ONNX, ONNX_INT8):
        network = model if name == ONNX_DYNAMIC else fast
        weights = {key: value.detach().numpy() for key, value in network.state_dict().items()}
        seen = calibration or [some_images(config, _CALIBRATION)]
        ranges = calibrated(fast, seen) if name == ONNX_INT8 else None
        routing = "dynamic" if name == ONNX_DYNAMIC else "fast"
        content = network_graph(config, weights, routing, ranges).SerializeToString()
        return Engine(
            _Session(content, threads).run, len(content), lambda images: _profiled(content, threads, images), count
        )
    modules: dict[str, nn.Module] = {
        PLAIN: PlainCapsNet(model),
        FAST_VOTES: PlainCapsNet(model, coefficients.to(model.routing.weight)),
        DYNAMIC: model,
        FOLDED: fast,
        WINOGRAD: fast,
        FOLDED_AUTO: fast,
    }
    module = modules[name]
    if name in (FOLDED, WINOGRAD):
        fast.primary.convolution = "direct" if name == FOLDED else "winograd"

    def run(images: Tensor) -> object:
        return module(images / 255)

    return Engine(run, _weights(module), lambda images: _watched(module, run, images), count)


def some_images(config: CapsNetConfig, count: int) -> Tensor:
    """Bytes ``(b c h w)``."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, config.channels, config.height, config.width)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def once(name: str, config: dict[str, Any], threads: int, batch: int, cnn_channels: tuple[int, int, int]) -> Any:
    """An engine, asked for two batches; importable, for a process of its own."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(threads)
    run = engine(name, CapsNetConfig.from_dict(config), threads, cnn_channels).run
    images = some_images(CapsNetConfig.from_dict(config), batch)
    return lambda: [run(images) for _ in range(2)]


def multiplications(config: CapsNetConfig, routing: str) -> int:
    """Multiply-adds of one image, the convolutions counted as ordinary ones."""
    (stem_h, stem_w), (grid_h, grid_w) = config.stem_size, config.grid
    stem = stem_h * stem_w * config.stem_channels * config.channels * config.stem_kernel**2
    outputs = config.capsule_types * config.lower_dimension
    primary = grid_h * grid_w * outputs * config.stem_channels * config.primary_kernel**2
    votes = config.lower_capsules * config.classes * config.class_dimension
    # Votes, or the folded product; then a sum in each iteration and an agreement after all but the last.
    looped = votes * (2 * config.iterations - 1) if routing == "dynamic" else 0
    return stem + primary + votes * config.lower_dimension + looped


def _baseline_multiplications(baseline: ConvolutionalBaseline, config: CapsNetConfig) -> int:
    places = config.height * config.width
    counts = [
        layer.weight.numel() * (places if isinstance(layer, nn.Conv2d) else 1)
        for layer in baseline
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    return sum(counts)


def _weights(module: nn.Module) -> int:
    return sum(
        tensor.numel() * tensor.element_size() for name, tensor in module.named_parameters() if "decoder" not in name
    )


class _Session:
    """An ONNX Runtime session as an engine: no piece is cut, so that a batch is what it is for all."""

    def __init__(self, content: bytes, threads: int, profile: Path | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(self, images: Tensor) -> object:
        """All outputs."""
        return self.session.run(None, {"images": images.numpy()})


def _watched(module: nn.Module, run: Callable[[Tensor], object], images: Tensor) -> dict[str, float]:
    """Shares of a PyTorch network's layers, over a few runs."""
    seconds = dict.fromkeys(LAYERS, 0.0)
    started: dict[str, float] = {}
    hooks = []
    for layer, name in zip(("stem", "primary", "routing"), LAYERS, strict=True):
        part = module.get_submodule(layer)

        def before(*_: Any, name: str = name) -> None:
            started[name] = time.perf_counter()

        def after(*_: Any, name: str = name) -> None:
            seconds[name] += time.perf_counter() - started[name]

        hooks += [part.register_forward_pre_hook(before), part.register_forward_hook(after)]
    run(images)
    seconds.update(dict.fromkeys(LAYERS, 0.0))  # the first warmed up
    for _ in range(3):
        run(images)
    for hook in hooks:
        hook.remove()
    return _shares(seconds)


def _profiled(content: bytes, threads: int, images: Tensor) -> dict[str, float]:
    """Shares of an ONNX graph's layers, from ONNX Runtime's own profile.

    Nodes come in the order in which they run: the first convolution ends the stem; PrimaryCaps goes on to where the
    lower capsules are brought in shape for the routing layer.
    """
    with TemporaryDirectory() as folder:
        session = _Session(content, threads, Path(folder) / "profile")
        for _ in range(4):
            session.run(images)
        events = json.loads(Path(session.session.end_profiling()).read_bytes())
    seconds = dict.fromkeys(LAYERS, 0.0)
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    layer = 0
    for event in nodes[len(nodes) // 4 :]:  # the first run warmed up
        name = event["name"]
        if layer == 1 and name.startswith(("flat", "by_capsule", "routing", "capsules_input")):
            layer = 2
        seconds[LAYERS[layer]] += event["dur"]
        if "Conv" in event["args"].get("op_name", ""):
            layer = 1
        if name.startswith("lengths"):  # the last node: the next run begins
            layer = 0
    return _shares(seconds)


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    whole = sum(seconds.values()) or 1.0
    return {name: value / whole for name, value in seconds.items()}
