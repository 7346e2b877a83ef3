"""From a PyTorch network to one sealed ONNX file, compared with the network before it is in place.

`CapsNet` and `FastCapsNet` have a graph of their own, which is smaller than that of PyTorch's exporter and can be int8.
Every other module, and a `CapsNet` whose normalization has no ONNX nodes, goes through PyTorch's exporter.
"""

import copy
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcaps._extras import require
from fastcaps._files import write_atomically
from fastcaps._version import __version__
from fastcaps.exporting.quantize import Ranges
from fastcaps.nn import CapsNet, CapsNetConfig, CapsuleLayer, CapsuleNetwork, FastCapsNet, FoldedCapsuleLayer
from fastcaps.nn.fusion import fuse_batch_norm
from fastcaps.nn.inference import device_of, evaluating
from fastcaps.nn.pretrained import weights_hash
from fastcaps.runtime import file
from fastcaps.runtime.session import CAPSNET_FORMAT, MODULE_FORMAT, Predictor

Precision = Literal["float32", "int8"]
Batches = Iterable[tuple[Tensor, Tensor]]

# Largest difference of a capsule's length, or of another output, from PyTorch's that float32 may have.
TOLERANCE = 1e-3
# So few images don't show that accuracy was lost.
_FEW = 3
_INPUT_TYPES = {torch.float32: "float32", torch.uint8: "uint8"}


def export(
    model: nn.Module,
    path: str | Path,
    example: Tensor | None = None,
    *,
    tests: Batches | None = None,
    precision: Precision = "float32",
    calibration: Iterable[Tensor] | None = None,
    batch: int | None = None,
    max_drop: float = 0.1,
    class_names: Sequence[str] = (),
    background: float | None = None,
    threads: int | None = None,
    observe: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """Write a network as one ONNX file, which `fastcaps.runtime.load` reads.

    Nothing is written unless the file answers as the network does: in float32 every length to 1e-3, in int8 without
    losing accuracy.

    Args:
        model: a `CapsNet`, a `FastCapsNet`, or any module that takes one tensor and returns class capsules ``(b j e)``
            or another tensor; folded or dynamic.
        path: of the file.
        example: inputs ``(b …)`` to compare the file with the network on. For other modules than a `CapsNet` the file
            takes inputs of their shape and type: float32, or uint8 if the module scales bytes by itself.
        tests: test inputs and labels to compare on instead, so that the file knows its accuracy; for a `CapsNet` bytes
            ``(b c h w)`` of the network's input size.
        precision: ``"float32"``, or ``"int8"`` for a file of a quarter of the size; int8 needs a `CapsNet` or a
            `FastCapsNet`, ``tests`` and ``calibration``.
        calibration: for int8, batches of training images, bytes ``(b c h w)``; a few hundred images are enough.
        batch: the only size of a batch that the file takes; any when None.
        max_drop: for int8, by how many points accuracy may fall, as long as it is more than three images.
        class_names: one name per class, stored in the file; those of a `CapsNet` are in its configuration.
        background: brightness of the edge of the training images, for `fastcaps.runtime.pictures`.
        threads: for ONNX Runtime.
        observe: told how many images were just compared.

    Returns:
        What the file says about itself; with ``tests`` also ``accuracy``.
    """
    require("export", "onnx", "onnxscript", "onnxruntime")
    _check_arguments(path, precision, batch, max_drop)
    example = _checked_example(example)
    if example is None and tests is None:
        raise ValueError("there is nothing to compare the file with: give an example, or tests with labels")
    Path(path).parent.mkdir(parents=True, exist_ok=True)  # what can't be written must be known before the comparison
    broken = [name for name, weight in model.state_dict().items() if not bool(weight.isfinite().all())]
    if broken:
        raise ValueError(f"{path} was not written: {broken[0]} has entries that are not finite, the network is broken")
    if isinstance(model, CapsNet | FastCapsNet):
        proto, about = _capsnet_graph(model, precision, calibration, batch, example)
        about["background"] = background
    else:
        model = copy.deepcopy(model).float().cpu().eval()
        proto, about = _module_graph(model, precision, batch, example, class_names)
    trial = Predictor(_content(proto, about), path, threads)
    if tests is not None:
        about["accuracy"] = compared(model, trial, tests, observe)
    else:
        assert example is not None
        about["check"] = _compared_without_labels(model, trial, example)
        observe(len(example))
    _refuse_difference(path, about, max_drop)
    write_atomically({Path(path): _content(proto, about)})
    return about


def _check_arguments(path: str | Path, precision: str, batch: int | None, max_drop: float) -> None:
    if batch is not None and batch < 1:
        raise ValueError(f"batch is {batch}, expected at least 1, or None for any")
    if not max_drop >= 0:
        raise ValueError(f"max_drop is {max_drop}, expected points of accuracy, at least 0")
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected the name of a file to write")
    if precision not in ("float32", "int8"):
        raise ValueError(f"precision is {precision!r}, expected float32 or int8")


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
) -> tuple[Any, dict[str, Any]]:
    """The ONNX model of the paper's network, from bytes to capsules, and what it says about itself."""
    from fastcaps.exporting.graph import has_own_graph, network_graph
    from fastcaps.exporting.module import module_graph

    config = network.config
    if example is not None and example.dtype != torch.uint8:
        raise ValueError(f"the example is {example.dtype}, expected uint8: an exported CapsNet takes bytes, 0 to 255")
    routing = "fast" if isinstance(network, FastCapsNet) else "dynamic"
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
        proto = module_graph(copy.deepcopy(network).float().cpu().eval(), images, batch).model
    about: dict[str, Any] = {
        "format": CAPSNET_FORMAT,
        "fastcaps": __version__,
        "routing": routing,
        "precision": precision,
        "batch": batch,
        "input": _input_words(config),
        "background": None,
        "config": config.to_dict(),
        "weights_sha256": weights_hash(network),
        "provenance": network.provenance,
    }
    return proto, about


