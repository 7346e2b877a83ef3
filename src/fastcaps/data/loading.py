"""`load`: from a name or a folder to a data set."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch

from fastcaps._download import cache_dir
from fastcaps._result import without_none
from fastcaps.data import amat, cifar10, digits, files, folder, idx, variants
from fastcaps.data.augment import Augmentation
from fastcaps.data.dataset import DataSet, Split
from fastcaps.data.idx import Arrays
from fastcaps.data.options import FolderOptions, LoadCall
from fastcaps.data.registry import SETS, Files, NamedSet, named


class _Parts(NamedTuple):
    """Images and labels of a named set, and their provenance."""

    train: Arrays
    test: Arrays
    provenance: dict[str, Any]


def load(
    name_or_folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    seed: int = 0,
    photographs: str | Path | None = None,
    test_only: bool = False,
    rotation: float | None = None,
    zoom: float | None = None,
    **options: Unpack[FolderOptions],
) -> DataSet:
    """Return a data set by its name, or of a folder of images.

    Files that are not in ``data_dir``, ``$FASTCAPS_DATA`` or the cache are downloaded to the cache.

    Args:
        name_or_folder: one of `SETS`, or a folder with one subfolder of images per class. A name has priority
            over a folder of the same name; ``./name`` is the folder.
        data_dir: folder of the files, such as ``<data_dir>/mnist/train-images-idx3-ubyte.gz``.
        seed: seed of generated images, or of the choice of test images in a folder without ``train`` and ``test``.
        photographs: folder of photographs for the backgrounds of ``background_mnist``.
        test_only: leave the training part empty where the test images can be read without it. The test images of
            MNIST come with the package.
        rotation: largest random rotation of training images in degrees, see `DataSet.augmented`.
        zoom: largest random change of their height and width, such as 0.1.
        options: ``test_fraction``, ``size``, ``channels`` and ``skip_broken`` for a folder, see `FolderOptions`.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}, expected at least 0")
    Augmentation(**without_none(rotation=rotation, zoom=zoom))  # raises before anything is read
    if str(name_or_folder).replace("-", "_") not in SETS and Path(name_or_folder).expanduser().is_dir():
        _refuse("a folder of images", photographs=photographs)
        own = Path(name_or_folder).expanduser().resolve()
        data = folder.load(own, seed=seed, **options)
        call: LoadCall = {
            "name_or_folder": str(own),
            "seed": seed,
            "test_fraction": options.get("test_fraction"),
            "size": options.get("size"),
            "channels": options.get("channels"),
        }
        if "skip_broken" in options:
            call["skip_broken"] = options["skip_broken"]
        return dataclasses.replace(data, call=call).augmented(rotation=rotation, zoom=zoom)
    entry = named(str(name_or_folder))
    _refuse(entry.name, **{**options, "skip_broken": options.get("skip_broken") or None})
    if entry.name != "background_mnist":
        _refuse(entry.name, photographs=photographs)
    data = load_named(entry, data_dir=data_dir, seed=seed, photographs=photographs, test_only=test_only)
    call = {"name_or_folder": entry.name, "seed": seed}
    if photographs is not None:
        call["photographs"] = str(Path(photographs).expanduser().resolve())
    return dataclasses.replace(data, call=call).augmented(rotation=rotation, zoom=zoom)


def load_named(
    entry: NamedSet,
    *,
    data_dir: str | Path | None = None,
    seed: int = 0,
    photographs: str | Path | None = None,
    into: Path | None = None,
    test_only: bool = False,
) -> DataSet:
    """Return the data set of an entry; missing files are downloaded ``into`` a folder, the cache when None."""
    into = into or cache_dir()
    if test_only and entry.files is not None and entry.files.test:
        train, test, provenance = _published(
            entry, entry.files.of_test(), [*files.roots(data_dir), files.EMBEDDED], into
        )
    else:
        train, test, provenance = _parts(entry, data_dir, seed, photographs, into)
    augmentation = Augmentation(**entry.augmentation)
    return DataSet(
        name=entry.name,
        class_names=entry.class_names,
        image_shape=(entry.image_shape[0], *(augmentation.crop or entry.image_shape[1:])),
        train=_in_memory(train),
        test=_in_memory(test),
        provenance=provenance,
        augmentation=augmentation,
        background=entry.background,
        network=entry.network,
        training=entry.training,
    )


def _parts(
    entry: NamedSet, data_dir: str | Path | None, seed: int, photographs: str | Path | None, into: Path
) -> _Parts:
    if entry.files is None:
        train, test, hashes = digits.load(entry)
        return _Parts(train, test, {"kind": "original", "files": hashes})
    places = files.roots(data_dir)
    if entry.made_from is None:
        return _published(entry, entry.files, places, into)
    located = [item for item in files.locate(entry.files, places) if item is not None]
    # A set with given photographs must be generated.
    if photographs is None and len(located) == len(entry.files.files):
        train, test, hashes = amat.load(entry, located)
        return _Parts(train, test, {"kind": "original", "files": hashes})
    source, own = SETS[entry.made_from], files.instructions(entry.files, places)
    sources = {file.name: file.sha256 for file in source.files.files} if source.files else {}

    def mnist() -> tuple[Arrays, Arrays]:
        try:
            return _parts(source, data_dir, seed, None, into)[:2]
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{entry.name} is generated from {source.name}, or read from its own files ({own}); {error}"
            ) from None

    if entry.name == "rotated_mnist":
        train, test, document = variants.rotated(entry, mnist, sources, seed)
    else:
        train, test, document = variants.on_backgrounds(entry, mnist, sources, seed, photographs)
    return _Parts(train, test, {"kind": "generated", **document.to_dict()})


def _published(entry: NamedSet, needed: Files, places: list[Path], into: Path) -> _Parts:
    """Return both parts from files with published hashes; the training part is empty if its files are not needed."""
    reader = cifar10 if entry.name == "cifar10" else idx
    *train, test = reader.load(entry, files.fetch(needed, places, into))
    images = np.concatenate([np.empty((0, *entry.image_shape), np.uint8), *(part[0] for part in train)])
    labels = np.concatenate([np.empty(0, np.int64), *(part[1] for part in train)])
    hashes = {file.name: file.sha256 for file in entry.files.files} if entry.files else {}
    return _Parts((images, labels), test, {"kind": "original", "files": hashes})


def _in_memory(part: Arrays) -> Split:
    images, labels = (torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in part)
    return Split(labels, images.__getitem__)


def _refuse(kind: str, **options: Any) -> None:
    """Raise ValueError for an argument that does not apply to a set."""
    for option, value in options.items():
        if value is not None:
            raise ValueError(f"{option}={value!r} has no meaning for {kind}: leave it out")
