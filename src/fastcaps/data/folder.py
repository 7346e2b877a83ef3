"""Folders of images: one subfolder per class, read from disk when needed.

Either ``train/<class>/…`` and ``test/<class>/…``, or one tree ``<class>/…`` of which a fraction is held out for
testing. Only names, labels and hashes are in memory.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps._images import Header, decode, header, image_files, no_bombs
from fastcaps._machine import processors
from fastcaps._progress import progress_bar, say
from fastcaps.data.augment import Augmentation
from fastcaps.data.dataset import DataSet, Split, measure_background, stratified
from fastcaps.distributed import current

# Maximum side of images in pixels; larger ones are resized by default: the weights of a capsule network grow with its
# square.
_LONGEST = 64
_TEST_FRACTION = 0.2
# Names of folders that suggest a divided set; only train and test together are accepted.
_PARTS = frozenset({"train", "val", "valid", "validation", "test"})
# Maximum number of decoding threads; Pillow releases the GIL while it decodes.
_THREADS = 8
# Digits of the SHA-256 that identify a test image, and maximum number of broken files that an error lists.
_DIGITS, _NAMED = 16, 10


class _Files(NamedTuple):
    """Image files with headers ``(n)``, labels ``(n)``, and, if divided, whether each is in ``test`` ``(n)``."""

    paths: list[Path]
    headers: list[Header]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    divided: bool
    tested: NDArray[np.bool_]
    left_out: tuple[str, ...]


def load(
    folder: Path,
    *,
    seed: int = 0,
    test_fraction: float | None = None,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    skip_broken: bool = False,
    test_hashes: Sequence[str] = (),
) -> DataSet:
    """Return a data set of the images in a folder.

    Args:
        folder: folder with one subfolder per class, or with ``train`` and ``test`` that have such subfolders.
        seed: seed of the choice of test images, if the folder isn't divided.
        test_fraction: see `FolderOptions`.
        size: see `FolderOptions`.
        channels: see `FolderOptions`.
        skip_broken: see `FolderOptions`.
        test_hashes: earlier `DataSet.test_hashes` of the folder; if it isn't divided, exactly these images are the test
            images.
    """
    chosen_size = _checked_size(size)
    if channels is not None and (type(channels) is not int or channels not in (1, 3)):
        raise ValueError(f"channels is {channels!r}, expected 1 for gray or 3 for color")
    threads = max(1, min(_THREADS, processors() // current().local_size))
    files = _listed_files(folder, threads, skip_broken)
    train_files, test_files = _divided(folder, files, test_fraction, seed, frozenset(test_hashes))
    headers = files.headers
    c = channels if channels is not None else 1 if all(item.gray for item in headers) else 3
    h, w = chosen_size or _most_common_size([headers[k] for k in train_files])
    names = [str(path) for path in files.paths]  # a million strings take 0.1 GB, as Path objects four times that
    read = FileReader(names, (h, w), c, threads)
    train, test = (
        Split(torch.from_numpy(files.labels[part]), read, torch.from_numpy(part), streams=True)
        for part in (train_files, test_files)
    )
    background = measure_background(train) if c == 1 else None
    return DataSet(
        name=folder.resolve().name,
        class_names=files.class_names,
        image_shape=(c, h, w),
        train=train,
        test=test,
        provenance=_provenance(
            (len(train), len(test)), (c, h, w), _tree_hash(folder, files.paths, headers, train_files)
        ),
        augmentation=Augmentation.shifting(h, w, fill="zero" if background == 0 else "edge"),
        background=background,
        test_hashes=() if files.divided else tuple(headers[k].sha256[:_DIGITS] for k in test_files),
        left_out=files.left_out,
    )


@dataclass(frozen=True, eq=False)
class FileReader:
    """Decodes image files by their indices ``(b)``; a class, so that workers can unpickle it.

    Attributes:
        names: paths of all files.
        size: height and width to resize to.
        channels: 1 for gray or 3 for color.
        threads: number of files decoded at a time.
    """

    names: Sequence[str]
    size: tuple[int, int]
    channels: int
    threads: int

    def __call__(self, indices: Tensor) -> Tensor:
        """Return bytes ``(b c h w)``."""
        with ThreadPoolExecutor(self.threads) as pool:
            pixels = list(pool.map(lambda k: decode(Path(self.names[k]), self.size, self.channels), indices.tolist()))
        images = np.stack(pixels) if pixels else np.empty((0, self.channels, *self.size), np.uint8)
        return torch.from_numpy(images)


def _provenance(images: tuple[int, int], shape: tuple[int, int, int], sha256: str) -> dict[str, Any]:
    counts = dict(zip(("train", "test"), images, strict=True))
    return {"kind": "folder", "images": counts, "size": list(shape[1:]), "channels": shape[0], "sha256": sha256}


def is_divided(folder: Path) -> bool:
    """Return whether a folder has ``train`` and ``test``."""
    return (folder / "train").is_dir() and (folder / "test").is_dir()


def _listed_files(folder: Path, threads: int, skip_broken: bool) -> _Files:
    """List the images of a folder and read their headers."""
    if is_divided(folder):
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
    tested = np.arange(len(paths)) >= len(listed[0][0])
    divided = len(trees) == 2
    with no_bombs(), ThreadPoolExecutor(threads) as pool:
        if not skip_broken:
            return _Files(paths, list(pool.map(header, paths)), labels, classes, divided, tested, ())
        with progress_bar("checking", len(paths)) as observe:
            headers = []
            for item in pool.map(_decodable_header, paths):
                headers.append(item)
                observe(1)
    intact = np.array([item is not None for item in headers])
    broken = [str(path.relative_to(folder)) for path, whole in zip(paths, intact, strict=True) if not whole]
    if broken:
        more = f" and {len(broken) - _NAMED} more" if len(broken) > _NAMED else ""
        say(f"left out {len(broken)} of {len(paths):,} files of {folder}: {', '.join(broken[:_NAMED])}{more}")
    for part, tree in enumerate(trees):
        left = np.bincount(labels[intact & (tested == part)], minlength=len(classes))
        if not left.all():
            raise ValueError(
                f"the class folder {tree / classes[left.argmin()]} has no images that can be decoded: add some or "
                "remove it"
            )
    return _Files(
        [path for path, whole in zip(paths, intact, strict=True) if whole],
        [item for item in headers if item is not None],
        labels[intact],
        classes,
        divided,
        tested[intact],
        tuple(broken),
    )


def _decodable_header(path: Path) -> Header | None:
    """Return the header of an image file; None for one that can't be decoded."""
    try:
        decode(path, None, 3)
        return header(path)
    except ValueError:
        return None


