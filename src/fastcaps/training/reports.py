"""Reports of a run after each step and after each epoch."""

from dataclasses import dataclass, fields

from fastcaps._former_dict import FormerDict
from fastcaps._result import Record, json_field


@dataclass(frozen=True)
class Report(Record):
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


@dataclass(frozen=True, kw_only=True)
class EpochMetrics(FormerDict):
    """Metrics of an epoch: one line of ``metrics.jsonl``.

    Attributes:
        epoch: number of the epoch, from 1.
        routing: ``"dynamic"``, or ``"fixed"`` with fixed coefficients.
        loss: mean training loss.
        accuracy: accuracy on the augmented training images.
        learning_rate: learning rate of the last step.
        validation_accuracy: accuracy on the held-out images; None if there are none.
        test_accuracy: accuracy on the test images; None if not measured.
        measures: further metrics by name, from the ``measure`` of the trainer.
        seconds: time spent on training since the start of the run.
    """

    epoch: int
    routing: str = "dynamic"
    loss: float
    accuracy: float
    learning_rate: float
    validation_accuracy: float | None = json_field(omit_none=True)
    test_accuracy: float | None = json_field(omit_none=True)
    measures: dict[str, float] = json_field(default_factory=dict, flat=True)
    seconds: float

    def __post_init__(self) -> None:
        """Raise ValueError for further metrics with names of the others."""
        taken = sorted(set(self.measures) & {field.name for field in fields(self)})
        if taken:
            raise ValueError(f"measure returned {', '.join(taken)}, which the trainer measures: choose other names")
