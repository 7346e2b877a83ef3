"""Dynamic routing beside fast, with the two baselines that keep us honest.

*Uniform* coefficients are all ones: no routing at all. The *ceiling* routes each image with its own class's container,
which nobody can do without knowing the answer (paper, section 5).
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps.analysis.statistics import Comparison, compare, proportion_interval
from fastcaps.distributed import SINGLE, World
from fastcaps.functional.labels import checked_labels
from fastcaps.master import MasterCoefficients, fold
from fastcaps.nn import CapsNet, CapsuleNetwork


@dataclass(frozen=True)
class Variant:
    """One way of routing, on one set of images.

    Attributes:
        name: of the way.
        predictions: a class for each image ``(n)``.
        correct: number of right ones.
        accuracy: their share.
        interval: its 95 % interval (Wilson).
        per_class: accuracy on each class's images ``(j)``.
        confusion: images of class (row) taken for class (column) ``(j j)``.
        images_per_second: of the whole network; None where that means nothing.
        against_dynamic: the paired comparison; None for dynamic routing itself.
        against_uniform: likewise, for fast routing only: what its coefficients are good for.
        against_other: likewise, for fast routing only, where there is another network.
    """

    name: str
    predictions: NDArray[np.int64]
    correct: int
    accuracy: float
    interval: tuple[float, float]
    per_class: NDArray[np.float64]
    confusion: NDArray[np.int64]
    images_per_second: float | None
    against_dynamic: Comparison | None
    against_uniform: Comparison | None = None
    against_other: Comparison | None = None


@dataclass(frozen=True)
class Evaluation:
    """All ways of routing on the same images.

    Attributes:
        labels: the truth ``(n)``.
        class_names: in the order of the labels.
        variants: ``dynamic``, ``fast``, ``uniform``, ``ceiling``; no ceiling for a network that was trained with fixed
            coefficients, whose containers are of other weights, and where containers were too large to be kept.
            ``other`` where another network was given.
    """

    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    variants: dict[str, Variant]

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON, without the single predictions."""
        return {
            "images": len(self.labels),
            "class_names": list(self.class_names),
            "variants": {
                name: {
                    "correct": variant.correct,
                    "errors": len(self.labels) - variant.correct,
                    "accuracy": variant.accuracy,
                    "interval": list(variant.interval),
                    "per_class": [None if np.isnan(share) else float(share) for share in variant.per_class],
                    "confusion": variant.confusion.tolist(),
                    "images_per_second": variant.images_per_second,
                    "against_dynamic": asdict(variant.against_dynamic) if variant.against_dynamic else None,
                    "against_uniform": asdict(variant.against_uniform) if variant.against_uniform else None,
                    **({"against_other": asdict(variant.against_other)} if variant.against_other else {}),
                }
                for name, variant in self.variants.items()
            },
        }


