"""What there is and what is at hand, for ``fastcaps data list`` and ``get``: answered without PyTorch."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastcaps._extras import require
from fastcaps.data import amat, files
from fastcaps.data.registry import SETS, NamedSet, named


def available(data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """Each named set as plain values: its sizes, whether and where it is at hand, and where it can be had."""
    places = files.roots(data_dir)
    return [_state(entry, places) for entry in SETS.values()]


def get(name: str, *, data_dir: str | Path | None = None, original: bool = False) -> dict[str, Any]:
    """Bring a set's files, or make it, so that it can be loaded without a network.

    Args:
        name: one of `SETS`.
        data_dir: a folder in which the files are looked for first, and to which those not at hand are
            brought instead of to the cache.
        original: download the files of 2007 instead of making a variant of MNIST from MNIST.

    Returns:
        What `available` says of the set afterwards.
    """
    entry = named(name)
    if original and entry.made_from is None:
        raise ValueError(f"{entry.name} is original in any case: leave out original")
    if data_dir is not None:
        Path(data_dir).expanduser().mkdir(parents=True, exist_ok=True)
    places = files.roots(data_dir)
    into = places[0] if data_dir is not None else files.cache_dir()
    if entry.files is not None and (original or entry.made_from is None):
        found = files.fetch(entry.files, places, into)
        # What has published hashes is verified by them, the files of 2007 by their form.
        amat.load(entry, found) if original else files.read(found)
    elif entry.made_from is not None and _found(entry, places) is None:
        source = SETS[entry.made_from].files
        if source is not None:
            files.fetch(source, places, into)
        require(f"making {entry.name}", "torch")
        from fastcaps.data.loading import load_named

        load_named(entry, data_dir=data_dir)
    return _state(entry, places)


def _state(entry: NamedSet, places: list[Path]) -> dict[str, Any]:
    found = _found(entry, places)
    size = None
    if entry.files is None:
        at_hand = find_spec("sklearn") is not None
        where = "comes with scikit-learn"
    elif found is not None:
        at_hand = True
        where = str(found[0].path.parent)
        size = sum(path.stat().st_size for path in {item.path for item in found})
    elif entry.made_from is not None and _found(SETS[entry.made_from], places) is not None:
        at_hand = True
        where = f"generated from {entry.made_from}"
        made = list((files.cache_dir() / "generated").glob(f"{entry.name}-*.safetensors"))
        size = sum(path.stat().st_size for path in made) or None
    else:
        at_hand, where = False, ""
    return {
        "name": entry.name,
        "train": entry.train,
        "test": entry.test,
        "image_shape": list(entry.image_shape),
        "classes": len(entry.class_names),
        "at_hand": at_hand,
        "where": where,
        "bytes": size,
        "sources": _sources(entry),
    }


def _found(entry: NamedSet, places: list[Path]) -> list[files.Found] | None:
    """All files of a set, or None when one is missing."""
    if entry.files is None:
        return None
    found = [item for item in files.locate(entry.files, places) if item is not None]
    return found if len(found) == len(entry.files.files) else None


def _sources(entry: NamedSet) -> list[str]:
    if entry.files is None:
        return ["scikit-learn"]
    if entry.files.archive is not None:
        made = [f"{entry.made_from} (generated)"] if entry.made_from else []
        return [*made, *entry.files.archive.urls]
    return sorted({url.rsplit("/", 1)[0] + "/" for file in entry.files.files for url in file.urls})
