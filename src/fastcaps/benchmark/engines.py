"""All engines behind one interface: a function of images, the size of the engine, and the time shares of its layers."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fastcaps.benchmark.efficient import EfficientCapsNet
from fastcaps.benchmark.plain import ConvolutionalBaseline, PlainCapsNet
from fastcaps.compression import Size, multiply_adds
from fastcaps.exporting.exporter import calibrated
from fastcaps.exporting.graph import network_graph
from fastcaps.exporting.module import module_graph
from fastcaps.master import fold
from fastcaps.nn import CapsNet, CapsNetConfig, FastCapsNet
from fastcaps.nn.fusion import fuse_batch_norm

N = TypeVar("N", bound=nn.Module)

# In PyTorch unless the name says ONNX (Runtime) or OpenVINO; "folded" takes the fastest convolution for the batch size.
PLAIN, DYNAMIC, FAST_VOTES = "plain dynamic", "dynamic", "fast, votes × C"
FOLDED, WINOGRAD, FOLDED_AUTO = "folded, nn.Conv2d", "folded, Winograd", "folded"
ONNX_DYNAMIC, ONNX, ONNX_INT8 = "ONNX dynamic", "ONNX folded", "ONNX folded int8"
COMPRESSED, ONNX_COMPRESSED, ONNX_COMPRESSED_INT8 = "compressed", "ONNX compressed", "ONNX compressed int8"
OPENVINO_INT8, OPENVINO_COMPRESSED = "OpenVINO folded int8", "OpenVINO compressed"
OPENVINO_COMPRESSED_INT8 = "OpenVINO compressed int8"
EFFICIENT, ONNX_EFFICIENT = "Efficient-CapsNet", "ONNX Efficient-CapsNet"
OPENVINO_EFFICIENT = "OpenVINO Efficient-CapsNet"
CNN, ONNX_CNN = "CNN baseline", "ONNX CNN baseline"
ENGINES = (
    PLAIN, DYNAMIC, FAST_VOTES, FOLDED, WINOGRAD, FOLDED_AUTO, ONNX_DYNAMIC, ONNX, ONNX_INT8,
    COMPRESSED, ONNX_COMPRESSED, ONNX_COMPRESSED_INT8, EFFICIENT, ONNX_EFFICIENT, CNN, ONNX_CNN,
)  # fmt: skip
# What they run is the same file; OpenVINO is optional.
OPENVINO_ENGINES = {
    OPENVINO_INT8: ONNX_INT8,
    OPENVINO_COMPRESSED: ONNX_COMPRESSED,
    OPENVINO_COMPRESSED_INT8: ONNX_COMPRESSED_INT8,
    OPENVINO_EFFICIENT: ONNX_EFFICIENT,
}
LAYERS = ("stem", "PrimaryCaps", "routing")

_CALIBRATION = 64


@dataclass(frozen=True)
class Engine:
    """One way to run a network.

    Attributes:
        run: computes an answer, given images as bytes ``(b c h w)``.
        size: bytes of its weights; for ONNX, of the whole file.
        shares: returns the fraction of time of each of `LAYERS`, given images; None for a network with other layers.
        multiply_adds: multiply-adds per image, counted as ordinary convolution and votes.
        content: the ONNX file; None for PyTorch.
    """

    run: Callable[[Tensor], object]
    size: int
    shares: Callable[[Tensor], dict[str, float]] | None
    multiply_adds: int
    content: bytes | None = None


@dataclass(frozen=True)
class Networks:
    """The networks that engines run. They may be untrained: the time doesn't depend on the weights.

    Attributes:
        config: configuration of the whole network.
        compressed_size: size of the compressed network; three eighths of the types and maps when None.
        cnn_channels: channels of the convolutional baseline.
        trained: a network and coefficients ``(i j)``; random weights when None.
        calibration: batches of training images, bytes, for the ranges of int8; noise when empty.
        small: a trained compressed network; random weights when None.
    """

    config: CapsNetConfig
    compressed_size: Size | None = None
    cnn_channels: tuple[int, int, int] = (256, 256, 128)
    trained: tuple[CapsNet, Tensor] | None = None
    calibration: tuple[Tensor, ...] = field(default=())
    small: FastCapsNet | None = None

    @cached_property
    def model(self) -> CapsNet:
        """The network with dynamic routing."""
        return self.trained[0] if self.trained else _seeded(lambda: CapsNet(self.config).eval())

    @cached_property
    def coefficients(self) -> Tensor:
        """The coefficients of the folded network, ``(i j)``."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.config.lower_capsules, self.config.classes)
        return self.trained[1] if self.trained else torch.rand(shape, generator=generator)

    def folded(self) -> FastCapsNet:
        """Return the folded network."""
        return fold(self.model, self.coefficients)

    def compressed(self) -> FastCapsNet:
        """Return the compressed network, or an untrained one of its size."""
        if self.small is not None:
            return self.small
        whole = Size.of(self.config)
        size = self.compressed_size or Size(max(1, 3 * whole.types // 8), max(1, 3 * whole.maps // 8))
        return _seeded(lambda: FastCapsNet(size.config(self.config)).eval())


def installed_engines() -> tuple[str, ...]:
    """Return the names of all engines that can run here."""
    return ENGINES if find_spec("openvino") is None else (*ENGINES, *OPENVINO_ENGINES)


def engine(name: str, networks: Networks, threads: int) -> Engine:
    """Return one of `installed_engines`.

    Args:
        name: name of the engine.
        networks: the networks to run.
        threads: threads of ONNX Runtime and OpenVINO; PyTorch has its own setting.
    """
    if name in OPENVINO_ENGINES:
        return _openvino(engine(OPENVINO_ENGINES[name], networks, threads), threads)
    if name in (EFFICIENT, ONNX_EFFICIENT):
        return _efficient(networks.config, threads if name == ONNX_EFFICIENT else None)
    if name in (CNN, ONNX_CNN):
        return _convolutional(networks, threads if name == ONNX_CNN else None)
    if name in (PLAIN, DYNAMIC, FAST_VOTES, ONNX_DYNAMIC):
        return _with_votes(name, networks, threads)
    fast = networks.compressed() if name in (COMPRESSED, ONNX_COMPRESSED, ONNX_COMPRESSED_INT8) else networks.folded()
    count = multiply_adds(fast.config)
    if name in (ONNX, ONNX_COMPRESSED):
        return graph_engine(fast, "fast", threads, count)
    if name in (ONNX_INT8, ONNX_COMPRESSED_INT8):
        images = networks.calibration or (some_images(fast.config, _CALIBRATION),)
        return graph_engine(fast, "fast", threads, count, calibrated(fast, images))
    if name in (FOLDED, WINOGRAD):
        fast.primary.convolution = "direct" if name == FOLDED else "winograd"
    elif name not in (FOLDED_AUTO, COMPRESSED):
        raise ValueError(f"there is no engine {name!r}, expected one of {', '.join(installed_engines())}")
    return module_engine(fast, count)


def _seeded(make: Callable[[], N]) -> N:
    """Return a network with the weights of seed 0; the program's random numbers are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def some_images(config: CapsNetConfig, count: int) -> Tensor:
    """Return noise as images, bytes ``(b c h w)``."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, config.channels, config.height, config.width)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def dynamic_multiply_adds(config: CapsNetConfig) -> int:
    """Return the multiply-adds per image with dynamic routing: a sum per iteration, an agreement in all but one."""
    return sum(config.multiply_adds(config.iterations).values())


def _with_votes(name: str, networks: Networks, threads: int) -> Engine:
    model, count = networks.model, dynamic_multiply_adds(networks.config)
    if name == ONNX_DYNAMIC:
        return graph_engine(model, "dynamic", threads, count)
    if name == DYNAMIC:
        return module_engine(model, count)
    if name == PLAIN:
        return module_engine(PlainCapsNet(model), count)
    coefficients = networks.coefficients.to(model.routing.weight)
    return module_engine(PlainCapsNet(model, coefficients), multiply_adds(networks.config))


def _convolutional(networks: Networks, threads: int | None) -> Engine:
    baseline = _seeded(lambda: ConvolutionalBaseline(networks.config, networks.cnn_channels))
    count = _count(baseline, networks.config)
    if threads is None:
        return Engine(lambda images: baseline(images / 255), _weights(baseline), None, count)
    content = baseline.onnx(networks.config).SerializeToString()
    return Engine(Session(content, threads).run, len(content), None, count)


def _efficient(config: CapsNetConfig, threads: int | None) -> Engine:
    """Return Efficient-CapsNet with BatchNorm merged into the convolutions, as optimized for inference."""
    network = _seeded(lambda: EfficientCapsNet(config).eval())
    fuse_batch_norm(network, sequential=True)
    network.requires_grad_(False)
    count = _count(network, config)
    if threads is None:
        return Engine(network, _weights(network), None, count)
    content = module_graph(network, some_images(config, 1)).SerializeToString()
    return Engine(Session(content, threads).run, len(content), None, count, content)


def module_engine(module: nn.Module, count: int) -> Engine:
    """Return a network in PyTorch as an engine; ``count`` is its multiply-adds per image."""

    def run(images: Tensor) -> object:
        return module(images / 255)

    return Engine(run, _weights(module), lambda images: _watched(module, run, images), count)


def graph_engine(network: CapsNet | FastCapsNet, routing: str, threads: int, count: int, ranges: Any = None) -> Engine:
    """Return a network in ONNX Runtime as an engine; ``ranges`` are the activation ranges for int8."""
    weights = {key: value.detach().numpy() for key, value in network.state_dict().items()}
    content = network_graph(network.config, weights, routing, ranges).SerializeToString()
    session = Session(content, threads)
    return Engine(session.run, len(content), lambda images: _profiled(content, threads, images), count, content)


def _openvino(onnx: Engine, threads: int) -> Engine:
    """Return the same file in OpenVINO as an engine."""
    import openvino

    assert onnx.content is not None
    # On processors with bfloat16, OpenVINO would compute in bfloat16 by default.
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(onnx.content), "CPU", settings)
    request = compiled.create_infer_request()

    def run(images: Tensor) -> object:
        outputs = request.infer({0: images.numpy()}, share_inputs=True)
        return [outputs[number] for number in range(len(compiled.outputs))]

    return replace(onnx, run=run, shares=None)


def stored_engine(file: Path, threads: int) -> Engine:
    """Return an exported file in ONNX Runtime as an engine; the times of its layers are not known."""
    content = file.read_bytes()
    return Engine(Session(content, threads).run, len(content), None, 0)


def _count(network: nn.Module, config: CapsNetConfig) -> int:
    """Return the multiply-adds per image of the convolutions and matrix products, from the shapes of their outputs."""
    counts: list[int] = []

    def add(module: nn.Module, inputs: Any, output: Tensor) -> None:
        weight: Tensor = module.weight  # type: ignore[assignment]
        counts.append(weight.numel() * (output.shape[2:].numel() if isinstance(module, nn.Conv2d) else 1))

    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    with torch.no_grad():
        network(some_images(config, 1) / 255)
    for hook in hooks:
        hook.remove()
    return sum(counts)


def _weights(module: nn.Module) -> int:
    return sum(
        tensor.numel() * tensor.element_size() for name, tensor in module.named_parameters() if "decoder" not in name
    )


class Session:
    """An ONNX Runtime session as an engine: a batch is never split, and its threads don't spin after a call.

    Spinning threads would occupy the cores while the next engine is measured, which would look slower.
    """

    def __init__(self, content: bytes, threads: int, profile: Path | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(self, images: Tensor) -> object:
        """Return all outputs."""
        return self.session.run(None, {"images": images.numpy()})


def _watched(module: nn.Module, run: Callable[[Tensor], object], images: Tensor) -> dict[str, float]:
    """Return the time shares of the layers of a PyTorch network, over a few runs."""
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
    for hook in hooks:
        hook.remove()
    return _shares(seconds)


def _profiled(content: bytes, threads: int, images: Tensor) -> dict[str, float]:
    """Return the time shares of the layers of an ONNX graph, from the profile of ONNX Runtime.

    Nodes come in the order in which they run: the first convolution ends the stem; PrimaryCaps lasts until the lower
    capsules are reshaped for the routing layer.
    """
    with TemporaryDirectory() as folder:
        session = Session(content, threads, Path(folder) / "profile")
        for _ in range(3):
            session.run(images)
        events = json.loads(Path(session.session.end_profiling()).read_bytes())
    seconds = dict.fromkeys(LAYERS, 0.0)
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    layer = 0
    for event in nodes[len(nodes) // 3 :]:  # the first run warms up
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
    total = sum(seconds.values()) or 1.0
    return {name: value / total for name, value in seconds.items()}
