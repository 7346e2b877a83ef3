"""What a run reports: after each step, and after each epoch."""

import dataclasses
import warnings
from dataclasses import dataclass, field
from typing import Any, Self

from fastcaps._json import convert_json


@dataclass(frozen=True)
class Report:
    """State of a run after a step.

    Attributes:
        task: ``"training"``, or ``"accumulating"`` while coefficients are accumulated between two epochs.
        epoch: number of the epoch, from 1.
        epochs: epochs of the run.
        step: number of the step in the epoch, from 1.
        steps: steps of the epoch.
        loss: mean loss of the epoch so far.
        accuracy: accuracy of the epoch so far, on the augmented training images.
        images_per_second: speed of the last steps, of all processes together.
        seconds_left: estimated time until the end of the run.
    """

    task: str
    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float
    images_per_second: float
    seconds_left: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class EpochMetrics:
    """Metrics of an epoch: one line of ``metrics.jsonl``.

    Attributes:
        epoch: number of the epoch, from 1.
        routing: ``"dynamic"``, or ``"fixed"`` with fixed coefficients.
        loss: mean training loss.
        accuracy: accuracy on the augmented training images.
        learning_rate: learning rate of the last step.
        validation_accuracy: accuracy on the images held out; None where none are.
        test_accuracy: accuracy on the test images; None where not measured.
        measures: further metrics by name, from the ``measure`` of the trainer.
        seconds: time spent on training since the start of the run.
    """

    epoch: int
    routing: str = "dynamic"
    loss: float
    accuracy: float
    learning_rate: float
    validation_accuracy: float | None = None
    test_accuracy: float | None = None
    measures: dict[str, float] = field(default_factory=dict)
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without what was not measured."""
        values = dataclasses.asdict(self)
        measures, seconds = values.pop("measures"), values.pop("seconds")
        measured = {name: value for name, value in values.items() if value is not None}
        return {**measured, **measures, "seconds": seconds}

    @classmethod
    def from_dict(cls, row: Any) -> Self:
        """Return the metrics that `to_dict` gave; raise ValueError if an entry is missing or wrong."""
        return convert_json(cls.fields_of(row), cls, "a row of metrics")

    @classmethod
    def fields_of(cls, row: Any) -> Any:
        """Return a row of `to_dict` with its further metrics in ``measures``, as the fields are."""
        if not isinstance(row, dict):
            return row
        names = {entry.name for entry in dataclasses.fields(cls)} - {"measures"}
        own = {name: value for name, value in row.items() if name in names}
        return {**own, "measures": {name: value for name, value in row.items() if name not in names}}

    def __getitem__(self, name: str) -> Any:
        """Return an entry of `to_dict`; deprecated, for code written when rows were dictionaries."""
        warnings.warn(
            f'metrics["{name}"]: use metrics.{name}, or metrics.to_dict(); will be removed in the next release',
            DeprecationWarning,
            stacklevel=2,
        )
        return self.to_dict()[name]
