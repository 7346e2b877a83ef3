"""Structured pruning: a folded network with fewer capsule types and stem maps is a smaller folded network."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from fastcaps.nn import CapsNetConfig, FastCapsNet
from fastcaps.nn.meta import without_weights


@dataclass(frozen=True, order=True)
class Size:
    """The sizes that pruning changes in a network.

    Attributes:
        types: number of capsule types.
        maps: number of feature maps of the last convolution of the stem.
    """

    types: int
    maps: int

    @classmethod
    def of(cls, config: CapsNetConfig) -> "Size":
        """Return the size of a network."""
        return cls(config.capsule_types, config.stem_channels)

    def config(self, config: CapsNetConfig) -> CapsNetConfig:
        """Return the configuration of a network of this size."""
        return dataclasses.replace(config, capsule_types=self.types, stem_channels=self.maps)

    def __str__(self) -> str:
        """Return both sizes."""
        return f"{self.types} types, {self.maps} maps"


def multiply_adds(config: CapsNetConfig) -> int:
    """Return the multiply-adds of a folded network per image, with all convolutions counted as ordinary ones."""
    return sum(config.multiply_adds().values())


@torch.no_grad()
def prune(network: FastCapsNet, types: Tensor, maps: Tensor) -> FastCapsNet:
    """Return a copy of a folded network that has only some of its capsule types and stem maps.

    The result is exactly that of the network with the weights of all other types and maps set to zero.

    Args:
        network: the folded network; not modified.
        types: indices of the capsule types to keep ``(m)``; they stay in the order of the network.
        maps: indices of the stem maps to keep ``(n)``; likewise.

    Returns:
        A folded network with fewer ``capsule_types`` and ``stem_channels``, with gradients switched off.
    """
    config = network.config
    types = _checked(types, config.capsule_types, "capsule types")
    maps = _checked(maps, config.stem_channels, "stem maps")
    with without_weights():
        small = FastCapsNet(Size(len(types), len(maps)).config(config))
    dim = config.lower_dimension
    channels = (types[:, None] * dim + torch.arange(dim)).flatten()  # (m·d)
    matrix = network.routing.weight.detach()  # (i·d, j·e)
    by_position = matrix.view(-1, config.capsule_types, dim, matrix.shape[1])  # (positions, types, d, j·e)
    state = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    state["stem.conv.weight"] = state["stem.conv.weight"][maps]
    state["stem.conv.bias"] = state["stem.conv.bias"][maps]
    state["primary.conv.weight"] = state["primary.conv.weight"][channels][:, maps].contiguous()
    state["primary.conv.bias"] = state["primary.conv.bias"][channels]
    state["routing.weight"] = by_position[:, types].flatten(0, 2)  # (i·d, j·e)
    small.load_state_dict(state, assign=True)
    small.primary.convolution = network.primary.convolution
    small.provenance = dict(network.provenance)
    return small.requires_grad_(False).eval()


def _checked(numbers: Tensor, count: int, what: str) -> Tensor:
    """Return indices in ascending order; raise ValueError unless they are different and below ``count``."""
    ordered: Tensor = torch.unique(numbers.cpu())
    if numbers.ndim != 1 or numbers.is_floating_point() or len(ordered) != len(numbers) or not len(numbers):
        raise ValueError(f"{what} to keep are {numbers.tolist()}, expected different whole numbers, at least one")
    if ordered[0] < 0 or ordered[-1] >= count:
        raise ValueError(f"{what} to keep are {ordered.tolist()}, expected numbers from 0 to {count - 1}")
    return ordered
