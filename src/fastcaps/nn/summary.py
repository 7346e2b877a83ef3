"""A network layer by layer: shapes, parameters and multiply-adds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from fastcaps._result import Result, Table
from fastcaps.nn.config import CapsNetConfig

if TYPE_CHECKING:
    from fastcaps.nn.base import CapsuleNetwork


@dataclass(frozen=True)
class LayerSummary:
    """One layer.

    Attributes:
        name: in the network.
        kind: name of its class.
        output: shape of its output for one image.
        parameters: number of weights and biases.
        multiply_adds: per image, convolutions counted as ordinary ones.
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
        name: of the network's class.
        layers: in the order in which an image passes them; the decoder, which classification does without, is last.
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
        network: any.
        iterations: of routing; None for a folded network.
    """
    config = network.config
    products = multiply_adds(config, iterations)
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


def multiply_adds(config: CapsNetConfig, iterations: int | None = None) -> dict[str, int]:
    """Return the multiply-adds per image of stem, PrimaryCaps and routing, convolutions counted as ordinary ones.

    Args:
        config: of the network.
        iterations: of dynamic routing: a sum each, an agreement after all but the last; None for a folded network.
    """
    counts, channels, height, width = [], config.channels, config.height, config.width
    for outputs, kernel, stride in (
        *config.stem_layers,
        (config.stem_channels, config.stem_kernel, config.stem_stride),
        (config.capsule_types * config.lower_dimension, config.primary_kernel, config.primary_stride),
    ):
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        counts.append(height * width * outputs * channels * kernel**2)
        channels = outputs
    votes = config.lower_capsules * config.classes * config.class_dimension
    loop = 0 if iterations is None else votes * (2 * iterations - 1)
    return {"stem": sum(counts[:-1]), "primary": counts[-1], "routing": config.lower_dimension * votes + loop}
