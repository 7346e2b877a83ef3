"""Compare master matrices on the same images, always beside uniform coefficients (appendix A).

A trial is one matrix: which images were accumulated (filter), how their sums became a matrix (method), and from which
iteration of routing they are. The baseline is the uniform matrix, equal coefficients, which needs no image. The
best is chosen on images held out from training; the test set is only reported.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps._figure import Figure
from fastcaps._result import Result, Table, json_field, plain
from fastcaps.analysis.results import Comparison
from fastcaps.analysis.statistics import compare, proportion_interval
from fastcaps.master.summary import FORMER_METHODS
from fastcaps.nn import CapsNet, FoldedCapsuleLayer
from fastcaps.nn.inference import Batches, gather_batches

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Score:
    """Score of one matrix on a set of images.

    Attributes:
        accuracy: share of correct predictions.
        interval: 95 % interval of the accuracy (Wilson).
        against_dynamic: paired comparison with dynamic routing.
        against_uniform: paired comparison with uniform coefficients.
    """

    accuracy: float
    interval: tuple[float, float]
    against_dynamic: Comparison
    against_uniform: Comparison


@dataclass(frozen=True)
class Trial:
    """One matrix and its scores.

    Attributes:
        filter: name of the chain of filters; ``"none"`` for all images.
        method: how the matrix was built from the sums.
        iteration: iteration of routing; one more than the network has for the update after the last.
        images: number of accumulated images; 0 for the uniform matrix.
        validation: scores on images held out from training; None when there are none.
        test: scores on the test images.
    """

    filter: str
    method: str
    iteration: int
    images: int
    validation: Score | None
    test: Score

    def __post_init__(self) -> None:
        """Replace the former name of a method."""
        object.__setattr__(self, "method", FORMER_METHODS.get(self.method, self.method))

    def describe(self, iterations: int) -> str:
        """Return the trial in a few words, for a network with ``iterations`` iterations of routing."""
        if not self.images:
            return "uniform: no routing"
        name = iteration_name(self.iteration, iterations)
        return f"{self.filter}, {self.method}, {f'iteration {name}' if name.isdecimal() else name}"


@dataclass(frozen=True, repr=False, eq=False)
class Ablation(Result):
    """All trials on the same images.

    Attributes:
        dynamic: accuracy of dynamic routing by part of the data.
        images: number of images by part.
        uniform: the baseline.
        trials: in the order of the iterations, filters and methods.
        skipped: reasons why a filter has no trial at an iteration.
        iterations: number of iterations of the network's routing.
        run: folder of the run.
        command: command line that compared them.
        data: name of the data set.
        images_note: how the images differ from those that the network was trained with; None for its own.
        limit: number of training images that were accumulated; None for all.
        versions: versions of packages, by name.
    """

    dynamic: Mapping[str, float]
    images: Mapping[str, int]
    uniform: Trial
    trials: tuple[Trial, ...]
    skipped: tuple[str, ...] = ()
    iterations: int = 3
    run: str | None = json_field(omit_none=True)
    command: str | None = json_field(omit_none=True)
    data: str | None = json_field(omit_none=True)
    images_note: str | None = json_field(omit_none=True)
    limit: int | None = None
    versions: Mapping[str, str] | None = json_field(omit_none=True)

    @property
    def best(self) -> Trial | None:
        """The trial with the highest accuracy on held-out images, the first in a tie; None without held-out images."""
        if self.uniform.validation is None:
            return None
        return max((self.uniform, *self.trials), key=lambda trial: trial.validation.accuracy if trial.validation else 0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the best trial."""
        return {**super().to_dict(), "best": plain(self.best)}

    def tables(self) -> list[Table]:
        """Return one row per trial."""
        held_out = self.best is not None
        parts = (f"{share:.2%} of {self.images[part]:,} {part}" for part, share in self.dynamic.items())
        title = f"{self.data + ': ' if self.data else ''}dynamic routing {', '.join(parts)} images"
        columns = ["filter", "method", "iteration", "images", *(["validation"] if held_out else []), "test", "95 %"]
        columns += ["changed", "uniform: +, −", "McNemar p"]
        return [Table(title, columns, [self._row(trial, held_out) for trial in (self.uniform, *self.trials)])]

    def sentences(self) -> list[str]:
        """Return what was skipped, and which trial is the best on the held-out images."""
        return [*(f"skipped {line}" for line in self.skipped), self._conclusion()]

    def _conclusion(self) -> str:
        best = self.best
        if best is None or best.validation is None:
            return "The run held out no images, so none of these is chosen: train with validation images to choose."
        words = ""
        if best.images:
            against = best.test.against_uniform
            low, high = (100 * end for end in against.interval)
            words = (
                f", {100 * against.difference:+.2f} points against uniform ({low:+.2f} to {high:+.2f}, "
                f"p = {against.p_value:.2g})"
            )
        return (
            f"Best on the held-out images: {best.describe(self.iterations)}, {best.validation.accuracy:.2%}; on the "
            f"test images {best.test.accuracy:.2%}{words}."
        )

    def _row(self, trial: Trial, held_out: bool) -> list[str]:
        test, uniform = trial.test, trial.test.against_uniform
        low, high = test.interval
        accumulated, compared = ["", ""], ["", ""]
        if trial.images:
            accumulated = [iteration_name(trial.iteration, self.iterations), f"{trial.images:,}"]
            compared = [f"+{uniform.gained} −{uniform.lost}", f"{uniform.p_value:.2g}"]
        validation = [f"{trial.validation.accuracy:.2%}"] if held_out and trial.validation else []
        scores = [*validation, f"{test.accuracy:.2%}", f"{100 * low:.1f}–{100 * high:.1f}"]
        return [trial.filter, trial.method, *accumulated, *scores, str(test.against_dynamic.changed), *compared]


