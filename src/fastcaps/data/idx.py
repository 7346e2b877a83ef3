"""The idx format of MNIST and Fashion-MNIST: a magic number, sizes, bytes; packed with gzip or not."""

import gzip
import io
import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastcaps.data.files import LocalFile, read
from fastcaps.data.registry import NamedSet

# Maximum bytes of a file.
_MOST = 2**30

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


def decode(content: bytes, title: str, dimensions: int) -> NDArray[np.uint8]:
    """Return the array of bytes in an idx file.

    Args:
        content: content of the file.
        title: name of the file in error messages.
        dimensions: number of dimensions of the array: 3 for images, 1 for labels.
    """
    if content[:2] == b"\x1f\x8b":
        content = _unpacked(content, title, 4 + 4 * dimensions)
    magic = content[:4]
    # Two zeros, 8 for unsigned bytes, the number of dimensions.
    expected = bytes([0, 0, 8, dimensions])
    if magic != expected:
        raise ValueError(
            f"{title} begins with the magic number 0x{magic.hex()}, expected 0x{expected.hex()}: "
            "it is not an idx file of " + ("images" if dimensions == 3 else "labels")
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(f"{title} is truncated: {len(content)} bytes, expected a header of {start}")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{title} holds {len(content) - start} bytes, expected {math.prod(shape)} "
            f"for {'×'.join(map(str, shape))}: it is truncated or damaged; delete it and download it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _unpacked(content: bytes, title: str, header: int) -> bytes:
    """Decompress gzip content, but at most one byte more than its header announces."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            start = stream.read(header)
            sizes = struct.unpack(f">{(len(start) - 4) // 4}I", start[4:]) if len(start) == header else (0,)
            return start + stream.read(min(math.prod(sizes), _MOST) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{title} can't be unpacked ({error}): it is truncated or damaged; delete it and download it again"
        ) from None


def load(entry: NamedSet, items: Sequence[LocalFile]) -> list[Arrays]:
    """Return images ``(n 1 h w)`` and labels ``(n)``, one pair per two files."""
    contents = read(items)
    parts = []
    for k in range(0, len(items), 2):
        images = decode(contents[k], items[k].title, 3)
        labels = decode(contents[k + 1], items[k + 1].title, 1)
        check(entry, images.shape[1:], len(images), items[k].title, labels, items[k + 1].title)
        parts.append((images[:, None], labels.astype(np.int64)))
    return parts


def check(
    entry: NamedSet,
    size: Sequence[int],
    images: int,
    images_title: str,
    labels: NDArray[np.uint8] | NDArray[np.int64],
    labels_title: str,
) -> None:
    """Raise ValueError if images have the wrong size, labels are outside the classes, or their numbers differ."""
    if tuple(size) != entry.image_shape[1:]:
        raise ValueError(
            f"{images_title} has images of {'×'.join(map(str, size))}, expected "
            f"{'×'.join(map(str, entry.image_shape[1:]))} for {entry.name}"
        )
    if images != len(labels):
        raise ValueError(
            f"{images_title} has {images} images, {labels_title} has {len(labels)} labels: "
            "they don't belong together; download both again"
        )
    classes = len(entry.class_names)
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise ValueError(
            f"{labels_title} has label {labels[wrong[0]]} at image {wrong[0]}, expected 0 to {classes - 1}"
        )
