"""The content of ``results/*.json``: finished runs, whose fields are checked when they are read."""

from dataclasses import dataclass, field, replace
from typing import Self

from fastcaps._machine import Machine
from fastcaps._result import Result, Table
from fastcaps.analysis.results import Evaluation
from fastcaps.training.description import RunDescription
from fastcaps.training.reports import EpochMetrics
from fastcaps.training.result import public
from fastcaps.training.run import Run

# Settings in which runs may differ and still be one experiment.
_HARMLESS = {"seed", "test_every", "checkpoint_every"}


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class RunResult(Result):
    """A finished run: how it was made, its epochs and its evaluation.

    Attributes:
        about: content of its ``run.json``.
        metrics: one entry per epoch.
        evaluation: evaluation of the trained network.
    """

    about: RunDescription = field(metadata={"flat": True})
    metrics: tuple[EpochMetrics, ...]
    evaluation: Evaluation

    @classmethod
    def of(cls, run: Run, evaluation: Evaluation) -> Self:
        """Return the result of a finished run, as it may be published."""
        # Early runs don't name their machine: most likely they are evaluated where they were trained.
        about = replace(public(run.about), machine=run.about.machine or Machine.this())
        return cls(about=about, metrics=tuple(run.metrics()), evaluation=replace(evaluation, run=None))

    @property
    def best_validation_accuracy(self) -> float | None:
        """The highest accuracy on the validation images; None without such images."""
        known = (epoch.validation_accuracy for epoch in self.metrics)
        return max((accuracy for accuracy in known if accuracy is not None), default=None)

    def accuracy(self, routing: str) -> float:
        """Return the accuracy with ``"dynamic"``, ``"fast"`` or ``"uniform"`` routing."""
        return self.evaluation.variants[routing].accuracy

    def tables(self) -> list[Table]:
        """Return what was measured."""
        return self.evaluation.tables()


def differing_settings(runs: list[RunResult]) -> list[str]:
    """Return the names of settings that differ between runs and influence their results."""
    settings = [
        {
            **{k: v for k, v in run.about.settings.to_dict().items() if k not in _HARMLESS},
            # Earlier versions did not write rotation and zoom, which are 0 by default.
            "augmentation": {k: v for k, v in run.about.data.augmentation.items() if v},
            "fingerprint": run.about.data.fingerprint,
        }
        for run in runs
    ]
    return [name for name in (settings[0] if settings else ()) if any(s[name] != settings[0][name] for s in settings)]
