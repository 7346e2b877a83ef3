"""From a PyTorch network to one ONNX file, which `fastcaps.runtime` runs without PyTorch."""

from fastcaps.exporting.exporter import ExportOptions, Precision, export
from fastcaps.exporting.result import ExportResult
from fastcaps.runtime.metadata import Check

__all__ = ["export", "ExportOptions", "ExportResult", "Check", "Precision"]
