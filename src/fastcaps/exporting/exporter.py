"""Export a PyTorch network as one sealed ONNX file, which is compared with the network before it is written.

`CapsNet` and `FastCapsNet` have a graph of their own, which is smaller than that of PyTorch's exporter and can be int8.
Every other module, and a `CapsNet` whose normalization has no ONNX nodes, goes through PyTorch's exporter.
"""

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcaps._download import created_folder
from fastcaps._extras import require
from fastcaps._files import write_atomically
from fastcaps._version import __version__
from fastcaps.exporting.quantize import Ranges
from fastcaps.exporting.result import ExportResult, find_problem
from fastcaps.nn import CapsNet, CapsNetConfig, CapsuleLayer, CapsuleNetwork, FastCapsNet, FoldedCapsuleLayer
from fastcaps.nn.fusion import fuse_batch_norm
from fastcaps.nn.inference import Batches, device_of, evaluating, run_batches
from fastcaps.nn.pretrained import weights_hash
from fastcaps.runtime import file
from fastcaps.runtime.metadata import CAPSNET_FORMAT, MODULE_FORMAT, CapsNetMetadata, Check, Metadata, ModuleMetadata
from fastcaps.runtime.session import Predictor

Precision = Literal["float32", "int8"]
Observer = Callable[[int], None]

_INPUT_TYPES: dict[torch.dtype, Literal["float32", "uint8"]] = {torch.float32: "float32", torch.uint8: "uint8"}


class ExportOptions(TypedDict, total=False):
    """Keyword arguments of `export` that are rarely needed.

    Attributes:
        max_drop: for int8, points of accuracy that may be lost; 0.1 by default. A loss of three images is always
            allowed.
        class_names: one name per class, stored in the file; those of a `CapsNet` are in its configuration.
        background: brightness of the edge of the training images, for `fastcaps.runtime.pictures`; by default that of
            the network.
        threads: CPU threads of ONNX Runtime; all by default.
        observe: called with the number of images after each batch that was compared.
        images_note: how the test images differ from those that the network was trained with.
        check: False to write int8 without test images and labels; its accuracy is then not known.
    """

    max_drop: float
    class_names: Sequence[str]
    background: float | None
    threads: int | None
    observe: Observer
    images_note: str | None
    check: bool


@dataclass(frozen=True)
class _Options:
    max_drop: float = 0.1
    class_names: Sequence[str] = ()
    background: float | None = None
    threads: int | None = None
    observe: Observer = lambda images: None
    images_note: str | None = None
    check: bool = True


def export(
    model: nn.Module,
    path: str | Path,
    example: Tensor | None = None,
    *,
    tests: Batches | None = None,
    precision: Precision = "float32",
    calibration: Iterable[Tensor] | None = None,
    batch: int | None = None,
    **options: Unpack[ExportOptions],
) -> ExportResult:
    """Write a network as one ONNX file, which `fastcaps.runtime.load` reads.

    The file is only written if its answers match the network: in float32 every length to 1e-3, in int8 within the
    allowed loss of accuracy.

    Args:
        model: a `CapsNet`, a `FastCapsNet`, or any module that takes one tensor and returns class capsules ``(b j e)``
            or another tensor; folded or dynamic.
        path: path of the file.
        example: inputs ``(b …)`` to compare the file with the network on. For other modules than a `CapsNet` the file
            takes inputs of their shape and type: float32, or uint8 if the module scales bytes by itself.
        tests: test inputs and labels to compare on instead; the file then stores its accuracy; for a `CapsNet` bytes
            ``(b c h w)`` of the network's input size.
        precision: ``"float32"``, or ``"int8"`` for a file of a quarter of the size; int8 needs a `CapsNet` or a
            `FastCapsNet`, ``tests`` and ``calibration``.
        calibration: for int8, batches of training images, bytes ``(b c h w)``; a few hundred images are enough.
        batch: fixed batch size of the file; any when None.
        options: see `ExportOptions`.
    """
    require("export", "onnx", "onnxscript", "onnxruntime")
    settings, path = _Options(**options), Path(path)
    _check_arguments(path, precision, batch, settings.max_drop)
    example = _checked_example(example)
    if example is None and tests is None:
        raise ValueError("there is nothing to compare the file with: give an example, or tests with labels")
    _check_finite(model, path)
    with created_folder(path.parent):  # raises before the comparison if nothing can be written
        return _export(model, path, example, tests, precision, calibration, batch, settings)


