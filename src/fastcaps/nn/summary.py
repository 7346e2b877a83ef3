"""Summary of a network by layer: shapes, parameters and multiply-adds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from fastcaps._result import Result, Table

if TYPE_CHECKING:
    from fastcaps.nn.base import CapsuleNetwork


@dataclass(frozen=True)
class LayerSummary:
    """One layer.

    Attributes:
        name: name in the network.
        kind: name of its class.
        output: shape of its output for one image.
        parameters: number of weights and biases.
        multiply_adds: multiply-adds per image, convolutions counted as ordinary ones.
    """

    name: str
    kind: str
    output: tuple[int, ...]
    parameters: int
    multiply_adds: int


@dataclass(frozen=True, repr=False, eq=False)
class Summary(Result):
    """A network, layer by layer.

    Attributes:
        name: name of the network's class.
        layers: layers in the order of the forward pass; the decoder, which classification does not use, is last.
    """

    name: str
    layers: tuple[LayerSummary, ...]

    def tables(self) -> Sequence[Table]:
        """Return one row per layer, and their sum."""
        rows = [
            [f"{layer.name}: {layer.kind}", "×".join(map(str, layer.output)), *_counts(layer)] for layer in self.layers
        ]
        parameters, products = (sum(getattr(layer, name) for layer in self.layers) for name in _COUNTED)
        rows.append(["total", "", f"{parameters:,}", f"{products:,}"])
        return [Table(self.name, ["layer", "output", "parameters", "multiply-adds"], rows)]


_COUNTED = ("parameters", "multiply_adds")


def _counts(layer: LayerSummary) -> list[str]:
    return [f"{getattr(layer, name):,}" for name in _COUNTED]


def summarize(network: "CapsuleNetwork", iterations: int | None = None) -> Summary:
    """Return the layers of a network.

    Args:
        network: any capsule network.
        iterations: number of routing iterations; None for a folded network.
    """
    config = network.config
    products = config.multiply_adds(iterations)
    linear = [layer for layer in network.decoder.modules() if isinstance(layer, nn.Linear)]
    outputs = {
        "stem": (config.stem_channels, *config.stem_size),
        "primary": (config.lower_capsules, config.lower_dimension),
        "routing": (config.classes, config.class_dimension),
        "decoder": (config.channels, config.height, config.width),
    }
    layers = []
    for name, output in outputs.items():
        module = network.get_submodule(name)
        count = products.get(name, sum(layer.weight.numel() for layer in linear))
        parameters = sum(parameter.numel() for parameter in module.parameters())
        layers.append(LayerSummary(name, type(module).__name__, output, parameters, count))
    return Summary(type(network).__name__, tuple(layers))