def _divided(
    folder: Path, files: _Files, test_fraction: float | None, seed: int, known: frozenset[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of training and test images: by ``train`` and ``test``, by earlier hashes, or at random."""
    if files.divided:
        if test_fraction is not None:
            raise ValueError(
                f"test_fraction={test_fraction!r} has no meaning for {folder}: it has train and test; leave it out"
            )
        return np.flatnonzero(~files.tested), np.flatnonzero(files.tested)
    if known:
        tested = np.array([item.sha256[:_DIGITS] in known for item in files.headers])
        return np.flatnonzero(~tested), np.flatnonzero(tested)
    fraction = _TEST_FRACTION if test_fraction is None else test_fraction
    return _held_out(folder, files.class_names, files.labels, fraction, seed)


def _not_half_divided(folder: Path) -> None:
    """Raise ValueError if folders such as ``train`` or ``val`` would be taken for classes."""
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
    """Return the names of the subfolders: in numerical order if all are numbers, otherwise in alphabetical order."""
    names = [entry.name for entry in tree.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    if len(names) < 2:
        raise ValueError(
            f"{tree} has {len(names)} class folders{f' ({names[0]})' if names else ''}, expected at least 2: "
            "one subfolder of images per class, in the folder itself or in both train/ and test/"
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
    """Return all image files of a tree and the label of each."""
    paths, labels = [], []
    for label, name in enumerate(classes):
        files = image_files(tree / name)
        if not files:
            raise ValueError(f"the class folder {tree / name} has no images in it: add some or remove it")
        paths += files
        labels += [label] * len(files)
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
    """Return height and width as a tuple; JSON has lists."""
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
        raise ValueError(
            f"size is {size!r}, expected a whole number of at least 1, or two such as (24, 32) for height and width"
        )
    return sides[0], sides[1]


def _most_common_size(headers: Sequence[Header]) -> tuple[int, int]:
    sizes = Counter((item.height, item.width) for item in headers)
    (h, w), _ = max(sizes.items(), key=lambda entry: (entry[1], entry[0]))
    scale = min(1.0, _LONGEST / max(h, w))
    return max(1, round(h * scale)), max(1, round(w * scale))


def _tree_hash(folder: Path, paths: Sequence[Path], headers: Sequence[Header], train: Any) -> str:
    """Return one hash of all names, contents and the division into training and test images."""
    training = set(train.tolist())
    digest = hashlib.sha256()
    for k, (path, item) in enumerate(zip(paths, headers, strict=True)):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{item.sha256}\0{k in training}\n".encode())
    return digest.hexdigest()
