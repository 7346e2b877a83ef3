"""Data sets from NumPy arrays, tensors and torch datasets: check, convert to bytes, hash."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fastcaps._images import to_bytes

# Number of images converted or hashed at a time.
_PIECE = 1024
# Number of images of a torch dataset that are read twice, to detect random transforms.
_READ_TWICE = 32


class Content(NamedTuple):
    """One checked part of a data set.

    Attributes:
        labels: ``(n)``, int64.
        read: returns images as bytes ``(b c h w)``, given indices ``(b)``.
        image_shape: ``(c, h, w)``.
        sha256: SHA-256 of all images as bytes, in order, then of all labels as int64.
    """

    labels: Tensor
    read: Callable[[Tensor], Tensor]
    image_shape: tuple[int, int, int]
    sha256: str


@dataclass(frozen=True, eq=False)
class ArrayReader:
    """Returns images ``(n c h w)`` in memory by their indices ``(b)``; a class, so that workers can unpickle it."""

    pixels: NDArray[np.uint8]

    def __call__(self, indices: Tensor) -> Tensor:
        """Return bytes ``(b c h w)``."""
        return torch.from_numpy(self.pixels[indices.numpy()])


@dataclass(frozen=True, eq=False)
class DatasetReader:
    """Returns images of a torch dataset by their indices ``(b)``.

    Attributes:
        dataset: dataset of pairs (image, label).
        argument: its name in error messages.
        shape: shape of all images ``(c, h, w)``.
    """

    dataset: Any
    argument: str
    shape: tuple[int, int, int]

    def __call__(self, indices: Tensor) -> Tensor:
        """Return bytes ``(b c h w)``."""
        pixels = [self.item(index)[0] for index in indices.tolist()]
        return torch.from_numpy(np.stack(pixels) if pixels else np.empty((0, *self.shape), np.uint8))

    def item(self, index: int) -> tuple[NDArray[np.uint8], int]:
        """Return an image and its label."""
        pixels, label = _item(self.dataset, index, self.argument)
        if pixels.shape != self.shape:
            raise ValueError(
                f"{self.argument}: image {index} has shape {pixels.shape}, image 0 has {self.shape}, expected one "
                "shape for all: add a transform that resizes and converts them"
            )
        return pixels, label


def from_memory(images: Any, labels: Any, prefix: str) -> Content:
    """Return the content of arrays; bytes are not copied. Errors name ``<prefix>images`` and ``<prefix>labels``."""
    pixels = _image_bytes(images, f"{prefix}images", batch=True)
    if not len(pixels):
        raise ValueError(f"{prefix}images is empty, expected at least one image")
    numbers = _label_numbers(labels, f"{prefix}labels")
    if len(numbers) != len(pixels):
        raise ValueError(f"{prefix}images has {len(pixels)} images, {prefix}labels has {len(numbers)} labels")
    pieces = (pixels[start : start + _PIECE] for start in range(0, len(pixels), _PIECE))
    return Content(torch.from_numpy(numbers), ArrayReader(pixels), pixels.shape[1:], _sha256(pieces, numbers))


def from_dataset(dataset: Any, argument: str, observe: Callable[[int], None]) -> Content:
    """Return the content of a map-style torch dataset, after one pass over all of it.

    Args:
        dataset: dataset of pairs (image, label).
        argument: its name in error messages.
        observe: called with the number of images just read.
    """
    count = dataset_length(dataset, argument)
    numbers = np.empty(count, np.int64)
    reader = DatasetReader(dataset, argument, _item(dataset, 0, argument)[0].shape)

    def pieces() -> Iterable[NDArray[np.uint8]]:
        for index in range(count):
            pixels, numbers[index] = reader.item(index)
            if index < _READ_TWICE and not np.array_equal(pixels, reader.item(index)[0]):
                raise ValueError(
                    f"{argument}: image {index} is different when it is read again: leave out random transforms, and "
                    "give augmentation=Augmentation(…) instead"
                )
            observe(1)
            yield pixels

    sha256 = _sha256(pieces(), numbers)
    return Content(torch.from_numpy(numbers), reader, reader.shape, sha256)


def dataset_length(dataset: Any, argument: str) -> int:
    """Return the number of images of a map-style dataset; raise for any other object."""
    try:
        count = len(dataset)
    except TypeError:
        count = None
    if count is None or not hasattr(dataset, "__getitem__"):
        raise ValueError(
            f"{argument} is a {type(dataset).__name__}, expected a map-style dataset with a length and (image, label) "
            "by index, such as torch.utils.data.Dataset"
        )
    if not count:
        raise ValueError(f"{argument} is empty, expected at least one image")
    return count


def _image_bytes(images: Any, name: str, *, batch: bool) -> NDArray[np.uint8]:
    """Return images ``(n c h w)`` or ``(n h w)``, or one image ``(c h w)`` or ``(h w)``, as bytes with channels.

    Bytes are unchanged. Floats between 0 and 1 are rounded to the nearest of 0/255 … 255/255, half to even.
    """
    pixels = _as_array(images, name)
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise ValueError(
            f"{name} has dtype {pixels.dtype}, expected uint8, or floats between 0 and 1: convert values between 0 and "
            "255 to uint8"
        )
    axis = int(batch)  # of the channels
    n = "n, " if batch else ""
    if pixels.ndim not in (axis + 2, axis + 3):
        raise ValueError(
            f"{name} has shape {pixels.shape}, expected ({n}channels, height, width) or ({n}height, width)"
        )
    if pixels.ndim == axis + 2:
        pixels = np.expand_dims(pixels, axis)
    c, h, w = pixels.shape[axis:]
    if c not in (1, 3) or not h or not w:
        hint = ": move the channels to the front" if w in (1, 3) else ""
        raise ValueError(
            f"{name} has shape {pixels.shape}, expected ({n}channels, height, width) with 1 channel (gray) or 3 "
            f"(color){hint}"
        )
    if pixels.dtype == np.uint8:
        return pixels
    converted = np.empty(pixels.shape, np.uint8)
    for start in range(0, len(pixels), _PIECE):
        values = pixels[start : start + _PIECE].astype(np.float64)
        wrong = np.argwhere(~((values >= 0) & (values <= 1)))  # also NaN
        if len(wrong):
            where = f" in image {start + wrong[0][0]}" if batch else ""
            raise ValueError(
                f"{name} has the value {values[tuple(wrong[0])]:g}{where}, expected floats between 0 and 1: leave out "
                "standardization (CapsNetConfig(standardize=True) does it in the network), or convert values between 0 "
                "and 255 to uint8"
            )
        converted[start : start + _PIECE] = np.rint(values * 255)
    return converted


def _as_array(values: Any, name: str) -> NDArray[Any]:
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        values = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if not isinstance(values, np.ndarray):
        raise ValueError(f"{name} is a {type(values).__name__}, expected a NumPy array or a tensor")
    return values


def _label_numbers(labels: Any, name: str) -> NDArray[np.int64]:
    numbers = np.asarray(labels) if isinstance(labels, list | tuple) else _as_array(labels, name)
    if numbers.ndim != 1:
        hint = ": give labels.argmax(1) for one-hot labels" if numbers.ndim == 2 else ""
        raise ValueError(f"{name} has shape {numbers.shape}, expected (n){hint}")
    if numbers.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {numbers.dtype}, expected integers: the class of each image, from 0")
    return numbers.astype(np.int64)


def _item(dataset: Any, index: int, argument: str) -> tuple[NDArray[np.uint8], int]:
    """Return one image ``(c h w)`` of a torch dataset, and its label."""
    item = dataset[index]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(f"{argument}: item {index} is a {type(item).__name__}, expected a pair (image, label)")
    image, label = item
    title = f"{argument}: image {index}"
    if isinstance(image, Image.Image):
        try:
            pixels = to_bytes(image)
        except ValueError as error:
            raise ValueError(f"{title}: {error}") from None
    else:
        pixels = _image_bytes(image, title, batch=False)
    number = np.asarray(label)
    if number.ndim or number.dtype.kind not in "iu":
        raise ValueError(f"{argument}: the label of image {index} is {label!r}, expected an integer from 0")
    return pixels, int(number)


def _sha256(pieces: Iterable[NDArray[np.uint8]], labels: NDArray[np.int64]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece.tobytes())
    digest.update(labels.astype("<i8").tobytes())
    return digest.hexdigest()
