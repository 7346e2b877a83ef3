"""Atomic writes of one or several files, and recovery after a crash.

Files that belong together are written as one transaction. Their new contents are written to a hidden folder beside them
first, then a journal with the destination of each; only then are they moved. A process that is killed before the
journal is complete has changed nothing. If it is killed afterwards, `recover` completes the moves.

A hidden folder is only modified if its name and the marker in it show that this library made it, and if the process
that made it no longer holds its lock.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock, Timeout

# Suffixes by which other programs recognize the format of a file.
_FORMATS = frozenset(
    {".bin", ".csv", ".html", ".jpeg", ".jpg", ".json", ".jsonl", ".npy", ".npz", ".onnx", ".pdf", ".pickle", ".pkl"}
    | {".png", ".pt", ".pth", ".py", ".safetensors", ".svg", ".toml", ".txt", ".yaml", ".yml", ".zip"}
)
_NAME = re.compile(r"\.fastcaps-[0-9a-f]{32}\.part")
_LOCK, _MARKER, _NEW, _JOURNAL, _REMOVED = "lock", "marker", "marker.new", "journal", "removed-"
# Seconds after which a missing marker will not be written any more.
_OLD = 3600
_MADE_BY = b"A transaction of fastcaps. It can be removed when no process is writing.\n"


def write_atomically(files: Mapping[Path, bytes | None]) -> None:
    """Write several files in one transaction: all of them are written, or after an error none.

    If the process is killed, either no file has changed, or `recover` completes the transaction.

    Args:
        files: contents by path; None removes a file, if it exists. All must have a common parent folder that is
            writable.
    """
    if not files:
        return
    root = Path(os.path.commonpath([path.absolute().parent for path in files]))
    root.mkdir(parents=True, exist_ok=True)
    recover(root)
    with _transaction(root) as folder:
        moves = {}
        for number, (path, content) in enumerate(files.items()):
            name = str(number) if content is not None else f"{_REMOVED}{number}"
            moves[name] = path.absolute().relative_to(root).as_posix()
            if content is not None:
                _write(folder / name, content)
        if len(files) > 1:  # a single move is atomic
            _write(folder / _JOURNAL, json.dumps(moves).encode())
        try:
            _move(root, folder, moves)
        except BaseException:
            (folder / _JOURNAL).unlink(missing_ok=True)
            raise


def recover(folder: Path) -> None:
    """Complete the transactions of killed processes in a folder, and remove incomplete ones."""
    for path in sorted(folder.glob(".fastcaps-*.part")) if folder.is_dir() else ():
        if not _NAME.fullmatch(path.name) or not _is_ours(path):
            continue
        lock = FileLock(path / _LOCK)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue  # another process is writing, or the folder is not writable
        with lock:
            moves = _journal(path / _JOURNAL)
            if moves is None:
                _remove(path)
                continue
            for name, target in moves.items():
                if name.startswith(_REMOVED):
                    _unlink(folder / target)
                elif (path / name).is_file():
                    (folder / target).parent.mkdir(parents=True, exist_ok=True)
                    (path / name).replace(folder / target)
            _remove(path)


def check_output(path: str | Path, *suffixes: str, force: bool = True) -> None:
    """Raise if the path of an output file has the suffix of another format, or, without ``force``, if it exists."""
    path = Path(path)
    if path.suffix.lower() in _FORMATS - set(suffixes):
        expected = " or ".join(suffixes)
        raise ValueError(f"{path} was given as the file to write, expected a name that ends with {expected}")
    if not force and path.exists():
        raise FileExistsError(f"{path} exists: choose another name, or pass force=True to overwrite it")


def json_bytes(value: Any) -> bytes:
    """Return a value as an indented JSON document."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


@contextmanager
def _transaction(root: Path) -> Iterator[Path]:
    """Make a hidden folder that is locked while it is in use, and remove it afterwards."""
    folder = root / f".fastcaps-{uuid4().hex}.part"
    folder.mkdir()
    with FileLock(folder / _LOCK):
        try:
            # Atomically: a marker is complete or missing.
            _write(folder / _NEW, _MADE_BY)
            (folder / _NEW).rename(folder / _MARKER)
            yield folder
        finally:
            _remove(folder)


def _move(root: Path, folder: Path, moves: Mapping[str, str]) -> None:
    """Move files from a hidden folder to their destinations; after an error, undo all moves."""
    with ExitStack() as undo:
        for name, target in moves.items():
            path, old = root / target, folder / f"{name}.old"
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and len(moves) > 1:
                _keep(path, old)
                undo.callback(os.replace, old, path)
            elif not path.exists():
                undo.callback(_unlink, path)
            if name.startswith(_REMOVED):
                path.unlink(missing_ok=True)
            else:
                (folder / name).replace(path)
        undo.pop_all()


def _keep(path: Path, old: Path) -> None:
    """Give a file a second name; copy it on file systems without hard links."""
    try:
        os.link(path, old)
    except OSError:
        shutil.copy2(path, old)


def _journal(path: Path) -> dict[str, str] | None:
    """Return the moves of a journal; None if it is missing, truncated, or leads out of its folder."""
    try:
        moves = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(moves, dict):
        return None
    for name, target in moves.items():
        if not name.removeprefix(_REMOVED).isdecimal() or not isinstance(target, str):
            return None
        if Path(target).is_absolute() or ".." in Path(target).parts:
            return None
    return moves


def _is_ours(folder: Path) -> bool:
    """Return whether this library made a hidden folder: it has the marker, or is old, empty and without one."""
    try:
        if (folder / _MARKER).is_file():
            return (folder / _MARKER).read_bytes() == _MADE_BY
        empty = all(path.name in (_LOCK, _NEW) for path in folder.iterdir())
        return empty and time.time() - folder.stat().st_mtime > _OLD
    except OSError:
        return False


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _remove(folder: Path) -> None:
    """Remove a hidden folder and its files, the marker last, so that an interrupted removal can be completed."""
    with suppress(OSError):
        files = sorted((path for path in folder.iterdir() if path.name != _MARKER), key=lambda path: path.name == _LOCK)
        for path in [*files, folder / _MARKER]:
            _unlink(path)
        folder.rmdir()


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
