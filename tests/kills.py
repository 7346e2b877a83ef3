"""A process that is killed at a step of a write, without a process: from then on no file changes any more."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fastcaps import _files
from fastcaps._files import recover, write_atomically

_STEPS: list[tuple[Any, str]] = [
    *((os, name) for name in ("fsync", "link", "replace")),
    *((Path, name) for name in ("open", "mkdir", "replace", "rename", "unlink", "rmdir")),
]

Files = dict[str, bytes]


class Killed(BaseException):
    """No handler of exceptions sees it, as none sees a signal that kills."""


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """Let every operation on files fail from a step on; a file that is being written then is cut in half."""
    count = 0

    def counted(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == step and name == "fsync":
                os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
            if count >= step:
                raise Killed
            return original(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in _STEPS:
            patch.setattr(owner, name, counted(getattr(owner, name), name))
        yield


@contextmanager
def killed_before_write(number: int) -> Iterator[None]:
    """Raise `Killed` in place of a transaction, counted from 1."""
    move, count = _files._move, 0

    def counted(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise Killed
        move(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_files, "_move", counted)
        yield


def contents(folder: Path) -> Files:
    """Return all files below a folder but locks and those of transactions that a kill left."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".fastcaps-" not in str(path) and path.name != ".lock"
    }


@contextmanager
def recorded(folder: Path) -> Iterator[list[tuple[Files, Mapping[str, bytes | None]]]]:
    """Note for every transaction below a folder what was there before, and what it writes."""
    transactions: list[tuple[Files, Mapping[str, bytes | None]]] = []
    move = _files._move

    def noting(root: Path, hidden: Path, moves: Mapping[str, str]) -> None:
        targets = {(root / target).relative_to(folder).as_posix(): hidden / name for name, target in moves.items()}
        new = {target: path.read_bytes() if path.is_file() else None for target, path in targets.items()}
        transactions.append((contents(folder), new))
        move(root, hidden, moves)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_files, "_move", noting)
        yield transactions


def check_every_kill(before: Files, new: Mapping[str, bytes | None], folder: Path, read: Callable[[Path], None]) -> int:
    """Kill a transaction at each of its steps: all files are old or all are new, and the folder can be read.

    Returns:
        The number of steps.
    """
    after = {name: content for name, content in {**before, **new}.items() if content is not None}
    outcomes = []
    for step in range(1, 1000):
        place = folder / str(step)
        for name, content in before.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
        files = {place / name: content for name, content in new.items()}
        try:
            with killed_at(step):
                write_atomically(files)
            return step
        except Killed:
            pass
        recover(Path(os.path.commonpath([path.parent for path in files])))
        actual = contents(place) if place.is_dir() else {}
        assert actual in (before, after), f"killed at step {step}, {sorted(new)} are partly new"
        # Only what was killed before its marker stays, for an hour.
        assert {path.name for path in place.glob(".fastcaps-*/*")} <= {"lock", "marker.new"}
        if (actual == after) not in outcomes:
            read(place)
        outcomes.append(actual == after)
        assert outcomes == sorted(outcomes), "old until the journal is there, new from then on"
    raise AssertionError("a write has no end")
