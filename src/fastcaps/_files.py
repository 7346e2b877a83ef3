"""Writing files whole or not at all."""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any


def write_atomically(files: Mapping[Path, bytes]) -> None:
    """Write files so that each is found whole, as it was before or as it is now, whatever happens.

    All are written beside their places and flushed to disk first; only when every one is there are they moved in
    place, in the order given. A write that fails leaves nothing behind.
    """
    with ExitStack() as leftovers:
        moves = []
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
            leftovers.callback(_remove, temporary)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            moves.append((temporary, path))
        for temporary, path in moves:
            temporary.replace(path)


def remove_leftovers(folder: Path) -> None:
    """Remove what writes that were killed left behind in a folder."""
    for path in folder.glob(".*.part"):
        _remove(path)


def json_bytes(value: Any) -> bytes:
    """A value as an indented JSON document."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
