"""Construct modules without allocating weights, to assign weights afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_DRAWS: set[Any] = {Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_}


class _NoDraws(TorchFunctionMode):
    """Skip random initialization: on the meta device it would load a compiler, which takes seconds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


@contextmanager
def without_weights() -> Iterator[None]:
    """Construct modules inside this context with the shapes of their weights only."""
    with torch.device("meta"), _NoDraws():
        yield
