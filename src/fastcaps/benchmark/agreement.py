"""Check that all engines agree: a trained network on real images, compared with ordinary convolution in float64."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps.benchmark.engines import (
    COMPRESSED,
    DYNAMIC,
    FAST_VOTES,
    FOLDED,
    FOLDED_AUTO,
    ONNX,
    ONNX_COMPRESSED,
    ONNX_COMPRESSED_INT8,
    ONNX_DYNAMIC,
    ONNX_INT8,
    PLAIN,
    WINOGRAD,
    Engine,
    Networks,
    engine,
)
from fastcaps.benchmark.results import Answers
from fastcaps.master import fold
from fastcaps.nn import CapsNet, CapsuleNetwork, FastCapsNet

# The engines, each with the network that is its reference.
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
COMPARED_COMPRESSED = dict.fromkeys((COMPRESSED, ONNX_COMPRESSED, ONNX_COMPRESSED_INT8), "compressed")


@torch.no_grad()
def agreement(
    model: CapsNet,
    coefficients: Tensor,
    tests: Iterable[tuple[Tensor, Tensor]],
    calibration: Sequence[Tensor],
    compressed: FastCapsNet | None = None,
    observe: Callable[[int], None] = lambda images: None,
) -> tuple[Answers, ...]:
    """Return how the answers of each engine differ from those of the reference.

    Args:
        model: a trained network.
        coefficients: coefficients ``(i j)`` of its folded network.
        tests: batches of test images, bytes ``(b c h w)``, and labels ``(b)``.
        calibration: batches of training images, bytes, for int8.
        compressed: a compressed network, whose engines are compared with itself.
        observe: called with the number of images after each batch.
    """
    references = {"dynamic": _exact(model), "fast": _exact(fold(model, coefficients))}
    compared = COMPARED
    if compressed is not None:
        compared, references["compressed"] = COMPARED | COMPARED_COMPRESSED, _exact(compressed)
    networks = Networks(model.config, trained=(model, coefficients), calibration=tuple(calibration), small=compressed)
    counts = {name: _Counts(engine(name, networks, torch.get_num_threads())) for name in compared}
    for images, labels in tests:
        exact = {name: network(images.double() / 255).lengths.numpy() for name, network in references.items()}
        for name, count in counts.items():
            count.add(name, images, labels.numpy(), exact[compared[name]])
        observe(len(labels))
    if any(not count.images for count in counts.values()):
        raise ValueError("there are no images to compare the engines on")
    return tuple(count.answers(name) for name, count in counts.items())


@dataclass
class _Counts:
    """Counts of the answers of an engine so far."""

    engine: Engine
    images: int = 0
    correct: int = 0
    reference_correct: int = 0
    changed: int = 0
    largest_difference: float = 0.0
    alone: float = 0.0

    def add(self, name: str, images: Tensor, truth: NDArray[np.int64], expected: NDArray[np.float64]) -> None:
        lengths, first = engine_lengths(self.engine, images), engine_lengths(self.engine, images[:1])
        if not np.isfinite(lengths).all():
            raise ValueError(f"{name} gives lengths that are no numbers")
        self.images += len(truth)
        self.correct += int((lengths.argmax(1) == truth).sum())
        self.reference_correct += int((expected.argmax(1) == truth).sum())
        self.changed += int((lengths.argmax(1) != expected.argmax(1)).sum())
        self.largest_difference = max(self.largest_difference, _largest(lengths - expected))
        self.alone = max(self.alone, _largest(lengths[:1] - first))

    def answers(self, name: str) -> Answers:
        return Answers(
            engine=name,
            images=self.images,
            changed=self.changed,
            largest_difference=self.largest_difference,
            alone=self.alone,
            accuracy=self.correct / self.images,
            reference_accuracy=self.reference_correct / self.images,
        )


def _largest(differences: NDArray[np.floating]) -> float:
    return float(np.abs(differences).max(initial=0))


def _exact(network: CapsuleNetwork) -> CapsuleNetwork:
    exact = copy.deepcopy(network).double()
    exact.primary.convolution = "direct"
    return exact


def engine_lengths(engine: Engine, images: Tensor) -> NDArray[np.float32]:
    """Return the lengths ``(b j)`` that an engine computes."""
    answer: Any = engine.run(images)
    if isinstance(answer, list):
        lengths: NDArray[np.float32] = answer[0]
    elif isinstance(answer, Tensor):
        lengths = answer.norm(dim=-1).numpy()
    else:
        lengths = answer.lengths.numpy()
    return lengths
