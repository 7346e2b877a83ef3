"""From an image file to the input of a network: upright, resized, cropped to its middle, inverted where needed."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fastcaps._images import decode
from fastcaps._inputs import TakesImages as TakesImages
from fastcaps._inputs import middle

Invert = Literal["auto", "yes", "no"]

# Largest distance from black or white of an edge that counts as dark or light.
_CLEAR = 0.25


def network_input(path: Path, config: TakesImages, content: bytes | None = None) -> NDArray[np.uint8]:
    """Return a picture as the input of a network ``(c h w)``: resized to ``config.resize``, then its middle.

    Args:
        path: of the file; also what errors call it.
        config: of the network, or another description of its input.
        content: of the file; read when None.
    """
    h, w = config.height, config.width
    pixels: NDArray[np.uint8] = middle(decode(path, config.resize or (h, w), config.channels, content), h, w)
    return pixels


def edge_brightness(images: NDArray[np.uint8]) -> float:
    """Return the median of the outermost pixels of images ``(… h w)``, between 0 and 1."""
    rows, columns = images[..., [0, -1], :], images[..., :, [0, -1]]
    return float(np.median(np.concatenate([rows.ravel(), columns.ravel()])) / 255)


def is_inverted(image: NDArray[np.uint8], background: float | None) -> bool:
    """Return whether light and dark of a picture ``(c h w)`` are swapped, compared with the training images.

    That is so if the training images are gray with a clearly dark or clearly light edge, and the edge of the picture is
    nearer to the other extreme.
    """
    if background is None or len(image) != 1 or _CLEAR < background < 1 - _CLEAR:
        return False
    edge = edge_brightness(image)
    return abs(1 - edge - background) < abs(edge - background)


def inverted(
    image: NDArray[np.uint8], background: float | None, invert: Invert = "auto"
) -> tuple[NDArray[np.uint8], bool]:
    """Return a picture ``(c h w)``, inverted if needed, and whether it was inverted."""
    decision = invert == "yes" or (invert == "auto" and is_inverted(image, background))
    return (255 - image if decision else image), decision
