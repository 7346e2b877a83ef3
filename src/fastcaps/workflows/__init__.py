"""What the command line does, as functions of a run folder: each reads it, shows progress and writes its files."""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.workflows.ablation import ablate
    from fastcaps.workflows.accumulation import accumulate
    from fastcaps.workflows.analysis import analyze
    from fastcaps.workflows.evaluation import evaluate
    from fastcaps.workflows.reproduction import reproduce
    from fastcaps.workflows.training import TrainResult, train

__all__ = ["train", "TrainResult", "accumulate", "evaluate", "analyze", "ablate", "reproduce"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "train": "fastcaps.workflows.training",
        "TrainResult": "fastcaps.workflows.training",
        "accumulate": "fastcaps.workflows.accumulation",
        "evaluate": "fastcaps.workflows.evaluation",
        "analyze": "fastcaps.workflows.analysis",
        "ablate": "fastcaps.workflows.ablation",
        "reproduce": "fastcaps.workflows.reproduction",
    },
)
