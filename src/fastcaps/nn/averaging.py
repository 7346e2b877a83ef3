"""Exponential moving average of the weights of a network."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

# Larger for a shorter average in the first steps.
_WARMUP = 10


class WeightAverage:
    """Exponential moving average of all weights and statistics of a network in training.

    Every step keeps ``keep`` of the former average, but at most ``(1 + t) / (10 + t)`` in step ``t``: the initial
    weights are soon forgotten.

    Attributes:
        keep: share of the average that a step keeps, at least 0 and below 1.
        state: the averages, by the names of ``network.state_dict()``.
    """

    def __init__(self, network: nn.Module, keep: float) -> None:
        """Start with the weights of a network."""
        self._network, self.keep = network, keep
        self.state = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after a step, counted from 0. What is no floating-point number is copied."""
        keep = min(self.keep, (1 + step) / (_WARMUP + step))
        for name, tensor in self._network.state_dict().items():
            if tensor.is_floating_point():
                self.state[name].lerp_(tensor, 1 - keep)
            else:
                self.state[name].copy_(tensor)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the network its averaged weights for a while."""
        trained = {name: tensor.detach().clone() for name, tensor in self._network.state_dict().items()}
        self._network.load_state_dict(self.state)
        try:
            yield
        finally:
            self._network.load_state_dict(trained)
