"""fastcaps: capsule networks whose routing is one matrix multiply at inference.

Train a capsule network with dynamic routing, accumulate its routing coefficients over the training images into
one matrix, fold that matrix into the weights, and classify without a routing loop.
"""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names
from fastcaps._version import __version__

if TYPE_CHECKING:
    from fastcaps import analysis, bundled, data, functional, master, nn, runtime, training, workflows
    from fastcaps.compression.search import compress
    from fastcaps.exporting import export
    from fastcaps.master.accumulator import accumulate
    from fastcaps.master.coefficients import MasterCoefficients
    from fastcaps.master.folding import fold
    from fastcaps.master.recording import record
    from fastcaps.nn.capsnet import CapsNet
    from fastcaps.nn.config import CapsNetConfig
    from fastcaps.nn.fast import FastCapsNet

__all__ = [
    "CapsNetConfig",
    "CapsNet",
    "accumulate",
    "MasterCoefficients",
    "fold",
    "record",
    "FastCapsNet",
    "export",
    "compress",
    "functional",
    "nn",
    "master",
    "data",
    "training",
    "analysis",
    "runtime",
    "workflows",
    "bundled",
    "__version__",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CapsNetConfig": "fastcaps.nn.config",
        "CapsNet": "fastcaps.nn.capsnet",
        "accumulate": "fastcaps.master.accumulator",
        "MasterCoefficients": "fastcaps.master.coefficients",
        "fold": "fastcaps.master.folding",
        "record": "fastcaps.master.recording",
        "export": "fastcaps.exporting",
        "compress": "fastcaps.compression.search",
        "FastCapsNet": "fastcaps.nn.fast",
        "functional": "fastcaps.functional",
        "nn": "fastcaps.nn",
        "master": "fastcaps.master",
        "data": "fastcaps.data",
        "training": "fastcaps.training",
        "analysis": "fastcaps.analysis",
        "runtime": "fastcaps.runtime",
        "workflows": "fastcaps.workflows",
        "bundled": "fastcaps.bundled",
        "__version__": "fastcaps._version",
    },
)
