"""A grid of labeled images as one picture, to look at a data set before training on it."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fastcaps.data.batching import batches
from fastcaps.data.dataset import DataSet

# Height to which small images are enlarged, by whole factors so that pixels stay squares.
_TILE = 96
_GAP = 8
_TEXT = 15


def preview(data: DataSet, count: int = 40, *, augmented: bool = False, seed: int = 0) -> Image.Image:
    """Return a picture of training images with their class names, one image per class in turn.

    Args:
        data: the set.
        count: number of images.
        augmented: show the images with the random augmentation of training, instead of the view for testing.
        seed: seed of the augmentation.
    """
    if count < 1:
        raise ValueError(f"count is {count}, expected at least 1")
    chosen = _one_of_each(data.train.labels.numpy(), count)
    part = data.train.subset(torch.from_numpy(chosen))
    if augmented:
        generator = torch.Generator().manual_seed(seed)
        images = data.augmentation.augment(part.images(torch.arange(len(part))), generator)
    else:
        images = torch.cat([view for view, _ in batches(part, 64, view=data.augmentation.test_view)])
    pixels = (images * 255).round().byte().permute(0, 2, 3, 1).numpy()  # (n, h, w, c)
    names = [data.class_names[label] for label in part.labels.tolist()]
    view = "augmented" if augmented else "test view"
    shape = " by ".join(map(str, images.shape[2:]))
    origin = ", generated" if data.generated else ""
    sizes = f"{len(data.train):,} training images, {len(data.test):,} test images"
    title = f"{data.name}: {sizes}{origin}; {shape}, {view}"
    return _grid(pixels, names, title, columns=min(10, data.classes, len(names)))


def _one_of_each(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the indices of the first image of each class, then of the second of each, and so on."""
    turn = np.empty_like(labels)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        turn[mine] = np.arange(len(mine))
    return np.lexsort((labels, turn))[:count]


def _grid(pixels: NDArray[np.uint8], names: Sequence[str], title: str, columns: int) -> Image.Image:
    """Draw images ``(n h w c)`` in rows, each with its name below."""
    font = _font()
    h, w = pixels.shape[1:3]
    scale = max(1, round(_TILE / h))
    tile = (w * scale, h * scale)
    cell = (tile[0] + _GAP, tile[1] + _TEXT + 2 * _GAP)
    rows = -(-len(names) // columns)
    top = _TEXT + 3 * _GAP
    width = max(columns * cell[0] + _GAP, int(font.getlength(title)) + 2 * _GAP)
    sheet = Image.new("RGB", (width, top + rows * cell[1]), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((_GAP, _GAP), title, fill="black", font=font)
    for k, name in enumerate(names):
        x, y = _GAP + k % columns * cell[0], top + k // columns * cell[1]
        image = Image.fromarray(pixels[k, :, :, 0] if pixels.shape[3] == 1 else pixels[k]).convert("RGB")
        sheet.paste(image.resize(tile, Image.Resampling.NEAREST), (x, y))
        draw.text((x, y + tile[1] + 2), _fitted(name, tile[0], font), fill="black", font=font)
    return sheet


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return the font of matplotlib, which has more letters, if it is installed, otherwise that of Pillow."""
    matplotlib = find_spec("matplotlib")
    if matplotlib is not None and matplotlib.origin is not None:
        path = Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
        if path.is_file():
            return ImageFont.truetype(path, _TEXT - 1)
    return ImageFont.load_default(_TEXT)


def _fitted(name: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Return a name, truncated if it is wider than its image."""
    shown = name
    while len(shown) > 1 and font.getlength(shown) > width:
        shown = shown.removesuffix("…")[:-1] + "…"
    return shown
