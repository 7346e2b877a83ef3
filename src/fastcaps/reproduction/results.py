"""What ``run.json`` and ``results/*.json`` hold, as objects whose fields were checked when they were read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from fastcaps._json import read_json
from fastcaps._result import Result, Table, json_field
from fastcaps.analysis.results import Evaluation
from fastcaps.nn.config import CapsNetConfig
from fastcaps.training.settings import TrainSettings

# Settings in which runs may differ and still be one experiment.
_HARMLESS = {"seed", "test_every", "checkpoint_every"}


@dataclass(frozen=True)
class Provenance:
    """Where images come from: ``"original"`` files, ``"generated"`` ones, or a folder."""

    kind: str


@dataclass(frozen=True, kw_only=True)
class DataRecord:
    """The data set of a run: its name, its numbers of images, and what identifies it."""

    name: str
    provenance: Provenance
    train: int | None = None
    validation: int
    test: int
    augmentation: Any = None
    fingerprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run that tables show."""

    seed: int
    epochs: int
    learning_rate: float
    loss: str = "margin"


@dataclass(frozen=True)
class Machine:
    """What a run was made on."""

    processor: str
    cores: int


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Accuracies after an epoch; None where they were not measured."""

    epoch: int
    validation_accuracy: float | None = None
    test_accuracy: float | None = None
    fast_test_accuracy: float | None = None


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class RunRecord(Result):
    """What ``run.json`` says of a run.

    Attributes:
        command: command line that made it.
        data: its data set.
        settings: those that tables show.
        config: of the network.
        fixed_coefficients: whether it was trained with fixed coefficients.
        init: the run from whose weights it started.
        master: the coefficients it was trained with.
        rounded: precision to which its weights were rounded before evaluation.
        threads: CPU threads.
        versions: of packages, by name.
        seconds: of training.
        machine: what it was made on.
        values: everything that was read.
    """

    command: str = json_field(default_factory=str)
    data: DataRecord
    settings: Settings
    config: CapsNetConfig
    fixed_coefficients: bool = False
    init: Any = None
    master: Any = None
    rounded: str | None = None
    threads: int | None = None
    versions: Mapping[str, str] | None = None
    seconds: float | None = None
    machine: Machine | None = None
    values: Mapping[str, Any] = json_field(omit=True, default_factory=dict)

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return what a run says of itself as an object, which keeps the entries that are no fields, too."""
        return replace(super().from_dict(values), values=values)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a JSON file, as `from_dict` does."""
        return replace(super().load(path), values=read_json(Path(path), dict[str, Any]))

    @property
    def all_settings(self) -> dict[str, Any]:
        """All settings, with the defaults of those that there were not yet when the run was made."""
        return TrainSettings.with_defaults(self.values["settings"])

    def to_dict(self) -> dict[str, Any]:
        """Return everything that was read."""
        return dict(self.values)

    def tables(self) -> list[Table]:
        """Return what was trained."""
        rows = [["data", self.data.name], ["normalization", self.config.normalization]]
        rows += [[name, str(value)] for name, value in self.all_settings.items()]
        return [Table(self.command, ["", ""], rows)]


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class RunResult(RunRecord):
    """A finished run: how it was made, its epochs and its evaluation.

    Attributes:
        metrics: one entry per epoch.
        evaluation: of the trained network.
    """

    metrics: tuple[Epoch, ...]
    evaluation: Evaluation

    @property
    def best_validation_accuracy(self) -> float:
        """The highest accuracy on the validation images."""
        return max(epoch.validation_accuracy or 0.0 for epoch in self.metrics)

    def tables(self) -> list[Table]:
        """Return what was measured."""
        return self.evaluation.tables()


def differing_settings(runs: list[RunResult]) -> list[str]:
    """Return the names of what differs between runs and has a say in what they find."""
    settings = [
        {
            **{k: v for k, v in run.all_settings.items() if k not in _HARMLESS},
            "augmentation": run.data.augmentation,
            "fingerprint": run.data.fingerprint,
        }
        for run in runs
    ]
    return [name for name in (settings[0] if settings else ()) if any(s[name] != settings[0][name] for s in settings)]