def _export(
    model: nn.Module,
    path: Path,
    example: Tensor | None,
    tests: Batches | None,
    precision: Precision,
    calibration: Iterable[Tensor] | None,
    batch: int | None,
    settings: _Options,
) -> ExportResult:
    """Build the graph, compare it with the network, and write the file."""
    if isinstance(model, CapsNet | FastCapsNet):
        proto, of_capsnet = _capsnet_graph(model, precision, calibration, batch, example)
        background = model.background if settings.background is None else settings.background
        metadata: CapsNetMetadata | ModuleMetadata = replace(of_capsnet, background=background)
    else:
        model = copy.deepcopy(model).float().cpu().eval()
        proto, metadata = _module_graph(model, precision, batch, example, settings.class_names)
    predictor = Predictor(_content(proto, metadata), path, settings.threads)
    if tests is not None:
        check = replace(_compare(model, predictor, tests, settings.observe), images_note=settings.images_note)
        metadata = replace(metadata, accuracy=check)
    else:
        assert example is not None
        check = _compare_without_labels(model, predictor, example)
        metadata = replace(metadata, check=check)
        settings.observe(len(example))
    problem = find_problem(check, precision, settings.max_drop)
    if problem is not None and (settings.check or precision == "float32"):
        raise ValueError(f"{path} was not written: {problem}")
    content = _content(proto, metadata)
    write_atomically({path: content})
    return ExportResult(path, len(content), check, metadata)


def _check_arguments(path: Path, precision: str, batch: int | None, max_drop: float) -> None:
    if batch is not None and batch < 1:
        raise ValueError(f"batch is {batch}, expected at least 1, or None for any")
    if not max_drop >= 0:
        raise ValueError(f"max_drop is {max_drop}, expected points of accuracy, at least 0")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected the name of a file to write")
    if precision not in ("float32", "int8"):
        raise ValueError(f"precision is {precision!r}, expected float32 or int8")


def _check_finite(model: nn.Module, path: Path) -> None:
    for name, weight in model.state_dict().items():
        if not bool(weight.isfinite().all()):
            raise ValueError(f"{path} was not written: {name} has entries that are not finite, the network is broken")


def _checked_example(example: Any) -> Tensor | None:
    if example is None:
        return None
    if not isinstance(example, Tensor | np.ndarray):
        raise ValueError(f"the example is a {type(example).__name__}, expected a tensor of inputs (batch, …)")
    inputs = torch.as_tensor(example)
    if inputs.ndim < 2 or not len(inputs):
        raise ValueError(f"the example has shape {tuple(inputs.shape)}, expected (batch, …) with at least one input")
    return inputs


def _capsnet_graph(
    network: CapsNet | FastCapsNet,
    precision: Precision,
    calibration: Iterable[Tensor] | None,
    batch: int | None,
    example: Tensor | None,
) -> tuple[Any, CapsNetMetadata]:
    """Return the ONNX model of the paper's network, from bytes to capsules, and its metadata."""
    from fastcaps.exporting.graph import has_own_graph, network_graph
    from fastcaps.exporting.module import module_graph

    config = network.config
    if example is not None and example.dtype != torch.uint8:
        raise ValueError(f"the example is {example.dtype}, expected uint8: an exported CapsNet takes bytes, 0 to 255")
    routing: Literal["fast", "dynamic"] = "fast" if isinstance(network, FastCapsNet) else "dynamic"
    own = routing == "fast" or has_own_graph(config)
    ranges = None
    if precision == "int8":
        if not own:
            raise ValueError(f"int8 is not possible with normalization {config.normalization}: it has no ONNX nodes")
        if calibration is None:
            raise ValueError("int8 needs training images to calibrate with: give some hundred as calibration")
        ranges = calibrated(network, calibration)
    if own:
        fused = copy.deepcopy(network) if config.batch_norm else network
        if config.batch_norm:
            fuse_batch_norm(fused)
        weights = {k: v.detach().float().cpu().numpy() for k, v in fused.state_dict().items()}
        proto = network_graph(config, weights, routing, ranges, batch)
    else:
        images = torch.zeros(1, config.channels, config.height, config.width, dtype=torch.uint8)
        proto = module_graph(copy.deepcopy(network).float().cpu().eval(), images, batch)
    metadata = CapsNetMetadata(
        format=CAPSNET_FORMAT,
        fastcaps=__version__,
        routing=routing,
        precision=precision,
        batch=batch,
        input=_input_words(config),
        config=config,
        weights_sha256=weights_hash(network),
        provenance=network.provenance,
    )
    return proto, metadata


def _module_graph(
    model: nn.Module, precision: Precision, batch: int | None, example: Tensor | None, class_names: Sequence[str]
) -> tuple[Any, ModuleMetadata]:
    """Return the ONNX model of any other module, and its metadata."""
    from fastcaps.exporting.module import module_graph, named_outputs

    if precision == "int8":
        raise ValueError(f"int8 is for CapsNet and FastCapsNet, not for {type(model).__name__}: export float32")
    if example is None:
        raise ValueError(f"{type(model).__name__} needs an example of its inputs, (batch, …); none was given")
    if example.dtype not in _INPUT_TYPES:
        raise ValueError(f"the example is {example.dtype}, expected float32 or uint8")
    with torch.no_grad():
        names, tensors = named_outputs(model(example[:1].cpu()))
    classes = tensors[-1].shape[-1]
    if class_names and len(class_names) != classes:
        raise ValueError(f"{len(class_names)} class names were given for {classes} classes")
    proto = module_graph(model, example.cpu(), batch)
    layers = [module for module in model.modules() if isinstance(module, CapsuleLayer | FoldedCapsuleLayer)]
    routed = any(isinstance(layer, CapsuleLayer) for layer in layers)
    kind = _INPUT_TYPES[example.dtype]
    scale = ", between 0 and 1 for pictures" if kind == "float32" else ", 0 to 255"
    metadata = ModuleMetadata(
        format=MODULE_FORMAT,
        fastcaps=__version__,
        model=type(model).__name__,
        routing="dynamic" if routed else "fast" if layers else "none",
        precision=precision,
        batch=batch,
        input=f"images: {kind} (batch, {_sizes(example.shape[1:])}){scale}. outputs: {', '.join(names)}",
        input_shape=tuple(example.shape[1:]),
        input_type=kind,
        outputs=tuple(names),
        output_shapes=tuple(tuple(tensor.shape[1:]) for tensor in tensors),
        class_names=tuple(str(name) for name in class_names or range(classes)),
        weights_sha256=weights_hash(model),
    )
    return proto, metadata


