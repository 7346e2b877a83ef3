"""The named data sets on this machine: which are available, where, and how to get the others. Needs no PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastcaps._download import cache_dir
from fastcaps._extras import require
from fastcaps._result import Record, Result, Table
from fastcaps.data import amat, files
from fastcaps.data.registry import SETS, NamedSet, named


@dataclass(frozen=True)
class SetStatus(Record):
    """A named data set and where it is.

    Attributes:
        name: name of the set.
        train: number of training images.
        test: number of test images.
        image_shape: ``(c, h, w)`` of an image as it is stored.
        classes: number of classes.
        available: whether it can be loaded without a download.
        where: folder of its files, or the source it is generated from; empty if it isn't available.
        bytes: size of its files; None if it has no files.
        sources: where it comes from.
    """

    name: str
    train: int
    test: int
    image_shape: tuple[int, int, int]
    classes: int
    available: bool
    where: str
    bytes: int | None
    sources: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, for one release also ``at_hand``, the former name of ``available``."""
        return {**super().to_dict(), "at_hand": self.available}

    @classmethod
    def stored(cls, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Return the entries of an earlier version with ``available``."""
        return {"available": values["at_hand"], **values} if "at_hand" in values else values


@dataclass(frozen=True, repr=False, eq=False)
class Catalog(Result):
    """Named data sets and where they are.

    Attributes:
        sets: sets in the order in which they were requested.
    """

    sets: tuple[SetStatus, ...]

    def tables(self) -> Sequence[Table]:
        """Return sizes and availability, one row per set."""
        rows = [
            [
                entry.name,
                f"{entry.train:,} / {entry.test:,}",
                "×".join(map(str, entry.image_shape)),
                f"{entry.bytes / 1e6:,.1f} MB" if entry.bytes else "",
                "yes" if entry.available else "no",
            ]
            for entry in self.sets
        ]
        return [Table("Data sets", ["name", "train / test", "image", "size", "available"], rows)]


def available(data_dir: str | Path | None = None) -> Catalog:
    """Return all named sets: their sizes, whether and where they are available, and where they come from.

    Args:
        data_dir: folder to search first.
    """
    places = files.roots(data_dir)
    return Catalog(tuple(_status(entry, places) for entry in SETS.values()))


def download(*names: str, data_dir: str | Path | None = None, original: bool = False) -> Catalog:
    """Download sets, or generate them, and verify them, so that they can be loaded without a connection.

    Args:
        names: names of the sets, out of `SETS`.
        data_dir: folder to search first; missing files are downloaded to it instead of the cache.
        original: download the files of 2007 instead of generating a variant of MNIST.

    Returns:
        The sets as they are available now.
    """
    entries = [named(name) for name in names]  # raises for a wrong name before anything is downloaded
    return Catalog(tuple(_download(entry, data_dir, original) for entry in entries))


def _download(entry: NamedSet, data_dir: str | Path | None, original: bool) -> SetStatus:
    if original and entry.made_from is None:
        raise ValueError(f"{entry.name} is never generated, so original=True has no meaning for it: leave it out")
    into = cache_dir() if data_dir is None else Path(data_dir).expanduser()
    # A folder that doesn't exist yet is created when something is downloaded.
    existing = data_dir if into.exists() else None
    places = files.roots(existing) if data_dir is None or existing is not None else [into, *files.roots()]
    located = _located(entry, places)
    if entry.files is not None and original:
        # Files with published hashes are verified by their hashes, the files of 2007 by their format.
        form = partial(amat.load, entry)
        items = located or files.fetch(entry.files, places, into, form)
        if located or not all(item.packed for item in items):  # a download has already been verified
            form(items)
    elif entry.files is not None and entry.made_from is None:
        files.read(files.fetch(entry.files, places, into))
    elif entry.files is not None and located is None:
        require(f"generating {entry.name}", "torch")
        from fastcaps.data.loading import load_named

        load_named(entry, data_dir=existing, into=into)
    return _status(entry, places)


def _status(entry: NamedSet, places: list[Path]) -> SetStatus:
    located = _located(entry, places)
    size = None
    if entry.files is None:
        is_available = find_spec("sklearn") is not None
        where = "comes with scikit-learn"
    elif located is not None:
        is_available = True
        where = str(located[0].path.parent)
        size = sum(path.stat().st_size for path in {item.path for item in located})
    else:
        generated = [
            path
            for path in (cache_dir() / "generated").glob(f"{entry.name}-*.safetensors")
            if path.with_suffix(".json").is_file()  # written last: without it the set isn't complete
        ]
        size = sum(path.stat().st_size for path in generated) or None
        source = SETS[entry.made_from] if entry.made_from else None
        is_available = bool(generated) or (source is not None and _located(source, places) is not None)
        where = f"generated from {entry.made_from}" if is_available else ""
    return SetStatus(
        name=entry.name,
        train=entry.train,
        test=entry.test,
        image_shape=entry.image_shape,
        classes=len(entry.class_names),
        available=is_available,
        where=where,
        bytes=size,
        sources=_sources(entry),
    )


def _located(entry: NamedSet, places: list[Path]) -> list[files.LocalFile] | None:
    """Return all files of a set, or None when one is missing."""
    if entry.files is None:
        return None
    items = [item for item in files.locate(entry.files, places) if item is not None]
    return items if len(items) == len(entry.files.files) else None


def _sources(entry: NamedSet) -> tuple[str, ...]:
    if entry.files is None:
        return ("scikit-learn",)
    generated = [f"{entry.made_from} (generated)"] if entry.made_from else []
    return (*generated, *files.homes(entry.files))
