"""Training: settings, the trainer, checkpoints and run folders."""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.training.run import Run
    from fastcaps.training.settings import TrainSettings
    from fastcaps.training.trainer import Report, Trainer

__all__ = ["Trainer", "TrainSettings", "Report", "Run"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Trainer": "fastcaps.training.trainer",
        "TrainSettings": "fastcaps.training.settings",
        "Report": "fastcaps.training.trainer",
        "Run": "fastcaps.training.run",
    },
)
