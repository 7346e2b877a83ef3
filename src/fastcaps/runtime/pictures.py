"""From an image file to the input of a network: upright, resized, cropped to its middle, inverted where needed."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastcaps._images import decode
from fastcaps._inputs import Invert as Invert
from fastcaps._inputs import TakesImages as TakesImages
from fastcaps._inputs import edge_brightness as edge_brightness
from fastcaps._inputs import inverted as inverted
from fastcaps._inputs import is_inverted as is_inverted
from fastcaps._inputs import middle


def network_input(path: Path, config: TakesImages, content: bytes | None = None) -> NDArray[np.uint8]:
    """Return a picture as the input of a network ``(c h w)``: resized to ``config.resize``, then its middle.

    Args:
        path: path of the file; also its name in error messages.
        config: configuration of the network, or another description of its input.
        content: content of the file; read from ``path`` when None.
    """
    h, w = config.height, config.width
    pixels: NDArray[np.uint8] = middle(decode(path, config.resize or (h, w), config.channels, content), h, w)
    return pixels
