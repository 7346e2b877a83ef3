"""The user's own images: a folder with one sub-folder a class, read from disk when wanted.

Either ``train/<class>/…`` and ``test/<class>/…``, or one tree ``<class>/…`` of which a fraction is held out
for testing. Only names, labels and hashes are kept in memory.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastcaps._images import Header, decode, header, image_files, no_bombs
from fastcaps._machine import processors
from fastcaps.data.augment import Augmentation
from fastcaps.data.dataset import DataSet, Split, measure_background, stratified
from fastcaps.distributed import current

# The longest side, in pixels, to which images are brought when the user doesn't say: a capsule network's
# weights grow with the square of it.
_LONGEST = 64
_TEST_FRACTION = 0.2
# Names of folders that divide a set; only train and test together do.
_PARTS = frozenset({"train", "val", "valid", "validation", "test"})
# Threads that decode, at most; Pillow does so without holding Python's lock.
_THREADS = 8


def load(
    folder: Path,
    *,
    seed: int = 0,
    test_fraction: float | None = None,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
) -> DataSet:
    """A data set of the images in a folder.

    Args:
        folder: as above.
        seed: of the choice of test images, when the folder doesn't make it.
        test_fraction: how many of them, likewise; 0.2 when None.
        size: height and width, or both, to which all images are brought; when None the commonest size of a
            training image, made smaller until no side is longer than 64.
        channels: 1 for grey, 3 for colour; when None grey only if all images are.
    """
    chosen_size = _checked_size(size)
    if channels is not None and (type(channels) is not int or channels not in (1, 3)):
        raise ValueError(f"channels is {channels!r}, expected 1 for grey or 3 for colour")
    divided = (folder / "train").is_dir() and (folder / "test").is_dir()
    if divided:
        if test_fraction is not None:
            raise ValueError(
                f"test_fraction was given as {test_fraction!r}, which has no meaning for {folder}: "
                "it has train and test; leave it out"
            )
        trees = [folder / "train", folder / "test"]
        classes = _classes(trees[0])
        _same_classes(folder, classes, _classes(trees[1]))
    else:
        _not_half_divided(folder)
        trees = [folder]
        classes = _classes(folder)
    listed = [_listed(tree, classes) for tree in trees]
    paths = [path for files, _ in listed for path in files]
    labels = np.array([label for _, numbers in listed for label in numbers], np.int64)
    if divided:
        train, test = np.split(np.arange(len(paths)), [len(listed[0][0])])
    else:
        fraction = _TEST_FRACTION if test_fraction is None else test_fraction
        train, test = _held_out(folder, classes, labels, fraction, seed)

    threads = max(1, min(_THREADS, processors() // current().local_size))
    with no_bombs(), ThreadPoolExecutor(threads) as pool:
        headers = list(pool.map(header, paths))
    c = channels if channels is not None else 1 if all(item.grey for item in headers) else 3
    h, w = chosen_size or _commonest_size([headers[k] for k in train])

    names = [str(path) for path in paths]  # a million take 0.1 GB, as paths four times that

    def read(places: Tensor) -> Tensor:
        with ThreadPoolExecutor(threads) as pool:
            pixels = list(pool.map(lambda k: decode(Path(names[k]), (h, w), c), places.tolist()))
        images = np.stack(pixels) if pixels else np.empty((0, c, h, w), np.uint8)
        return torch.from_numpy(images)

    parts = [
        Split(torch.from_numpy(labels[places]), read, torch.from_numpy(places), streams=True)
        for places in (train, test)
    ]
    return DataSet(
        name=folder.resolve().name,
        class_names=classes,
        image_shape=(c, h, w),
        train=parts[0],
        test=parts[1],
        provenance={
            "kind": "folder",
            "images": {"train": len(train), "test": len(test)},
            "size": [h, w],
            "channels": c,
            "sha256": _tree_hash(folder, paths, headers, train),
        },
        augmentation=Augmentation.shifting(h, w, fill="edge" if c == 3 else "zero"),
        background=measure_background(parts[0]) if c == 1 else None,
    )


def _not_half_divided(folder: Path) -> None:
    """Don't take ``train`` and ``val`` for classes."""
    parts = sorted(entry for entry in folder.iterdir() if entry.name.lower() in _PARTS and entry.is_dir())
    names = [part.name for part in parts if any(path.parent != part for path in image_files(part))]
    if names:
        others = [name for name in names if name.lower() not in ("train", "test")]
        advice = f"rename {others[0]} to test" if "train" in names and others else "rename or add what is missing"
        raise ValueError(
            f"{folder} has {' and '.join(names)} with folders of images in {'it' if len(names) == 1 else 'them'}, "
            f"expected both train and test: {advice}, or give one tree of class folders"
        )


def _classes(tree: Path) -> tuple[str, ...]:
    """Names of a tree's sub-folders: as numbers if all are, otherwise by the alphabet."""
    names = [entry.name for entry in tree.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    if len(names) < 2:
        raise ValueError(
            f"{tree} has {len(names)} class folders{f' ({names[0]})' if names else ''}, expected at least 2: "
            "one sub-folder of images a class, in the folder itself or in both train/ and test/"
        )
    numbers = all(name.isdecimal() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name), name) if numbers else (0, name)))


def _same_classes(folder: Path, train: Sequence[str], test: Sequence[str]) -> None:
    missing, extra = sorted(set(train) - set(test)), sorted(set(test) - set(train))
    if missing or extra:
        words = [
            f"{where} has no {', '.join(names)}" for where, names in (("test", missing), ("train", extra)) if names
        ]
        raise ValueError(f"the classes of {folder} differ, {' and '.join(words)}: expected the same in both")


def _listed(tree: Path, classes: Sequence[str]) -> tuple[list[Path], list[int]]:
    """All image files of a tree and the class number of each."""
    paths, labels = [], []
    for label, name in enumerate(classes):
        found = image_files(tree / name)
        if not found:
            raise ValueError(f"the class folder {tree / name} has no images in it: add some or remove it")
        paths += found
        labels += [label] * len(found)
    return paths, labels


def _held_out(folder: Path, classes: Sequence[str], labels: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    if not 0 < fraction < 1:
        raise ValueError(f"test_fraction is {fraction}, expected a number between 0 and 1")
    alone = np.flatnonzero(np.bincount(labels) < 2)
    if len(alone):
        raise ValueError(
            f"the class folder {folder / classes[alone[0]]} has 1 image, expected at least 2: "
            "one to train on, one to test on"
        )
    n = len(labels)
    count = min(max(round(fraction * n), len(classes)), n - len(classes))
    return stratified(labels, count, seed)


def _checked_size(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """Height and width as the user wants them; JSON has lists for tuples."""
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
        raise ValueError(
            f"size is {size!r}, expected a whole number of at least 1, or two such as (24, 32) for height and width"
        )
    return sides[0], sides[1]


def _commonest_size(headers: Sequence[Header]) -> tuple[int, int]:
    sizes = Counter((item.height, item.width) for item in headers)
    (h, w), _ = max(sizes.items(), key=lambda entry: (entry[1], entry[0]))
    scale = min(1.0, _LONGEST / max(h, w))
    return max(1, round(h * scale)), max(1, round(w * scale))


def _tree_hash(folder: Path, paths: Sequence[Path], headers: Sequence[Header], train: Any) -> str:
    """One hash of all names, contents and the division into training and test images."""
    mine = set(train.tolist())
    digest = hashlib.sha256()
    for k, (path, item) in enumerate(zip(paths, headers, strict=True)):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{item.sha256}\0{k in mine}\n".encode())
    return digest.hexdigest()
