"""A few test images for the page: those of MNIST come with the package, those of CIFAR-10 where its files are."""

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastcaps.data.files import EMBEDDED, roots
from fastcaps.data.idx import decode
from fastcaps.runtime.pictures import TakesImages
from fastcaps.serving.answers import Example
from fastcaps.serving.models import ServedModel

_PER_CLASS = 2
# Number of test images that are searched.
_FIRST = 500
_CIFAR10 = (3, 32, 32)


def examples(model: ServedModel) -> list[Example]:
    """Return two test images per class; none if the files are missing."""
    images, labels = _test_images(model.data, model.image)
    order = [k for label in range(len(model.class_names)) for k in np.flatnonzero(labels == label)[:_PER_CLASS]]
    return [Example(model.class_names[labels[k]], base64.b64encode(png(images[k])).decode()) for k in order]


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image ``(c h w)`` as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


def _test_images(data: str | None, image: TakesImages) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    if data == "mnist" and image.channels == 1:
        folder = EMBEDDED / "mnist"
        paths = folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz"
        images, labels = (decode(path.read_bytes(), path.name, n) for path, n in zip(paths, (3, 1), strict=True))
        return images[:_FIRST, None], labels[:_FIRST]
    file = next((path for root in roots() if (path := root / "cifar10" / "test_batch.bin").is_file()), None)
    if data == "cifar10" and file is not None:
        size = 1 + int(np.prod(_CIFAR10))
        records = np.fromfile(file, np.uint8, _FIRST * size).reshape(-1, size)
        return records[:, 1:].reshape(-1, *_CIFAR10), records[:, 0]
    return np.empty((0, 1, 1, 1), np.uint8), np.empty(0, np.uint8)