def _module_graph(
    model: nn.Module, precision: Precision, batch: int | None, example: Tensor | None, class_names: Sequence[str]
) -> tuple[Any, dict[str, Any]]:
    """The ONNX model of any other module, and what it says about itself."""
    from fastcaps.exporting.module import module_graph, named_outputs

    if precision == "int8":
        raise ValueError(f"int8 is for CapsNet and FastCapsNet, not for {type(model).__name__}: export float32")
    if example is None:
        raise ValueError(f"{type(model).__name__} needs an example of its inputs, (batch, …); none was given")
    if example.dtype not in _INPUT_TYPES:
        raise ValueError(f"the example is {example.dtype}, expected float32 or uint8")
    with torch.no_grad():
        names, tensors = named_outputs(model(example[:1].cpu()))
    proto = module_graph(model, example.cpu(), batch).model
    classes = tensors[-1].shape[-1]
    if class_names and len(class_names) != classes:
        raise ValueError(f"{len(class_names)} class names were given for {classes} classes")
    layers = [module for module in model.modules() if isinstance(module, CapsuleLayer | FoldedCapsuleLayer)]
    routed = any(isinstance(layer, CapsuleLayer) for layer in layers)
    kind = _INPUT_TYPES[example.dtype]
    scale = ", between 0 and 1 for pictures" if kind == "float32" else ", 0 to 255"
    about: dict[str, Any] = {
        "format": MODULE_FORMAT,
        "fastcaps": __version__,
        "model": type(model).__name__,
        "routing": "dynamic" if routed else "fast" if layers else "none",
        "precision": precision,
        "batch": batch,
        "input": f"images: {kind} (batch, {_sizes(example.shape[1:])}){scale}. outputs: {', '.join(names)}",
        "input_shape": list(example.shape[1:]),
        "input_type": kind,
        "outputs": list(names),
        "output_shapes": [list(tensor.shape[1:]) for tensor in tensors],
        "class_names": [str(name) for name in class_names or range(classes)],
        "weights_sha256": weights_hash(model),
    }
    return proto, about


@torch.no_grad()
def calibrated(network: CapsNet | FastCapsNet, images: Iterable[Tensor]) -> Ranges:
    """Return how far each activation reaches on batches of images ``(b c h w)``."""
    primary = network.primary.conv
    seen = []
    with evaluating(network):
        for batch in images:
            maps = network.stem(batch.to(primary.weight.device).float() / 255)
            channels = primary(maps)
            channels = channels if network.primary.norm is None else network.primary.norm(channels)
            seen.append((float(maps.max()), channels.abs().amax((0, 2, 3)).cpu().numpy()))
    if not seen:
        raise ValueError("there are no images to calibrate with")
    maxima, reaches = zip(*seen, strict=True)
    return Ranges(max(maxima), np.max(reaches, axis=0))


