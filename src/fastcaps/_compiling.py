"""Check whether ``torch.compile`` traces, so that fast code can be one custom operator."""

import torch
from torch import Tensor


def is_compiled(tensor: Tensor) -> bool:
    """Return whether ``torch.compile``, not an exporter, traces for a CPU in float32: custom operators can be used."""
    return (
        torch.compiler.is_compiling()
        and not torch.compiler.is_exporting()
        and tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )
