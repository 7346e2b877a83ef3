"""Former functions; they will be removed in the next release."""

from pathlib import Path
from typing import Any

from fastcaps._result import plain
from fastcaps.data import catalog


def get(name: str, *, data_dir: str | Path | None = None, original: bool = False) -> dict[str, Any]:
    """Download one set, and return its status as a dictionary."""
    status: dict[str, Any] = plain(catalog.download(name, data_dir=data_dir, original=original).sets[0])
    return status


def available(data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """Return the status of all named sets as dictionaries."""
    sets: list[dict[str, Any]] = plain(catalog.available(data_dir).sets)
    return sets
