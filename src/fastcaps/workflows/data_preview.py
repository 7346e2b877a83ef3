"""A picture of a data set's images, to look at before training."""

import io
from pathlib import Path
from typing import Unpack

from fastcaps._files import write_atomically
from fastcaps._result import without_none
from fastcaps.data import DataSet, load
from fastcaps.data.options import AugmentationOptions
from fastcaps.data.preview import preview as draw


def preview(
    data: DataSet | str | Path,
    out: str | Path | None = None,
    *,
    count: int = 40,
    augmented: bool = False,
    seed: int = 0,
    data_dir: str | Path | None = None,
    photographs: str | Path | None = None,
    **augmentation: Unpack[AugmentationOptions],
) -> Path:
    """Write a picture of labeled training images, and return its path.

    Args:
        data: a data set, its name, or a folder of images.
        out: the PNG file to write; the name of the data set with ``.png`` in this folder by default.
        count: number of images.
        augmented: show the images as training sees them, changed at random.
        seed: of what is generated, and of the augmentation.
        data_dir: folder of the data sets' files.
        photographs: folder of photographs for the backgrounds of background_mnist.
        augmentation: ``rotation`` and ``zoom`` of augmented images, besides the augmentation of the set.
    """
    if out is not None and Path(out).suffix.lower() != ".png":
        raise ValueError(f"out={out}: expected a name that ends in .png, the format of the picture")
    if not augmented and without_none(**augmentation):
        raise ValueError("rotation= and zoom= change augmented images only: give augmented=True, too")
    images = data if isinstance(data, DataSet) else load(data, data_dir=data_dir, seed=seed, photographs=photographs)
    images = images.augmented(**augmentation)
    path = Path(f"{images.name}.png" if out is None else out)
    buffer = io.BytesIO()
    draw(images, count, augmented=augmented, seed=seed).save(buffer, "PNG")
    write_atomically({path: buffer.getvalue()})
    return path