@torch.no_grad()
def evaluate(
    model: CapsNet,
    master: MasterCoefficients,
    batches: Iterable[tuple[Tensor, Tensor]],
    observe: Callable[[int], None] = lambda images: None,
    world: World = SINGLE,
    other: CapsuleNetwork | None = None,
) -> Evaluation:
    """Classify images in four ways: dynamic, fast, uniform, ceiling; and with another network.

    Args:
        model: the trained network.
        master: its master coefficients.
        batches: images ``(b c h w)`` and labels ``(b)``.
        observe: told how many images were just done.
        world: where each rank has its own images, those of one following those of the rank before; then all get the
            same result, and its speeds are of all together.
        other: a network to compare with, for the same images and classes.
    """
    if other is not None:
        _check_fits(other, model)
    networks: list[CapsuleNetwork] = [network for network in (model, other) if network is not None]
    were_training = [network.training for network in networks]
    for network in networks:
        network.eval()
    weight = model.routing.weight
    fast = fold(model, master)
    uniform = fold(model, "uniform")
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "dynamic": lambda images, labels: model(images).lengths,
        "fast": lambda images, labels: fast(images).lengths,
        "uniform": lambda images, labels: uniform(images).lengths,
    }
    containers = master.containers
    if master.trained_with is None and containers is not None:  # otherwise they are of other weights
        ways["ceiling"] = lambda images, labels: _own_lengths(model, containers, master, images, labels)
    if other is not None:
        ways["other"] = lambda images, labels: other(images).lengths
    found: dict[str, list[NDArray[np.int64]]] = {name: [np.empty(0, np.int64)] for name in ways}
    seconds = dict.fromkeys(ways, 0.0)
    truth: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    timed, size = 0, 0
    for images, labels in batches:
        # The first batch warms up, and one that is smaller says little.
        counts, size = len(labels) == size, size or len(labels)
        on_device = images.to(weight.device)
        label_device = checked_labels(labels.to(weight.device), len(images), model.config.classes)
        for name, way in ways.items():
            start = time.perf_counter()
            lengths = way(on_device, label_device)
            found[name].append(lengths.argmax(1).cpu().numpy())
            if counts:
                seconds[name] += time.perf_counter() - start
        timed += len(labels) if counts else 0
        truth.append(labels.cpu().numpy())
        observe(len(labels))
    for network, was_training in zip(networks, were_training, strict=True):
        network.train(was_training)
    labels_ = world.all_gather(np.concatenate(truth))
    if not len(labels_):
        raise ValueError("there are no images to evaluate on")
    predictions = {name: world.all_gather(np.concatenate(parts)) for name, parts in found.items()}
    speeds = world.all_gather(np.array([[timed / seconds[name] if timed else 0.0 for name in ways]]))  # (rank, way)
    variants = {}
    for (name, answers), of_ranks in zip(predictions.items(), speeds.T, strict=True):
        speed = float(of_ranks.sum()) if of_ranks.all() and name != "ceiling" else None
        variants[name] = _variant(name, answers, labels_, model.config.classes, speed, predictions)
    return Evaluation(labels_, model.config.class_names, variants)


def _variant(
    name: str,
    predictions: NDArray[np.int64],
    labels: NDArray[np.int64],
    classes: int,
    speed: float | None,
    others: dict[str, NDArray[np.int64]],
) -> Variant:
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels, predictions), 1)
    correct = int(confusion.trace())
    with np.errstate(invalid="ignore"):
        per_class = confusion.diagonal() / confusion.sum(1)
    return Variant(
        name=name,
        predictions=predictions,
        correct=correct,
        accuracy=correct / len(labels),
        interval=proportion_interval(correct, len(labels)),
        per_class=per_class,
        confusion=confusion,
        images_per_second=speed,
        against_dynamic=None if name == "dynamic" else compare(others["dynamic"], predictions, labels),
        against_uniform=compare(others["uniform"], predictions, labels) if name == "fast" else None,
        against_other=compare(others["other"], predictions, labels) if name == "fast" and "other" in others else None,
    )


def _check_fits(other: CapsuleNetwork, model: CapsNet) -> None:
    """Refuse a network that can't be asked about the same images, or answers with other classes."""
    for what in ("channels", "height", "width", "class_names"):
        given, expected = getattr(other.config, what), getattr(model.config, what)
        if given != expected:
            raise ValueError(
                f"the network to compare with has {what} {given}, expected {expected}: take one for the same images"
            )


def _own_lengths(
    model: CapsNet, containers: Tensor, master: MasterCoefficients, images: Tensor, labels: Tensor
) -> Tensor:
    """Lengths ``(b j)`` with the normalized container of each image's own class as coefficients."""
    capsules = model.lower_capsules(images)  # (b, i, d)
    lengths = capsules.new_empty(len(images), model.config.classes)
    for label in torch.unique(labels):
        coefficients = master.normalization(containers[label] / master.counts[label])  # (i, j)
        mine = labels == label
        own = model.routing.apply_coefficients(capsules[mine], coefficients)  # (b, j, e)
        lengths[mine] = torch.linalg.vector_norm(own, dim=-1)
    return lengths
