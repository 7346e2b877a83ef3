"""Check whether code runs eagerly and may use buffers, custom gradients and the number of images."""

import torch
from torch import Tensor, nn


def is_eager(tensor: Tensor) -> bool:
    """Return whether a tensor has values: it is not traced, compiled, exported or fake."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[no-untyped-call,attr-defined]
        and not torch.jit.is_scripting()  # type: ignore[attr-defined]
    )
