"""Rotated and background MNIST, generated from MNIST by the recipe of 2007 (Larochelle et al., "An empirical
evaluation of deep architectures on problems with many factors of variation").

The training and test images are drawn without overlap from the 70,000 of MNIST. `rotated` turns each about its middle
by an angle uniform in [0, 2π). `on_backgrounds` lays each on a patch of a photograph and takes the brighter pixel of
the two; patches with little texture are left out, as in 2007. Arithmetic that is rounded to bytes is in double
precision or in integers, so that a seed gives the same bytes on every processor.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastcaps._images import gray_photograph, image_files
from fastcaps.data import generated
from fastcaps.data.generated import Document, Recipe
from fastcaps.data.idx import Arrays
from fastcaps.data.registry import NamedSet

Source = Callable[[], tuple[Arrays, Arrays]]

# Number of images rotated at a time.
_PIECE = 2000
# Smallest standard deviation of a patch, of 255. The page of 2007 says that patches of low variance were left out, but
# not which: this leaves out sky and blurred background.
LEAST_DEVIATION = 24


def rotated(
    entry: NamedSet, mnist: Source, sources: Mapping[str, str | None], seed: int
) -> tuple[Arrays, Arrays, Document]:
    """Return both parts of rotated MNIST, and the document that records how they were generated.

    Args:
        entry: the set.
        mnist: returns both parts of MNIST; not called when the set is cached.
        sources: hashes of the files of MNIST.
        seed: seed of the choice of images and of the angles.
    """
    recipe = _recipe(entry, sources, seed, {"interpolation": "bilinear", "fill": 0})

    def make() -> tuple[Arrays, Arrays]:
        random = np.random.default_rng(seed)
        train, test = draw_images(entry, mnist(), random)
        angles = random.random(entry.train + entry.test) * 2 * np.pi
        return (
            (rotate(train[0], angles[: entry.train]), train[1]),
            (rotate(test[0], angles[entry.train :]), test[1]),
        )

    return generated.cached(recipe, make)


def on_backgrounds(
    entry: NamedSet,
    mnist: Source,
    sources: Mapping[str, str | None],
    seed: int,
    photographs: str | Path | None = None,
) -> tuple[Arrays, Arrays, Document]:
    """Return both parts of MNIST on natural backgrounds, and the document that records how they were generated.

    Args:
        entry: the set.
        mnist: returns both parts of MNIST; not called when the set is cached.
        sources: hashes of the files of MNIST.
        seed: seed of the choice of images and of the patches.
        photographs: folder of photographs; the two that come with scikit-learn when None.
    """
    pictures = _pictures(photographs)
    details = {
        "photographs": {name: hashlib.sha256(pixels.tobytes()).hexdigest() for name, pixels in pictures.items()},
        "least_deviation": LEAST_DEVIATION,
        "regions": "training patches from the left or upper half, test patches from the other",
    }
    recipe = _recipe(entry, sources, seed, details)

    def make() -> tuple[Arrays, Arrays]:
        random = np.random.default_rng(seed)
        parts = []
        for half, (images, labels) in enumerate(draw_images(entry, mnist(), random)):
            regions = [_halves(pixels)[half] for pixels in pictures.values()]
            patches = _patches(regions, len(images), images.shape[2:], random, photographs)
            parts.append((np.maximum(images, patches[:, None]), labels))
        return parts[0], parts[1]

    return generated.cached(recipe, make)


def _recipe(entry: NamedSet, sources: Mapping[str, str | None], seed: int, details: Mapping[str, Any]) -> Recipe:
    return Recipe(recipe=entry.name, seed=seed, train=entry.train, test=entry.test, sources=sources, details=details)


def draw_images(entry: NamedSet, mnist: tuple[Arrays, Arrays], random: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Draw the images of both parts from all of MNIST, none of them twice."""
    images = np.concatenate([part[0] for part in mnist])
    labels = np.concatenate([part[1] for part in mnist])
    if len(images) < entry.train + entry.test:
        raise ValueError(
            f"{entry.name} needs {entry.train + entry.test} different images, "
            f"{entry.made_from} has {len(images)} of them"
        )
    order = random.permutation(len(images))
    train, test = order[: entry.train], order[entry.train : entry.train + entry.test]
    return (images[train], labels[train]), (images[test], labels[test])


