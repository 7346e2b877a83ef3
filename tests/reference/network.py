"""The whole network for one image, from bytes to class capsules, out of the procedures written loop by loop."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.reference.convolution import convolution
from tests.reference.paper import Array, prediction_vectors, routing_procedure, squash


def network(
    image: NDArray[np.uint8],
    weights: Mapping[str, Any],
    config: Mapping[str, Any],
    routing: str,
    rounded: Callable[[str, Array], Array] = lambda name, values: values,
) -> Array:
    """An image (c h w) to capsules (j e); weights by name, float64; config as in ``config.json``.

    ``rounded`` is told the name of each activation, and returns what fewer bits leave of it.
    """
    pixels = np.zeros(image.shape)
    for place, byte in np.ndenumerate(image):
        pixels[place] = int(byte) / 255
    if config["standardize"]:
        mean = sum(pixels.flat) / pixels.size
        variance = sum((pixel - mean) ** 2 for pixel in pixels.flat) / pixels.size
        pixels = (pixels - mean) / max(math.sqrt(variance), 1 / math.sqrt(pixels.size))
    maps = pixels[None]
    for number, (_, _, step) in enumerate(config["stem_layers"]):
        name = f"stem.layers.{number}.0"
        maps = np.maximum(convolution(maps, weights[f"{name}.weight"], weights[f"{name}.bias"], step), 0)
    maps = convolution(maps, weights["stem.conv.weight"], weights["stem.conv.bias"], config["stem_stride"])
    maps = rounded("maps", np.maximum(maps, 0))
    stride = config["primary_stride"]
    channels = convolution(maps, weights["primary.conv.weight"], weights["primary.conv.bias"], stride)[0]
    channels = rounded("channels", channels)
    _, height, width = channels.shape
    d = config["lower_dimension"]
    places = [(y, x, t * d) for y in range(height) for x in range(width) for t in range(config["capsule_types"])]
    u = np.stack([squash(channels[first : first + d, y, x]) for y, x, first in places])  # (i d)
    if routing == "dynamic":
        votes = prediction_vectors(u, weights["routing.weight"])
        r, p, q = config["iterations"], config["lower"], config["upper"]
        return routing_procedure(votes, r, config["normalization"], p, q, weights.get("routing.bias"))[0]
    u = rounded("capsules", u)
    sums = np.zeros(weights["routing.weight"].shape[1])
    for row, entry in zip(weights["routing.weight"], u.flat, strict=True):
        sums += row * entry
    by_class = sums.reshape(config["classes"], -1)
    if "routing.bias" in weights:
        by_class = by_class + weights["routing.bias"]
    return np.stack([squash(s) for s in by_class])