def predictions(
    model: CapsNet,
    matrices: Sequence[Tensor],
    batches: Batches,
    observe: Callable[[int], None] = lambda images: None,
) -> tuple[Labels, Labels, Labels]:
    """Classify images with dynamic routing and with many matrices; lower capsules are computed only once.

    Args:
        model: the trained network.
        matrices: coefficients ``(i j)`` each.
        batches: images ``(b c h w)`` and labels ``(b)``.
        observe: called with the number of images after each batch.

    Returns:
        Labels ``(n)``, the predictions of dynamic routing ``(n)``, and those of each matrix ``(matrices, n)``.
    """
    folded = [FoldedCapsuleLayer.from_layer(model.routing, matrix) for matrix in matrices]

    def step(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        lower = model.lower_capsules(images)  # (b, i, d)
        fixed = torch.stack([_longest(layer(lower)) for layer in folded], 1)  # (b, matrices)
        return {"dynamic": _longest(model.routing(lower)), "fixed": fixed}

    gathered = gather_batches(model, batches, step, observe=observe)
    return gathered["labels"], gathered["dynamic"], gathered["fixed"].T


def score(labels: Labels, dynamic: Labels, uniform: Labels, predicted: Labels) -> Score:
    """Score the predictions of one matrix; all ``(n)``."""
    correct = int((predicted == labels).sum())
    return Score(
        accuracy=correct / len(labels),
        interval=proportion_interval(correct, len(labels)),
        against_dynamic=compare(dynamic, predicted, labels),
        against_uniform=compare(uniform, predicted, labels),
    )


def ablation_figure(ablation: Ablation) -> Figure:
    """Draw the test accuracy of every trial with its interval, and lines for dynamic routing and the uniform matrix."""
    trials = ablation.trials
    figure = Figure(figsize=(8, max(2.5, 1.6 + 0.22 * len(trials))), layout="constrained")
    panel = figure.subplots()
    places = np.arange(len(trials))
    accuracy = np.array([trial.test.accuracy for trial in trials]) * 100
    low, high = (np.array([trial.test.interval[end] for trial in trials]) * 100 for end in (0, 1))
    panel.errorbar(
        accuracy, places, xerr=[accuracy - low, high - accuracy], fmt="o", color="#0072b2", markersize=4, elinewidth=0.8
    )
    dynamic, uniform = ablation.dynamic["test"] * 100, ablation.uniform.test.accuracy * 100
    panel.axvline(dynamic, color="#333333", label=f"dynamic routing, {dynamic:.2f} %")
    panel.axvline(uniform, color="#d55e00", linestyle="--", label=f"uniform: no routing, {uniform:.2f} %")
    panel.set_yticks(places, [trial.describe(ablation.iterations) for trial in trials], fontsize=8)
    panel.invert_yaxis()
    panel.margins(y=0.02)
    panel.set_xlabel(f"accuracy on {ablation.images['test']:,} test images, % (95 % interval)")
    panel.grid(axis="x", color="#dddddd", linewidth=0.6)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def iteration_name(iteration: int, iterations: int) -> str:
    """Return the name of an iteration: its number, or ``final`` for the update after the last."""
    return "final" if iteration == iterations + 1 else str(iteration)


def _longest(capsules: Tensor) -> Tensor:
    longest: Tensor = torch.linalg.vector_norm(capsules, dim=-1).argmax(1)
    return longest