def rotate(images: NDArray[np.uint8], angles: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Rotate images ``(n c h w)`` about their middle, each by its angle ``(n)``; bilinear, zero outside."""
    result = np.empty_like(images)
    for start in range(0, len(images), _PIECE):
        piece = torch.from_numpy(images[start : start + _PIECE]).double()
        angle = torch.from_numpy(angles[start : start + _PIECE])
        c, s, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        matrix = torch.stack([torch.stack([c, -s, zero], 1), torch.stack([s, c, zero], 1)], 1)  # (n, 2, 3)
        grid = torch.nn.functional.affine_grid(matrix, list(piece.shape), align_corners=False)
        rotated = torch.nn.functional.grid_sample(piece, grid, align_corners=False)  # (n, c, h, w)
        result[start : start + _PIECE] = rotated.round_().clamp_(0, 255).byte().numpy()
    return result


def _pictures(folder: str | Path | None) -> dict[str, NDArray[np.uint8]]:
    """Return gray photographs ``(h w)`` by name."""
    if folder is None:
        from fastcaps._extras import require

        require("background_mnist", "sklearn")
        from PIL import Image
        from sklearn.datasets import load_sample_images

        sample = load_sample_images()
        return {
            Path(name).name: np.asarray(Image.fromarray(pixels).convert("L"))
            for name, pixels in zip(sample.filenames, sample.images, strict=True)
        }
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"photographs is {root}, which is not a folder: give a folder of photographs")
    files = image_files(root)
    if not files:
        raise ValueError(f"photographs is {root}, a folder without images: expected PNG, JPEG or similar files")
    pictures = {path.relative_to(root).as_posix(): gray_photograph(path) for path in files}
    for name, pixels in pictures.items():
        if max(pixels.shape) < 56 or min(pixels.shape) < 28:
            raise ValueError(
                f"{root / name} is {pixels.shape[0]}×{pixels.shape[1]}, too small for patches of 28×28 "
                "from two separate halves: expected at least 28×56"
            )
    return pictures


def _halves(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Cut a photograph ``(h w)`` in two along its longer side."""
    h, w = pixels.shape
    return (pixels[:, : w // 2], pixels[:, w // 2 :]) if w >= h else (pixels[: h // 2], pixels[h // 2 :])


def _patches(
    regions: list[NDArray[np.uint8]],
    count: int,
    size: tuple[int, ...],
    random: np.random.Generator,
    folder: str | Path | None,
) -> NDArray[np.uint8]:
    """Draw patches ``(n h w)``: for each a random region, then a random place in it that has texture."""
    windows = [np.lib.stride_tricks.sliding_window_view(region, size) for region in regions]  # (y, x, h, w)
    places = [np.argwhere(has_texture(region, size)) for region in regions]  # (m, 2)
    usable = [k for k in range(len(places)) if len(places[k])]
    if not usable:
        raise ValueError(
            f"the photographs in {folder} have no patch of {size[0]}×{size[1]} whose standard deviation is "
            f"at least {LEAST_DEVIATION} of 255: choose photographs with more texture"
        )
    patches = np.empty((count, *size), np.uint8)
    chosen = random.integers(len(usable), size=count)
    for number, k in enumerate(usable):
        mine = np.flatnonzero(chosen == number)
        y, x = places[k][random.integers(len(places[k]), size=len(mine))].T
        patches[mine] = windows[k][y, x]
    return patches


def has_texture(region: NDArray[np.uint8], size: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return at which places ``(y x)`` of a region a patch has texture; exact, by sums over rectangles."""
    pixels = region.astype(np.int64)
    n = size[0] * size[1]
    sums, squares = (_rectangle_sums(values, size) for values in (pixels, pixels**2))
    return n * squares - sums**2 >= (n * LEAST_DEVIATION) ** 2


def _rectangle_sums(values: NDArray[np.int64], size: tuple[int, ...]) -> NDArray[np.int64]:
    h, w = size
    total = np.pad(values.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    sums: NDArray[np.int64] = total[h:, w:] - total[:-h, w:] - total[h:, :-w] + total[:-h, :-w]
    return sums
