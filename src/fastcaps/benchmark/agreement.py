"""Whether all engines answer alike: a trained network on real images, against ordinary convolution in float64."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps.benchmark.engines import (
    DYNAMIC,
    FAST_VOTES,
    FOLDED,
    FOLDED_AUTO,
    ONNX,
    ONNX_DYNAMIC,
    ONNX_INT8,
    PLAIN,
    WINOGRAD,
    Engine,
    engine,
)
from fastcaps.master import fold
from fastcaps.nn import CapsNet, CapsuleNetwork

# Each with the network that is its reference.
COMPARED = {
    PLAIN: "dynamic",
    DYNAMIC: "dynamic",
    ONNX_DYNAMIC: "dynamic",
    FAST_VOTES: "fast",
    FOLDED: "fast",
    WINOGRAD: "fast",
    FOLDED_AUTO: "fast",
    ONNX: "fast",
    ONNX_INT8: "fast",
}


@torch.no_grad()
def agreement(
    model: CapsNet,
    coefficients: Tensor,
    tests: Iterable[tuple[Tensor, Tensor]],
    calibration: list[Tensor],
    observe: Callable[[int], None] = lambda images: None,
) -> list[dict[str, Any]]:
    """For each engine, how its answers differ from the reference's.

    Args:
        model: a trained network.
        coefficients: of its folded sibling, ``(i j)``.
        tests: batches of test images, bytes ``(b c h w)``, and labels ``(b)``.
        calibration: batches of training images, bytes, for int8.
        observe: told how many images were just done.

    Returns:
        An entry for each of `COMPARED`: ``accuracy`` and ``reference_accuracy``; ``changed`` answers of ``images``;
        ``largest_difference`` of a length, and the largest between an image in its batch and ``alone``.
    """
    references = {"dynamic": _exact(model), "fast": _exact(fold(model, coefficients))}
    threads = torch.get_num_threads()
    made = {
        name: engine(name, model.config, threads, trained=(model, coefficients), calibration=calibration)
        for name in COMPARED
    }
    found: dict[str, dict[str, Any]] = {
        name: {"engine": name, "images": 0, "correct": 0, "reference_correct": 0, "changed": 0}
        | {"largest_difference": 0.0, "alone": 0.0}
        for name in COMPARED
    }
    for images, labels in tests:
        truth = labels.numpy()
        exact = {name: network(images.double() / 255).lengths.numpy() for name, network in references.items()}
        for name, row in found.items():
            expected, lengths = exact[COMPARED[name]], _lengths(made[name], images)
            first = _lengths(made[name], images[:1])
            row["images"] += len(truth)
            row["correct"] += int((lengths.argmax(1) == truth).sum())
            row["reference_correct"] += int((expected.argmax(1) == truth).sum())
            row["changed"] += int((lengths.argmax(1) != expected.argmax(1)).sum())
            if not np.isfinite(lengths).all():
                raise ValueError(f"{name} gives lengths that are no numbers")
            for key, difference in (("largest_difference", lengths - expected), ("alone", lengths[:1] - first)):
                row[key] = max(row[key], float(np.abs(difference).max(initial=0)))
        observe(len(truth))
    if any(not row["images"] for row in found.values()):
        raise ValueError("there are no images to compare the engines on")
    return [
        {key: value for key, value in row.items() if "correct" not in key}
        | {"accuracy": row["correct"] / row["images"], "reference_accuracy": row["reference_correct"] / row["images"]}
        for row in found.values()
    ]


def _exact(network: CapsuleNetwork) -> CapsuleNetwork:
    exact = copy.deepcopy(network).double()
    exact.primary.convolution = "direct"
    return exact


def _lengths(made: Engine, images: Tensor) -> NDArray[np.float32]:
    answer: Any = made.run(images)
    if isinstance(answer, list):
        lengths: NDArray[np.float32] = answer[0]
    elif isinstance(answer, Tensor):
        lengths = answer.norm(dim=-1).numpy()
    else:
        lengths = answer.lengths.numpy()
    return lengths
