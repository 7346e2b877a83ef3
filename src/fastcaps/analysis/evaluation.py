"""Compare dynamic routing with fast routing and with two baselines.

*Uniform* coefficients are equal: no routing at all. The *ceiling* routes each image with the container of its own
class, which needs the label (paper, section 5).
"""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps.analysis.results import Evaluation, Variant
from fastcaps.analysis.statistics import compare, proportion_interval
from fastcaps.distributed import SINGLE, World
from fastcaps.functional.labels import checked_labels
from fastcaps.master import MasterCoefficients, fold
from fastcaps.nn import CapsNet, CapsuleNetwork
from fastcaps.nn.base import check_capsule_network
from fastcaps.nn.inference import Batches, evaluating, gather_batches

# A function from images (b c h w) and labels (b) to lengths (b j).
_Predictor = Callable[[Tensor, Tensor], Tensor]
_Labels = NDArray[np.int64]


def evaluate(
    model: CapsNet,
    master: MasterCoefficients,
    batches: Batches,
    observe: Callable[[int], None] = lambda images: None,
    world: World = SINGLE,
    other: CapsuleNetwork | None = None,
) -> Evaluation:
    """Classify images with dynamic, fast, uniform and ceiling routing, and with another network.

    Args:
        model: the trained network.
        master: its master coefficients.
        batches: images ``(b c h w)`` and labels ``(b)``.
        observe: called with the number of images after each batch.
        world: the ranks, each with its own images in their order; all get the same result, and speeds are added up over
            all ranks.
        other: a network to compare with, for the same images and classes.
    """
    check_capsule_network(model, "evaluate")
    if other is not None:
        _check_fits(other, model)
    predictors = _predictors(model, master, other)
    clock = _Clock()

    def step(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        labels = checked_labels(labels, len(images), model.config.classes)
        clock.start_batch(len(labels))
        return {name: clock.time(name, predictor, images, labels) for name, predictor in predictors.items()}

    with nullcontext() if other is None else evaluating(other):
        predictions = gather_batches(model, batches, step, observe=observe, world=world)
    labels = predictions.pop("labels")
    speeds = world.all_gather(np.array([[clock.images_per_second(name) for name in predictors]]))  # (rank, variant)
    variants = {}
    for name, per_rank in zip(predictors, speeds.T, strict=True):
        speed = float(per_rank.sum()) if per_rank.all() and name != "ceiling" else None
        variants[name] = _variant(name, predictions, labels, model.config.classes, speed)
    return Evaluation(images=len(labels), class_names=model.config.class_names, variants=variants, labels=labels)


def _predictors(model: CapsNet, master: MasterCoefficients, other: CapsuleNetwork | None) -> dict[str, _Predictor]:
    fast, uniform, containers = fold(model, master), fold(model, "uniform"), master.containers
    predictors: dict[str, _Predictor] = {
        "dynamic": lambda images, labels: model(images).lengths,
        "fast": lambda images, labels: fast(images).lengths,
        "uniform": lambda images, labels: uniform(images).lengths,
    }
    if master.trained_with is None and containers is not None:  # otherwise the containers belong to other weights
        predictors["ceiling"] = lambda images, labels: _ceiling_lengths(model, containers, master, images, labels)
    if other is not None:
        predictors["other"] = lambda images, labels: other(images).lengths
    return predictors


class _Clock:
    """Measure the time of variants; the first batch is a warmup, and batches of another size are not counted."""

    def __init__(self) -> None:
        self._size = self._images = 0
        self._counts = False
        self._seconds: dict[str, float] = {}

    def start_batch(self, size: int) -> None:
        self._counts, self._size = size == self._size, self._size or size
        self._images += size if self._counts else 0

    def time(self, name: str, predictor: _Predictor, images: Tensor, labels: Tensor) -> Tensor:
        start = time.perf_counter()
        predictions = predictor(images, labels).argmax(1).cpu()
        if self._counts:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start
        return predictions

    def images_per_second(self, name: str) -> float:
        return self._images / self._seconds[name] if self._images else 0.0


def _variant(
    name: str, predictions: Mapping[str, _Labels], labels: _Labels, classes: int, speed: float | None
) -> Variant:
    own = predictions[name]
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels, own), 1)
    correct = int(confusion.trace())
    with np.errstate(invalid="ignore"):
        per_class = confusion.diagonal() / confusion.sum(1)
    against = {
        baseline: compare(predictions[baseline], own, labels)
        for baseline in (("dynamic", "uniform", "other") if name == "fast" else ("dynamic",))
        if baseline in predictions and baseline != name
    }
    return Variant(
        correct=correct,
        errors=len(labels) - correct,
        accuracy=correct / len(labels),
        interval=proportion_interval(correct, len(labels)),
        per_class=per_class,
        confusion=confusion,
        images_per_second=speed,
        against_dynamic=against.get("dynamic"),
        against_uniform=against.get("uniform"),
        against_other=against.get("other"),
        predictions=own,
    )


def _check_fits(other: CapsuleNetwork, model: CapsNet) -> None:
    """Raise if a network is for other images or other classes."""
    for name in ("channels", "height", "width", "class_names"):
        value, expected = getattr(other.config, name), getattr(model.config, name)
        if value != expected:
            raise ValueError(
                f"the network to compare with has {name} {value}, expected {expected}: take one for the same images"
            )


def _ceiling_lengths(
    model: CapsNet, containers: Tensor, master: MasterCoefficients, images: Tensor, labels: Tensor
) -> Tensor:
    """Return lengths ``(b j)`` with the normalized container of each image's own class as coefficients."""
    capsules = model.lower_capsules(images)  # (b, i, d)
    lengths = capsules.new_empty(len(images), model.config.classes)
    for label in torch.unique(labels):
        coefficients = master.normalization(containers[label] / master.counts[label])  # (i, j)
        members = labels == label
        output = model.routing.apply_coefficients(capsules[members], coefficients)  # (b, j, e)
        lengths[members] = torch.linalg.vector_norm(output, dim=-1)
    return lengths
