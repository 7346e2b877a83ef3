"""The state of Adam as named tensors, for checkpoints."""

from collections.abc import Mapping

import torch
from torch import Tensor

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def adam_tensors(optimizer: torch.optim.Adam, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the moments of the parameters that have any.

    Args:
        optimizer: Adam.
        parameters: its parameters by name, in its order.
    """
    names = list(parameters)
    return {
        f"adam.{moment}.{names[number]}": moments[moment].detach().cpu().contiguous()
        for number, moments in optimizer.state_dict()["state"].items()
        for moment in _MOMENTS
    }


def expected_adam_tensors(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what a checkpoint must have for the parameters whose steps it has, by shape and type."""
    stored = {name: parameter for name, parameter in parameters.items() if f"adam.step.{name}" in tensors}
    expected = {f"adam.step.{name}": torch.zeros(()) for name in stored}
    return expected | {f"adam.{moment}.{name}": stored[name] for name in stored for moment in _MOMENTS[1:]}


def load_adam(optimizer: torch.optim.Adam, parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors of `adam_tensors`, each in the memory order of its parameter, which Adam takes for granted."""
    state = {
        number: {moment: _like(parameter, tensors[f"adam.{moment}.{name}"]) for moment in _MOMENTS}
        for number, (name, parameter) in enumerate(parameters.items())
        if f"adam.step.{name}" in tensors
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


@torch.no_grad()
def _like(parameter: Tensor, moment: Tensor) -> Tensor:
    """Return a moment in the memory order of its parameter; a number as it is."""
    return moment if moment.ndim == 0 else torch.empty_like(parameter).copy_(moment)
