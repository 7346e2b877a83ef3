"""From a PyTorch network to one sealed ONNX file, compared with the network on real images before it is in place."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps._extras import require
from fastcaps._files import write_atomically
from fastcaps._version import __version__
from fastcaps.nn import CapsNet, CapsNetConfig, FastCapsNet
from fastcaps.nn.pretrained import weights_hash
from fastcaps.runtime import file
from fastcaps.runtime.quantise import Ranges
from fastcaps.runtime.session import FORMAT, Predictor

Precision = Literal["float32", "int8"]
Batches = Iterable[tuple[Tensor, Tensor]]

# Largest difference of a capsule's length from PyTorch's that float32 may have.
TOLERANCE = 1e-3
# So few images don't show that accuracy was lost.
_FEW = 3


def export(
    network: CapsNet | FastCapsNet,
    path: str | Path,
    tests: Batches,
    *,
    precision: Precision = "float32",
    calibration: Iterable[Tensor] | None = None,
    batch: int | None = None,
    max_drop: float = 0.1,
    background: float | None = None,
    threads: int | None = None,
    observe: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """Write a network as one ONNX file, which `fastcaps.runtime.load` reads.

    Nothing is written unless the file answers as the network does: in float32 every length to 1e-3, in int8 without
    losing accuracy.

    Args:
        network: with dynamic routing, or folded.
        path: of the file.
        tests: test images ``(b c h w)``, bytes of the network's input size, and labels ``(b)``.
        precision: ``"float32"``, or ``"int8"`` for a file of a quarter of the size.
        calibration: for int8, batches of training images, bytes ``(b c h w)``; a few hundred images do.
        batch: the only size of a batch that the file takes; any when None.
        max_drop: for int8, by how many points accuracy may fall, as long as it is more than three images.
        background: brightness of the edge of the training images, for `fastcaps.runtime.pictures`.
        threads: for ONNX Runtime.
        observe: told how many test images were just done.

    Returns:
        What the file says about itself, ``accuracy`` among it.
    """
    require("export", "onnx", "onnxruntime")
    from fastcaps.runtime.graph import network_graph

    if batch is not None and batch < 1:
        raise ValueError(f"batch is {batch}, expected at least 1, or None for any")
    if not max_drop >= 0:
        raise ValueError(f"max_drop is {max_drop}, expected points of accuracy, at least 0")
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected the name of a file to write")
    Path(path).parent.mkdir(parents=True, exist_ok=True)  # what can't be written shall be known before the comparison
    if precision not in ("float32", "int8"):
        raise ValueError(f"precision is {precision!r}, expected float32 or int8")
    weights = {k: v.detach().float().cpu().numpy() for k, v in network.state_dict().items()}
    broken = [name for name, weight in weights.items() if not np.isfinite(weight).all()]
    if broken:
        raise ValueError(f"{path} was not written: {broken[0]} has entries that are no numbers, the network is broken")
    routing = "fast" if isinstance(network, FastCapsNet) else "dynamic"
    ranges = None
    if precision == "int8":
        if calibration is None:
            raise ValueError("int8 needs training images to calibrate with: give some hundred as calibration")
        ranges = calibrated(network, calibration)
    model = network_graph(network.config, weights, routing, ranges, batch)
    about: dict[str, Any] = {
        "format": FORMAT,
        "fastcaps": __version__,
        "routing": routing,
        "precision": precision,
        "batch": batch,
        "input": _input_words(network.config),
        "background": background,
        "config": network.config.to_dict(),
        "weights_sha256": weights_hash(network),
        "provenance": network.provenance,
    }
    trial = Predictor(_content(model, about), path, threads)
    about["accuracy"] = compared(network, trial, tests, observe)
    _refuse_difference(path, about, max_drop)
    write_atomically({Path(path): _content(model, about)})
    return about


@torch.no_grad()
def calibrated(network: CapsNet | FastCapsNet, images: Iterable[Tensor]) -> Ranges:
    """How far each activation reaches on batches of images ``(b c h w)``."""
    primary = network.primary.conv
    seen = []
    for batch in images:
        maps = network.stem(batch.to(primary.weight.device).float() / 255)
        seen.append((float(maps.max()), primary(maps).abs().amax((0, 2, 3)).cpu().numpy()))
    if not seen:
        raise ValueError("there are no images to calibrate with")
    maps, channels = zip(*seen, strict=True)
    return Ranges(max(maps), np.max(channels, axis=0))


@torch.no_grad()
def compared(
    network: CapsNet | FastCapsNet,
    exported: Predictor,
    tests: Batches,
    observe: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """An exported network beside its original: accuracies, changed answers, largest difference of a length."""
    device = network.primary.conv.weight.device
    images = changed = right = originally = 0
    largest = 0.0
    for batch, labels in tests:
        theirs: NDArray[np.float32] = network(batch.to(device)).lengths.cpu().numpy()
        mine = exported(batch.numpy()).lengths
        truth, before, after = labels.numpy(), theirs.argmax(1), mine.argmax(1)
        images += len(truth)
        changed += int((before != after).sum())
        right += int((after == truth).sum())
        originally += int((before == truth).sum())
        # Not np.max of the differences alone: a length that isn't a number shall show.
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


def _refuse_difference(path: str | Path, about: dict[str, Any], max_drop: float) -> None:
    found = about["accuracy"]
    if about["precision"] == "float32":
        if not found["largest_difference"] <= TOLERANCE:
            raise ValueError(
                f"{path} was not written: a length differs from PyTorch's by {found['largest_difference']:.1e} "
                f"on {found['images']:,} images, expected at most {TOLERANCE:.0e}: are these weights of a trained "
                "network?"
            )
        return
    lost = found["original_correct"] - found["correct"]
    drop = 100 * lost / found["images"]
    if lost > _FEW and drop > max_drop:
        raise ValueError(
            f"{path} was not written: in int8 accuracy falls from {found['original_accuracy']:.2%} to "
            f"{found['accuracy']:.2%}, {drop:.2f} points, expected at most {max_drop:g}: export float32, "
            "or allow more with max_drop (--max-drop)"
        )


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
    colour = "grey" if c == 1 else "RGB" if c == 3 else f"of {c} channels"
    return (
        f"images: uint8 (batch, {c}, {h}, {w}), {colour}, 0 to 255; a picture is resized to {size} (bilinear, height "
        f"by width){crop}. Scaling{' and standardisation' if config.standardize else ''} is done in the graph. "
        "lengths: (batch, classes), the longest is the class, by its place in config.class_names; capsules: (batch, "
        "classes, dimension)."
    )
