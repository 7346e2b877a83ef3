"""Writing files whole or not at all."""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4


def write_atomically(files: Mapping[Path, bytes]) -> None:
    """Write files so that each is found whole, as it was before or as it is now, whatever happens.

    All are written beside their places and flushed to disk first; only when every one is there are they moved in place,
    in the order given. A write or a move that fails leaves all of them as they were. (A process that is killed in
    the instant between two moves leaves the first new and the second old, each whole.)
    """
    with ExitStack() as leftovers:
        moves = []
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{uuid4().hex}.part")
            leftovers.callback(_remove, temporary)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            moves.append((temporary, path))
        with ExitStack() as undo:
            for temporary, path in moves:
                kept = temporary.with_suffix(".old.part")
                leftovers.callback(_remove, kept)
                if path.is_file() and len(moves) > 1:
                    os.link(path, kept)
                    undo.callback(os.replace, kept, path)
                elif not path.exists():
                    undo.callback(_remove, path)
                temporary.replace(path)
            undo.pop_all()


def remove_leftovers(folder: Path) -> None:
    """Remove what writes that were killed left behind in a folder and below."""
    for path in folder.rglob(".*.part"):
        _remove(path)


def json_bytes(value: Any) -> bytes:
    """A value as an indented JSON document."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