@torch.no_grad()
def compared(
    network: nn.Module,
    exported: Predictor,
    tests: Batches,
    observe: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """Compare an exported network with its original: accuracies, changed answers, largest difference of a length."""
    images = changed = right = originally = 0
    largest = 0.0
    for batch, labels in tests:
        scaled = batch.float() / 255 if batch.dtype == torch.uint8 and exported.takes_floats else batch
        theirs, mine = _scores(network, scaled), exported.scores(batch.cpu().numpy())
        truth, before, after = torch.as_tensor(labels).cpu().numpy(), theirs.argmax(1), mine.argmax(1)
        images += len(truth)
        changed += int((before != after).sum())
        right += int((after == truth).sum())
        originally += int((before == truth).sum())
        # Not np.max of the differences alone: a length that isn't a number must show.
        largest = float(np.maximum(largest, np.abs(mine - theirs).max(initial=0)))
        observe(len(truth))
    if not images:
        raise ValueError("there are no images to compare the exported network with the original on")
    return {
        "images": images,
        "correct": right,
        "accuracy": right / images,
        "original_correct": originally,
        "original_accuracy": originally / images,
        "changed": changed,
        "largest_difference": largest,
    }


@torch.no_grad()
def _compared_without_labels(network: nn.Module, exported: Predictor, example: Tensor) -> dict[str, Any]:
    """The same without labels; all inputs at once and the first alone, since the size of the batch must not matter."""
    theirs = _scores(network, example)
    inputs = example.cpu().numpy()
    mine, alone = exported.scores(inputs), exported.scores(inputs[:1])
    difference = np.maximum(np.abs(mine - theirs).max(), np.abs(alone - theirs[:1]).max())
    changed = int((theirs.reshape(len(theirs), -1).argmax(1) != mine.reshape(len(mine), -1).argmax(1)).sum())
    return {"images": len(example), "changed": changed, "largest_difference": float(difference)}


def _scores(network: nn.Module, inputs: Tensor) -> NDArray[np.float32]:
    """What `Predictor.scores` gives, by PyTorch: lengths ``(b j)``, or the output of a module without capsules."""
    from fastcaps.exporting.module import named_outputs

    with evaluating(network):
        output = network(inputs.to(device_of(network)))
    lengths = output.lengths if isinstance(network, CapsuleNetwork) else named_outputs(output)[1][-1]
    return lengths.float().cpu().numpy()


def _refuse_difference(path: str | Path, about: dict[str, Any], max_drop: float) -> None:
    result = about.get("accuracy") or about["check"]
    if about["precision"] == "float32":
        if not result["largest_difference"] <= TOLERANCE:
            raise ValueError(
                f"{path} was not written: a length differs from PyTorch's by {result['largest_difference']:.1e} "
                f"on {result['images']:,} images, expected at most {TOLERANCE:.0e}: are these weights of a trained "
                "network?"
            )
        return
    if "accuracy" not in about:
        raise ValueError(f"{path} was not written: int8 needs tests with labels, so that a loss of accuracy is seen")
    lost = result["original_correct"] - result["correct"]
    drop = 100 * lost / result["images"]
    if lost > _FEW and drop > max_drop:
        raise ValueError(
            f"{path} was not written: in int8 accuracy falls from {result['original_accuracy']:.2%} to "
            f"{result['accuracy']:.2%}, {drop:.2f} points, expected at most {max_drop:g}: export float32, "
            "or allow more with max_drop"
        )


def _sizes(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


def _content(model: Any, about: dict[str, Any]) -> bytes:
    from onnx import helper

    helper.set_model_props(model, {file.ABOUT: json.dumps(about, ensure_ascii=False)})
    model.doc_string = about["input"]
    return file.sealed(model.SerializeToString())


def _input_words(config: CapsNetConfig) -> str:
    """How an image becomes the input, for whoever uses the file with another tool."""
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
