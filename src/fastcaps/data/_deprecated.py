"""Former functions; they will be removed in the next release."""

from pathlib import Path
from typing import Any

from fastcaps._result import plain
from fastcaps.data.catalog import download


def get(name: str, *, data_dir: str | Path | None = None, original: bool = False) -> dict[str, Any]:
    """Download one set, and return its status as a dictionary."""
    status: dict[str, Any] = plain(download(name, data_dir=data_dir, original=original).sets[0])
    return status
