"""The commands of the command line as functions: each reads a run folder, shows progress and writes its files."""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.workflows._common import ExecutionOptions
    from fastcaps.workflows.ablation import ablate
    from fastcaps.workflows.accumulation import AccumulationResult, accumulate
    from fastcaps.workflows.analysis import AnalysisResult, analyze
    from fastcaps.workflows.benchmark import bench
    from fastcaps.workflows.compression import compress
    from fastcaps.workflows.data_preview import preview
    from fastcaps.workflows.demo import compare_bundled, demonstrate
    from fastcaps.workflows.diagnosis import Diagnosis, doctor
    from fastcaps.workflows.evaluation import evaluate
    from fastcaps.workflows.exporting import export
    from fastcaps.workflows.lengths import compare_lengths
    from fastcaps.workflows.paper_table import (
        ReproductionReport,
        ReproductionStatus,
        reproduction_report,
        reproduction_status,
    )
    from fastcaps.workflows.prediction import Predictions, predict
    from fastcaps.workflows.reproduction import ReproductionResult, reproduce
    from fastcaps.workflows.training import TrainResult, train

__all__ = [
    "train",
    "TrainResult",
    "accumulate",
    "AccumulationResult",
    "evaluate",
    "analyze",
    "AnalysisResult",
    "ablate",
    "export",
    "predict",
    "Predictions",
    "reproduce",
    "compress",
    "bench",
    "preview",
    "doctor",
    "Diagnosis",
    "compare_bundled",
    "compare_lengths",
    "demonstrate",
    "ReproductionResult",
    "reproduction_status",
    "ReproductionStatus",
    "reproduction_report",
    "ReproductionReport",
    "ExecutionOptions",
]

_MODULES = {
    "_common": ["ExecutionOptions"],
    "ablation": ["ablate"],
    "accumulation": ["accumulate", "AccumulationResult"],
    "analysis": ["analyze", "AnalysisResult"],
    "benchmark": ["bench"],
    "compression": ["compress"],
    "data_preview": ["preview"],
    "diagnosis": ["doctor", "Diagnosis"],
    "demo": ["compare_bundled", "demonstrate"],
    "evaluation": ["evaluate"],
    "exporting": ["export"],
    "lengths": ["compare_lengths"],
    "prediction": ["predict", "Predictions"],
    "reproduction": ["reproduce", "ReproductionResult"],
    "paper_table": ["reproduction_report", "reproduction_status", "ReproductionReport", "ReproductionStatus"],
    "training": ["train", "TrainResult"],
}

__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
)
