"""Training: settings, the trainer, loggers, checkpoints and run folders."""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.training.config import TrainConfig
    from fastcaps.training.loggers import CallbackLogger, ConsoleLogger, JsonlLogger, Logger, TensorBoardLogger
    from fastcaps.training.reports import EpochMetrics, Report
    from fastcaps.training.run import Run
    from fastcaps.training.settings import TrainSettings
    from fastcaps.training.trainer import Trainer

__all__ = [
    "Trainer",
    "TrainSettings",
    "TrainConfig",
    "Run",
    "Report",
    "EpochMetrics",
    "Logger",
    "ConsoleLogger",
    "JsonlLogger",
    "TensorBoardLogger",
    "CallbackLogger",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Trainer": "fastcaps.training.trainer",
        "TrainSettings": "fastcaps.training.settings",
        "TrainConfig": "fastcaps.training.config",
        "Run": "fastcaps.training.run",
        "Report": "fastcaps.training.reports",
        "EpochMetrics": "fastcaps.training.reports",
        "Logger": "fastcaps.training.loggers",
        "ConsoleLogger": "fastcaps.training.loggers",
        "JsonlLogger": "fastcaps.training.loggers",
        "TensorBoardLogger": "fastcaps.training.loggers",
        "CallbackLogger": "fastcaps.training.loggers",
    },
)
