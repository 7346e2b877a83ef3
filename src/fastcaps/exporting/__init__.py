"""From a PyTorch network to one ONNX file, which `fastcaps.runtime` runs without PyTorch."""

from fastcaps.exporting.exporter import Precision, export

__all__ = ["export", "Precision"]
