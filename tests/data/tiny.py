"""Tiny files of every format, written by the tests themselves, with registry entries for them."""

import dataclasses
import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fastcaps.data import files
from fastcaps.data.registry import SETS, File, Files, NamedSet


def idx_bytes(array):
    """An array of bytes as an idx file."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def digit_images(count, seed=0):
    """Images ``(n 28 28)`` with something bright in the middle, and labels ``(n)`` of every class."""
    random = np.random.default_rng(seed)
    images = np.zeros((count, 28, 28), np.uint8)
    images[:, 6:22, 9:19] = random.integers(0, 256, (count, 16, 10))
    return images, (np.arange(count) % 10).astype(np.uint8)


def with_hashes(entry: NamedSet, contents, **changes) -> NamedSet:
    """The entry whose files have these contents."""
    assert entry.files is not None
    hashed = tuple(
        dataclasses.replace(
            file,
            sha256=sha256(content),
            unpacked_sha256=sha256(gzip.decompress(content)) if file.name.endswith(".gz") else None,
            urls=(),
        )
        for file, content in zip(entry.files.files, contents, strict=True)
    )
    return dataclasses.replace(entry, files=dataclasses.replace(entry.files, files=hashed), **changes)


def files_of(entry: NamedSet) -> tuple[File, ...]:
    assert entry.files is not None
    return entry.files.files


def located(wanted: Files | None, *places: Path) -> list[files.LocalFile]:
    """Where all files of a set are."""
    assert wanted is not None
    return [item for item in files.locate(wanted, places) if item is not None]


def idx_contents(train=60, test=20):
    """The four gzipped files of an idx set."""
    parts = [*digit_images(train), *digit_images(test, seed=1)]
    return [gzip.compress(idx_bytes(array), mtime=0) for array in parts]


def write_idx_set(root: Path, name="mnist", train=60, test=20) -> NamedSet:
    """An idx set on disk, as its registry entry."""
    contents = idx_contents(train, test)
    entry = with_hashes(SETS[name], contents, train=train, test=test)
    write(root, entry, contents)
    return entry


def write(root: Path, entry: NamedSet, contents) -> None:
    assert entry.files is not None
    folder = root / entry.files.folder
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in zip(entry.files.files, contents, strict=True):
        (folder / file.name).write_bytes(content)


def cifar_contents(records=4):
    """The six files of CIFAR-10 with few records."""
    random = np.random.default_rng(0)
    contents = []
    for _ in range(6):
        array = random.integers(0, 256, (records, 3073), np.uint8)
        array[:, 0] = np.arange(records) % 10
        contents.append(array.tobytes())
    return contents


def tar_bytes(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def zip_bytes(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def with_password(content):
    """A zip file whose directory says that its members are encrypted."""
    changed = bytearray(content)
    place = content.find(b"PK\x01\x02")
    while place >= 0:
        changed[place + 8] |= 1
        place = content.find(b"PK\x01\x02", place + 1)
    return bytes(changed)


def amat_bytes(images, labels):
    """Images ``(n h w)`` between 0 and 1 and labels as the lines of an .amat file."""
    rows = np.column_stack([images.reshape(len(images), -1), labels])
    buffer = io.BytesIO()
    np.savetxt(buffer, rows, fmt="%.6g")
    return buffer.getvalue()


def save_image(path: Path, size=(20, 24), color=False, value=None) -> None:
    """An image of height × width."""
    random = np.random.default_rng(list(path.name.encode()) if value is None else value)
    pixels = random.integers(0, 256, (*size, 3) if color else size, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def plain_file(name: str, content: bytes, *urls: str) -> File:
    return File(name, sha256(content), size=len(content), urls=urls)


def use_few_digits(patch: pytest.MonkeyPatch) -> None:
    """Let ``digits`` have 160 training and 40 test images."""
    import sklearn.datasets

    digits = sklearn.datasets.load_digits()
    few = SimpleNamespace(images=digits.images[:200], target=digits.target[:200])
    patch.setattr(sklearn.datasets, "load_digits", lambda: few)
    patch.setitem(SETS, "digits", dataclasses.replace(SETS["digits"], train=160, test=40))


def write_shapes(folder, count, side=20):
    """Write a folder of JPEG pictures of lines across, lines down and squares, dark on light, in random places."""
    random = np.random.default_rng(0)
    for name, (height, width) in {"across": (3, 11), "down": (11, 3), "square": (8, 8)}.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((side, side, 3), 230, np.uint8)
            top, left = random.integers(0, side - height + 1), random.integers(0, side - width + 1)
            pixels[top : top + height, left : left + width] = random.integers(0, 90, 3)
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg", quality=95)
    return folder
