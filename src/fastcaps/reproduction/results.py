"""What ``results/*.json`` hold: finished runs, whose fields were checked when they were read."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from fastcaps._json import convert_json, read_json
from fastcaps._machine import Machine
from fastcaps._result import Result, Table, gather_flat, json_field
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
        evaluation: of the trained network.
    """

    about: RunDescription = json_field(flat=True)
    metrics: tuple[EpochMetrics, ...]
    evaluation: Evaluation

    @classmethod
    def of(cls, run: Run, evaluation: Evaluation) -> Self:
        """Return the result of a finished run, as it may be published."""
        # Early runs don't name their machine: most likely they are evaluated where they were trained.
        about = replace(public(run.about), machine=run.about.machine or Machine.this())
        return cls(about=about, metrics=tuple(run.metrics()), evaluation=replace(evaluation, run=None))

    @classmethod
    def from_dict(cls, values: Any, source: str = "the result") -> Self:
        """Return what `to_dict` gave, of this or an earlier version; ``source`` is named in errors."""
        run = {name: value for name, value in values.items() if name not in ("metrics", "evaluation")}
        if isinstance(values.get("metrics"), list):
            values = {**values, "metrics": [gather_flat(EpochMetrics, row) for row in values["metrics"]]}
        measured = convert_json(values, _Measurements, source)
        return cls(about=RunDescription.from_dict(run, source), **vars(measured))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a JSON file, as `from_dict` does."""
        return cls.from_dict(read_json(Path(path), dict[str, Any]), str(path))

    @property
    def best_validation_accuracy(self) -> float:
        """The highest accuracy on the validation images."""
        return max(epoch.validation_accuracy or 0.0 for epoch in self.metrics)

    def tables(self) -> list[Table]:
        """Return what was measured."""
        return self.evaluation.tables()


@dataclass(frozen=True)
class _Measurements:
    """The entries of a result beside those of ``run.json``."""

    metrics: tuple[EpochMetrics, ...]
    evaluation: Evaluation


def differing_settings(runs: list[RunResult]) -> list[str]:
    """Return the names of what differs between runs and has a say in what they find."""
    settings = [
        {
            **{k: v for k, v in run.about.settings.to_dict().items() if k not in _HARMLESS},
            "augmentation": run.about.data.augmentation,
            "fingerprint": run.about.data.fingerprint,
        }
        for run in runs
    ]
    return [name for name in (settings[0] if settings else ()) if any(s[name] != settings[0][name] for s in settings)]