def calibrated(network: CapsNet | FastCapsNet, images: Iterable[Tensor]) -> Ranges:
    """Return the range of each activation on batches of images ``(b c h w)``."""
    maps_reach, channels_reach = [], []

    def step(batch: Tensor, _: Tensor) -> None:
        maps = network.stem(batch.float() / 255)
        channels = network.primary.conv(maps)
        channels = channels if network.primary.norm is None else network.primary.norm(channels)
        maps_reach.append(float(maps.max()))
        channels_reach.append(channels.abs().amax((0, 2, 3)).cpu().numpy())

    if not run_batches(network, _without_labels(images), step):
        raise ValueError("there are no images to calibrate with")
    return Ranges(max(maps_reach), np.max(channels_reach, axis=0))


def _without_labels(images: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in images:
        yield batch, torch.zeros(len(batch))


def _compare(network: nn.Module, predictor: Predictor, tests: Batches, observe: Observer) -> Check:
    """Compare an exported network with its original on inputs and labels."""
    changed = correct = original_correct = 0
    largest = 0.0

    def step(inputs: Tensor, labels: Tensor) -> None:
        nonlocal changed, correct, original_correct, largest
        scaled = inputs.float() / 255 if inputs.dtype == torch.uint8 and predictor.takes_floats else inputs
        expected, scores = _scores(network, scaled), predictor.scores(inputs.cpu().numpy())
        truth, before, after = labels.cpu().numpy(), expected.argmax(1), scores.argmax(1)
        changed += int((before != after).sum())
        correct += int((after == truth).sum())
        original_correct += int((before == truth).sum())
        # np.maximum, not max, so that NaN is not hidden.
        largest = float(np.maximum(largest, np.abs(scores - expected).max(initial=0)))

    images = run_batches(network, tests, step, observe=observe)
    if not images:
        raise ValueError("there are no images to compare the exported network with the original on")
    return Check(images, changed, largest, correct, original_correct)


def _compare_without_labels(network: nn.Module, predictor: Predictor, example: Tensor) -> Check:
    """Compare on all inputs at once and on the first alone, since the size of the batch must not matter."""
    inputs = example.cpu().numpy()
    with evaluating(network), torch.no_grad():
        expected = _scores(network, example.to(device_of(network)))
    scores, alone = predictor.scores(inputs), predictor.scores(inputs[:1])
    difference = np.maximum(np.abs(scores - expected).max(), np.abs(alone - expected[:1]).max())
    changed = expected.reshape(len(example), -1).argmax(1) != scores.reshape(len(example), -1).argmax(1)
    return Check(len(example), int(changed.sum()), float(difference))


def _scores(network: nn.Module, inputs: Tensor) -> NDArray[np.float32]:
    """Return the PyTorch counterpart of `Predictor.scores`: lengths ``(b j)``, or the output of a module."""
    from fastcaps.exporting.module import named_outputs

    output = network(inputs)
    lengths = output.lengths if isinstance(network, CapsuleNetwork) else named_outputs(output)[1][-1]
    return lengths.float().cpu().numpy()


def _sizes(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


def _content(model: Any, metadata: Metadata) -> bytes:
    from onnx import helper

    helper.set_model_props(model, {file.ABOUT: json.dumps(metadata.to_dict(), ensure_ascii=False)})
    model.doc_string = metadata.input
    return file.sealed(model.SerializeToString())


def _input_words(config: CapsNetConfig) -> str:
    """Return how to prepare the input, for users of the file with other tools."""
    c, h, w = config.channels, config.height, config.width
    size = "×".join(map(str, config.resize or (h, w)))
    crop = f", its middle {h}×{w} cropped" if config.resize not in (None, (h, w)) else ""
    color = "gray" if c == 1 else "RGB" if c == 3 else f"of {c} channels"
    return (
        f"images: uint8 (batch, {c}, {h}, {w}), {color}, 0 to 255; a picture is resized to {size} (bilinear, height "
        f"by width){crop}. Scaling{' and standardization' if config.standardize else ''} is done in the graph. "
        "lengths: (batch, classes), the longest is the class, by its place in config.class_names; capsules: (batch, "
        "classes, dimension)."
    )
