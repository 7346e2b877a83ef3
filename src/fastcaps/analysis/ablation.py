"""Which coefficients are worth having: many matrices on the same images, always beside none at all (appendix A).

Each trial is a matrix built in one way: which images were accumulated (filter), how their sums became a matrix
(method), and from which iteration of routing they are. The baseline is the uniform matrix, all ones, which needs no
image. What is chosen is chosen on images held out from training; the test set is only reported.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fastcaps.analysis.results import Comparison
from fastcaps.analysis.statistics import compare, proportion_interval
from fastcaps.nn import CapsNet, FoldedCapsuleLayer


@dataclass(frozen=True)
class Score:
    """How one matrix does on some images.

    Attributes:
        accuracy: share of right answers.
        interval: its 95 % interval (Wilson).
        against_dynamic: the paired comparison with dynamic routing.
        against_uniform: the paired comparison with uniform coefficients.
    """

    accuracy: float
    interval: tuple[float, float]
    against_dynamic: Comparison
    against_uniform: Comparison


@dataclass(frozen=True)
class Trial:
    """One way of building the matrix.

    Attributes:
        filter: name of the chain of filters; ``"none"`` for all images.
        method: of building the matrix.
        iteration: of routing, one more than the network has for the update after the last.
        images: that were accumulated; 0 for the uniform matrix.
        validation: on images held out from training; None when there are none.
        test: on the test images.
    """

    filter: str
    method: str
    iteration: int
    images: int
    validation: Score | None
    test: Score


@dataclass(frozen=True)
class Ablation:
    """All trials on the same images.

    Attributes:
        dynamic: accuracy of dynamic routing on each part.
        images: number of images of each part.
        uniform: the baseline.
        trials: in the order in which they were asked for.
        skipped: why a filter has no trial at an iteration.
    """

    dynamic: dict[str, float]
    images: dict[str, int]
    uniform: Trial
    trials: tuple[Trial, ...]
    skipped: tuple[str, ...] = ()

    @property
    def best(self) -> Trial | None:
        """The trial that does best on the held-out images, the first of equals; None when none were held out."""
        if self.uniform.validation is None:
            return None
        return max((self.uniform, *self.trials), key=lambda trial: trial.validation.accuracy if trial.validation else 0)

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        best = self.best
        return {**asdict(self), "best": None if best is None else asdict(best)}


@torch.no_grad()
def answers(
    model: CapsNet,
    matrices: Sequence[Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    observe: Callable[[int], None] = lambda images: None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Classify images dynamically and with many matrices at once; lower capsules are made once for all.

    Args:
        model: the trained network.
        matrices: coefficients ``(i j)`` each.
        batches: images ``(b c h w)`` and labels ``(b)``.
        observe: told how many images were just done.

    Returns:
        Labels ``(n)``, the answers of dynamic routing ``(n)``, and those with each matrix ``(matrices, n)``.
    """
    weight = model.routing.weight
    folded = [FoldedCapsuleLayer.from_layer(model.routing, matrix) for matrix in matrices]
    truth, dynamic = [], []
    fixed: list[list[NDArray[np.int64]]] = [[] for _ in folded]
    for images, labels in batches:
        lower = model.lower_capsules(images.to(weight.device))  # (b, i, d)
        dynamic.append(_longest(model.routing(lower)))
        for number, one in enumerate(folded):
            fixed[number].append(_longest(one(lower)))
        truth.append(labels.cpu().numpy())
        observe(len(labels))
    if not truth:
        raise ValueError("there are no images to compare coefficients on")
    return np.concatenate(truth), np.concatenate(dynamic), np.stack([np.concatenate(parts) for parts in fixed])


def score(
    truth: NDArray[np.int64], dynamic: NDArray[np.int64], uniform: NDArray[np.int64], found: NDArray[np.int64]
) -> Score:
    """Score the answers of one matrix; all ``(n)``."""
    correct = int((found == truth).sum())
    return Score(
        accuracy=correct / len(truth),
        interval=proportion_interval(correct, len(truth)),
        against_dynamic=compare(dynamic, found, truth),
        against_uniform=compare(uniform, found, truth),
    )


def ablation_figure(found: dict[str, Any], iterations: int) -> Figure:
    """Test accuracy of every trial with its interval, between lines for dynamic routing and the uniform matrix.

    Args:
        found: what `Ablation.to_dict` gives.
        iterations: of the network's routing, to name the update after the last.
    """
    trials = found["trials"]
    labels = [trial_words(trial, iterations) for trial in trials]
    figure = Figure(figsize=(8, max(2.5, 1.6 + 0.22 * len(trials))), layout="constrained")
    panel = figure.subplots()
    places = np.arange(len(trials))
    accuracy = np.array([trial["test"]["accuracy"] for trial in trials]) * 100
    low, high = (np.array([trial["test"]["interval"][end] for trial in trials]) * 100 for end in (0, 1))
    panel.errorbar(
        accuracy, places, xerr=[accuracy - low, high - accuracy], fmt="o", color="#0072b2", markersize=4, elinewidth=0.8
    )
    dynamic, uniform = found["dynamic"]["test"] * 100, found["uniform"]["test"]["accuracy"] * 100
    panel.axvline(dynamic, color="#333333", label=f"dynamic routing, {dynamic:.2f} %")
    panel.axvline(uniform, color="#d55e00", linestyle="--", label=f"uniform: all ones, {uniform:.2f} %")
    panel.set_yticks(places, labels, fontsize=8)
    panel.invert_yaxis()
    panel.margins(y=0.02)
    panel.set_xlabel(f"accuracy on {found['images']['test']:,} test images, % (95 % interval)")
    panel.grid(axis="x", color="#dddddd", linewidth=0.6)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def trial_words(trial: dict[str, Any], iterations: int) -> str:
    """A trial in a few words."""
    return f"{trial['filter']}, {trial['method']}, {iteration_words(trial['iteration'], iterations)}"


def iteration_words(iteration: int, iterations: int) -> str:
    """An iteration as the command line calls it."""
    return "after" if iteration == iterations + 1 else f"iteration {iteration}"


def _longest(capsules: Tensor) -> NDArray[np.int64]:
    longest: NDArray[np.int64] = torch.linalg.vector_norm(capsules, dim=-1).argmax(1).cpu().numpy()
    return longest
