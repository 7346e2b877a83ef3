"""What there is and what is at hand, for ``fastcaps data list`` and ``get``: answered without PyTorch."""

from functools import partial
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
    into = files.cache_dir() if data_dir is None else Path(data_dir).expanduser()
    # A folder that is not there yet is made when something is brought to it.
    there = data_dir if into.exists() else None
    places = files.roots(there) if data_dir is None or there is not None else [into, *files.roots()]
    at_hand = _found(entry, places)
    if entry.files is not None and original:
        # What has published hashes is verified by them, the files of 2007 by their form.
        form = partial(amat.load, entry)
        found = at_hand or files.fetch(entry.files, places, into, form)
        if at_hand or not all(item.packed for item in found):  # what came just now is verified
            form(found)
    elif entry.files is not None and entry.made_from is None:
        files.read(files.fetch(entry.files, places, into))
    elif entry.files is not None and at_hand is None:
        require(f"making {entry.name}", "torch")
        from fastcaps.data.loading import load_named

        load_named(entry, data_dir=there, into=into)
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
    else:
        made = [
            path
            for path in (files.cache_dir() / "generated").glob(f"{entry.name}-*.safetensors")
            if path.with_suffix(".json").is_file()  # without it, it doesn't count as whole
        ]
        size = sum(path.stat().st_size for path in made) or None
        at_hand = bool(made) or (entry.made_from is not None and _found(SETS[entry.made_from], places) is not None)
        where = f"generated from {entry.made_from}" if at_hand else ""
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
    made = [f"{entry.made_from} (generated)"] if entry.made_from else []
    return [*made, *files.homes(entry.files)]
