"""Convert images of users, such as arrays, Pillow images and files, to a batch for a network."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fastcaps._images import decode, to_bytes

if TYPE_CHECKING:
    from torch import Tensor

Invert = Literal["auto", "yes", "no"]

# Maximum distance of an edge from black or white to be considered dark or light.
_CLEAR = 0.25
# Tolerance for floats outside the range from 0 to 1, due to resizing and rounding.
_SLACK = 1e-3


class TakesImages(Protocol):
    """The size of images that a network takes: a configuration, or `fastcaps.runtime.session.ImageInput`."""

    @property
    def height(self) -> int:
        """Height of the input."""

    @property
    def width(self) -> int:
        """Width of the input."""

    @property
    def channels(self) -> int:
        """Channels of the input."""

    @property
    def resize(self) -> tuple[int, int] | None:
        """Height and width to resize to before the middle is cropped."""


def network_batch(
    images: Any, config: TakesImages, background: float | None = None, invert: Invert = "auto"
) -> NDArray[Any]:
    """Return images as a batch ``(b c h w)``: bytes if all images are bytes, otherwise floats between 0 and 1.

    Pillow images and files are resized and center-cropped like the test images of the network. Arrays and tensors must
    have the size of the network's input, or the size before the crop.

    Args:
        images: an array or tensor ``(b c h w)`` or ``(c h w)``, for gray also ``(n h w)`` or ``(h w)``; a Pillow image;
            the path of a file; or a list of these.
        config: configuration of the network.
        background: brightness of the edge of its training images.
        invert: whether to swap light and dark of Pillow images and files; see `inverted`.
    """
    if invert not in get_args(Invert):
        raise ValueError(f"invert is {invert!r}, expected one of {', '.join(get_args(Invert))}")
    items = list(images) if isinstance(images, list | tuple) else [images]
    batches = [_batch(item, config, background, invert) for item in items]
    if not batches:
        return np.empty((0, config.channels, config.height, config.width), np.uint8)
    if len({batch.dtype for batch in batches}) > 1:
        batches = [batch.astype(np.float32) / (255 if batch.dtype == np.uint8 else 1) for batch in batches]
    return np.concatenate(batches)


def arranged(images: Any, config: TakesImages) -> Any:
    """Return an array or tensor of images as ``(b c h w)``, center-cropped if it has the size before the crop.

    Raises:
        ValueError: the shape is wrong, or floats are not between 0 and 1.
    """
    c, h, w = config.channels, config.height, config.width
    sizes = {(h, w), config.resize or (h, w)}
    shape = tuple(images.shape)
    batch = images
    if len(shape) == 2 and c == 1:
        batch = images[None, None]
    elif len(shape) == 3:
        batch = images[None] if shape[0] == c else images[:, None] if c == 1 else images
    if batch.ndim != 4 or batch.shape[1] != c or tuple(batch.shape[2:]) not in sizes:
        raise ValueError(f"images have shape {shape}, expected (batch, {c}, {h}, {w})")
    if "float" in str(batch.dtype):
        _check_range(batch)
    return middle(batch, h, w)


def middle(pixels: Any, height: int, width: int) -> Any:
    """Return the middle of images ``(… h w)``."""
    top, left = (pixels.shape[-2] - height) // 2, (pixels.shape[-1] - width) // 2
    return pixels[..., top : top + height, left : left + width]


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


def _batch(item: Any, config: TakesImages, background: float | None, invert: Invert) -> NDArray[Any]:
    size = config.resize or (config.height, config.width)
    if isinstance(item, str | Path):
        pixels = decode(Path(item), size, config.channels)[None]
    elif isinstance(item, Image.Image):
        pixels = to_bytes(ImageOps.exif_transpose(item), config.channels, size)[None]
    elif isinstance(item, np.ndarray) or hasattr(item, "detach"):
        pixels = item if isinstance(item, np.ndarray) else _to_numpy(item)
    else:
        raise ValueError(
            f"an image is {type(item).__name__}, expected a tensor, an array, a Pillow image or the path of a file"
        )
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise ValueError(
            f"images are {pixels.dtype}, expected floating-point between 0 and 1, or uint8 between 0 and 255"
        )
    batch: NDArray[Any] = arranged(pixels, config)
    if isinstance(item, str | Path | Image.Image):
        batch = inverted(batch[0], background, invert)[0][None]
    return batch if batch.dtype == np.uint8 else batch.astype(np.float32)


def _to_numpy(tensor: "Tensor") -> NDArray[Any]:
    plain = tensor.detach().cpu()
    array: NDArray[Any] = (plain.float() if plain.is_floating_point() else plain).numpy()
    return array


def _check_range(batch: Any) -> None:
    """Raise ValueError unless floats are between 0 and 1."""
    if not len(batch):
        return
    low, high = float(batch.min()), float(batch.max())
    if not np.isfinite([low, high]).all():
        finite = [bool(np.isfinite([float(image.min()), float(image.max())]).all()) for image in batch]
        raise ValueError(
            f"image {finite.index(False)} of the batch has pixels that are not finite: expected numbers between 0 and 1"
        )
    if not (low >= -_SLACK and high <= 1 + _SLACK):
        raise ValueError(
            f"images have values from {low:g} to {high:g}, expected floats between 0 and 1, or uint8 between 0 and "
            "255: divide by 255, or undo a normalization; the network does its own"
        )
