"""Check how a tensor is computed: eagerly, or traced by a compiler or an exporter."""

import torch
from torch import Tensor, nn


def is_eager(tensor: Tensor) -> bool:
    """Return whether a tensor has values: buffers, custom gradients and the number of images can be used.

    A tensor that is traced, compiled, exported or fake has none.
    """
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[no-untyped-call,attr-defined]
        and not torch.jit.is_scripting()  # type: ignore[attr-defined]
    )


def is_plain(maps: Tensor) -> bool:
    """Return whether a tensor has values on a CPU, in float32 or float64, and is not under autocast."""
    return (
        is_eager(maps)
        and maps.device.type == "cpu"
        and maps.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
    )


def is_compiled(tensor: Tensor) -> bool:
    """Return whether ``torch.compile``, not an exporter, traces for a CPU in float32: custom operators can be used."""
    return (
        torch.compiler.is_compiling()
        and not torch.compiler.is_exporting()
        and tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )
