"""Inference without PyTorch: from a file that `fastcaps.export` wrote to answers, with NumPy and ONNX Runtime."""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.runtime.session import Predictor, load

__all__ = ["load", "Predictor"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "load": "fastcaps.runtime.session",
        "Predictor": "fastcaps.runtime.session",
    },
    deprecated={"export": ("fastcaps.exporting._deprecated", "export_with_tests", "fastcaps.export(…, tests=…)")},
)
