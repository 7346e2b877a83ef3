"""Transactions of files: whole or not at all, also after a crash, and nothing of anybody else's touched."""

import json
import os
from pathlib import Path

import pytest
from tests.kills import check_every_kill

from fastcaps._files import recover, write_atomically

MARKER = b"A transaction of fastcaps. It can be removed when no process is writing.\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_writes_files_in_several_folders(tmp_path: Path) -> None:
    write_atomically({tmp_path / "a": b"1", tmp_path / "deep" / "er" / "b": b"2"})
    assert contents(tmp_path) == {"a": b"1", "deep/er/b": b"2"}
    write_atomically({tmp_path / "a": b"3"})
    assert contents(tmp_path) == {"a": b"3", "deep/er/b": b"2"}


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    write_atomically({tmp_path / "a": b"old"})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "inside").write_bytes(b"x")
    with pytest.raises(OSError, match="b"):
        write_atomically({tmp_path / "a": b"new", tmp_path / "c": b"new", tmp_path / "b": b"new"})
    assert contents(tmp_path) == {"a": b"old", "b/inside": b"x"}


def test_killed_at_every_step_all_files_are_old_or_all_are_new(tmp_path: Path) -> None:
    names = ("one", "sub/two", "three")
    old, new = dict.fromkeys(names, b"old"), dict.fromkeys(names, b"new")
    assert check_every_kill(old, new, tmp_path, lambda place: None) > 20


def test_leaves_files_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / ".thesis.part").write_bytes(b"years of work")
    folder = tmp_path / f".fastcaps-{'0' * 32}.part"  # the name alone is no proof
    folder.mkdir()
    (folder / "novel").write_bytes(b"chapter one")
    os.utime(folder, (0, 0))
    (tmp_path / ".fastcaps-mine.part").mkdir()
    (tmp_path / ".fastcaps-mine.part" / "marker").write_bytes(MARKER)
    before = contents(tmp_path)
    write_atomically({tmp_path / "a": b"1"})
    recover(tmp_path)
    assert contents(tmp_path) == {**before, "a": b"1"}


def transaction(root: Path, moves: object, **files: bytes) -> Path:
    folder = root / f".fastcaps-{'a' * 32}.part"
    folder.mkdir(parents=True)
    for name, content in {"marker": MARKER, "journal": json.dumps(moves).encode(), **files}.items():
        (folder / name.lstrip("_")).write_bytes(content)
    return folder


@pytest.mark.parametrize("moves", [{"0": "../out"}, {"0": "/tmp/out"}, {"x": "a"}, ["0"], {"0": 3}, "a"])
def test_a_journal_that_leads_elsewhere_is_not_followed(tmp_path: Path, moves: object) -> None:
    root = tmp_path / "root"
    folder = transaction(root, moves, _0=b"new")
    recover(root)
    assert not folder.exists()
    assert contents(tmp_path) == {}


def test_a_transaction_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    from filelock import FileLock

    folder = transaction(tmp_path, {"0": "a"}, _0=b"new")
    with FileLock(folder / "lock"):
        write_atomically({tmp_path / "b": b"1"})
        assert folder.is_dir()
    recover(tmp_path)
    assert contents(tmp_path) == {"a": b"new", "b": b"1"}


def test_file_systems_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.link", refuse)
    for content in (b"old", b"new"):
        write_atomically({tmp_path / "a": content, tmp_path / "b": content})
        assert contents(tmp_path) == {"a": content, "b": content}
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "inside").write_bytes(b"x")
    with pytest.raises(OSError, match="c"):
        write_atomically({tmp_path / "a": b"newer", tmp_path / "c": b"newer"})
    assert contents(tmp_path) == {"a": b"new", "b": b"new", "c/inside": b"x"}
