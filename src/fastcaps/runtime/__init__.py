"""From a trained network to one ONNX file, and from that file to answers without PyTorch.

`load` and what it gives need NumPy and ONNX Runtime only. `export` makes the file; it needs PyTorch and ONNX.
"""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.runtime.exporting import export
    from fastcaps.runtime.session import Predictor, load

__all__ = ["load", "Predictor", "export"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "load": "fastcaps.runtime.session",
        "Predictor": "fastcaps.runtime.session",
        "export": "fastcaps.runtime.exporting",
    },
)
