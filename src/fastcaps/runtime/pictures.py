"""From an image file to a network's input: upright, resized, its middle cropped, inverted where that is wanted."""

from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fastcaps._images import decode

Invert = Literal["auto", "yes", "no"]

# How near to black or white the edge of the training images has to be for a picture to be on the wrong side of it.
_CLEAR = 0.25


class TakesImages(Protocol):
    """The size of images that a network takes: a configuration, or `fastcaps.runtime.session.ImageInput`."""

    @property
    def height(self) -> int:
        """Of the input."""

    @property
    def width(self) -> int:
        """Of the input."""

    @property
    def channels(self) -> int:
        """Of the input."""

    @property
    def resize(self) -> tuple[int, int] | None:
        """Height and width to which a picture is brought before its middle is cropped."""


def network_input(path: Path, config: TakesImages, content: bytes | None = None) -> NDArray[np.uint8]:
    """A picture as the network's input ``(c h w)``: brought to ``config.resize``, then its middle.

    Args:
        path: of the file; also what errors call it.
        config: of the network, or another description of its input.
        content: what is in the file; read when None.
    """
    h, w = config.height, config.width
    pixels = decode(path, config.resize or (h, w), config.channels, content)  # (c, height, width)
    top, left = (pixels.shape[1] - h) // 2, (pixels.shape[2] - w) // 2
    return pixels[:, top : top + h, left : left + w]


def edge_brightness(images: NDArray[np.uint8]) -> float:
    """The median of the outermost pixels of images ``(… h w)``, between 0 and 1."""
    rows, columns = images[..., [0, -1], :], images[..., :, [0, -1]]
    return float(np.median(np.concatenate([rows.ravel(), columns.ravel()])) / 255)


def is_inverted(image: NDArray[np.uint8], background: float | None) -> bool:
    """Whether a picture ``(c h w)`` has light and dark the other way round than the training images.

    So it is when the training images are grey with a clearly dark or clearly light edge, and the picture's edge is
    nearer to the other end.
    """
    if background is None or len(image) != 1 or _CLEAR < background < 1 - _CLEAR:
        return False
    edge = edge_brightness(image)
    return abs(1 - edge - background) < abs(edge - background)


def inverted(
    image: NDArray[np.uint8], background: float | None, invert: Invert = "auto"
) -> tuple[NDArray[np.uint8], bool]:
    """A picture ``(c h w)``, inverted if it is to be, and whether it was."""
    decision = invert == "yes" or (invert == "auto" and is_inverted(image, background))
    return (255 - image if decision else image), decision
