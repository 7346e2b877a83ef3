import dataclasses
import zipfile

import numpy as np
import pytest
import torch
from tests.data import tiny

from fastcaps.data import load
from fastcaps.data.registry import SETS

NAMES = {name: [file.name for file in tiny.files_of(SETS[name])] for name in ("rotated_mnist", "background_mnist")}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name in NAMES:
        monkeypatch.setitem(SETS, name, dataclasses.replace(SETS[name], train=20, test=10))


def digits(count, seed=0):
    """Images between 0 and 1 in which a one is an upright bar on a noisy background."""
    random = np.random.default_rng(seed)
    images = random.random((count, 28, 28)) * 0.3
    images[:, 4:24, 12:16] = 1.0
    return np.rint(images * 255) / 255, np.arange(count) % 10


def write(root, name, train, test):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in zip(NAMES[name], (train, test), strict=True):
        (folder / file).write_bytes(content)


def test_rotated_digits_go_row_after_row(tmp_path):
    images, labels = digits(20)
    write(tmp_path, "rotated_mnist", tiny.amat_bytes(images, labels), tiny.amat_bytes(*digits(10, 1)))
    data = load("rotated-mnist", data_dir=tmp_path)
    assert not data.generated
    assert (len(data.train), len(data.test)) == (20, 10)
    assert (data.train.images(torch.arange(20)).numpy()[:, 0] == np.rint(images * 255)).all()
    assert (data.train.labels.numpy() == labels).all()
    assert data.provenance["files"][NAMES["rotated_mnist"][0]] == tiny.sha256(tiny.amat_bytes(images, labels))


@pytest.mark.parametrize("columns_first", [True, False])
def test_backgrounds_are_set_upright_whichever_way_they_are_stored(tmp_path, columns_first):
    parts = [digits(20), digits(10, 1)]
    stored = [(images.transpose(0, 2, 1) if columns_first else images, labels) for images, labels in parts]
    write(tmp_path, "background_mnist", *(tiny.amat_bytes(*part) for part in stored))
    data = load("background_mnist", data_dir=tmp_path)
    for split, (images, _) in zip((data.train, data.test), parts, strict=True):
        assert (split.images(torch.arange(len(split))).numpy()[:, 0] == np.rint(images * 255)).all()


def test_backgrounds_without_a_one_are_left_as_they_are(tmp_path):
    images, labels = digits(20)
    labels = np.where(labels == 1, 2, labels)
    write(tmp_path, "background_mnist", tiny.amat_bytes(images, labels), tiny.amat_bytes(*digits(10, 1)))
    data = load("background_mnist", data_dir=tmp_path)
    assert (data.train.images(torch.arange(20)).numpy()[:, 0] == np.rint(images * 255)).all()


def test_inside_the_zip(tmp_path):
    train, test = tiny.amat_bytes(*digits(20)), tiny.amat_bytes(*digits(10, 1))
    write(tmp_path / "loose", "rotated_mnist", train, test)
    path = tmp_path / "packed" / "rotated_mnist" / "mnist_rotation_new.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(NAMES["rotated_mnist"][0], train)
        archive.writestr(NAMES["rotated_mnist"][1], test)
    loose, packed = (load("rotated_mnist", data_dir=tmp_path / way) for way in ("loose", "packed"))
    assert loose.fingerprint == packed.fingerprint

    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(ValueError, match=r"mnist_rotation_new\.zip can't be unpacked \(File is not a zip file\)"):
        load("rotated_mnist", data_dir=tmp_path / "packed")
    damaged = bytearray(whole)
    damaged[2000:2040] = bytes(40)
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"mnist_rotation_new\.zip can't be unpacked \(.*\): it is damaged"):
        load("rotated_mnist", data_dir=tmp_path / "packed")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(NAMES["rotated_mnist"][1], test)
    with pytest.raises(ValueError, match=r"mnist_rotation_new\.zip has no mnist_all_.*_train_valid\.amat in it"):
        load("rotated_mnist", data_dir=tmp_path / "packed")


def test_a_zip_with_a_password(tmp_path):
    path = tmp_path / "rotated_mnist" / "mnist_rotation_new.zip"
    path.parent.mkdir()
    path.write_bytes(tiny.with_password(tiny.zip_bytes(dict.fromkeys(NAMES["rotated_mnist"], b"0 1"))))
    message = (
        r"mnist_rotation_new\.zip can't be unpacked \(File 'mnist_all.*_train_valid\.amat' is encrypted, .*\): "
        r"expected a zip file that opens without a password; unpack it by hand"
    )
    with pytest.raises(ValueError, match=message):
        load("rotated_mnist", data_dir=tmp_path)


def _broken(row, column, text, blank=0):
    rows = [line.split() for line in tiny.amat_bytes(*digits(20)).decode().splitlines()]
    rows[row][column] = text
    return ("\n" * blank + "\n".join(" ".join(fields) for fields in rows)).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            lambda: tiny.amat_bytes(*digits(19)),
            r"train_valid\.amat has 19 images, expected 20: it is truncated",
        ),
        (
            lambda: tiny.amat_bytes(*digits(20))[:-3000],
            r"train_valid\.amat has \d+ numbers in line 20, expected 785",
        ),
        (lambda: b"", r"train_valid\.amat is empty"),
        (lambda: _broken(3, 5, "x7"), r"train_valid\.amat has 'x7' in line 4, expected a number"),
        (lambda: _broken(3, 5, "1_0"), r"train_valid\.amat can't be read as numbers in lines 1 to 20"),
        (lambda: _broken(3, 5, "1.5"), r"train_valid\.amat has a pixel outside 0 to 1 in line 4"),
        (lambda: _broken(3, 5, "nan"), r"train_valid\.amat has a pixel outside 0 to 1 in line 4"),
        (
            lambda: _broken(3, -1, "2.5"),
            r"train_valid\.amat has label 2\.5 in line 4, expected a whole number",
        ),
        # Blank lines are left out, but counted.
        (lambda: _broken(3, 5, "x7", blank=2), r"train_valid\.amat has 'x7' in line 6, expected a number"),
        (
            lambda: _broken(3, 5, "7 7", blank=2),
            r"train_valid\.amat has 786 numbers in line 6, expected 785: it is truncated",
        ),
        (lambda: _broken(3, 5, "1_0", blank=2), r"train_valid\.amat can't be read as numbers in lines 3 to 22"),
        (lambda: _broken(3, 5, "1.5", blank=2), r"train_valid\.amat has a pixel outside 0 to 1 in line 6"),
        (lambda: _broken(3, -1, "2.5", blank=2), r"train_valid\.amat has label 2\.5 in line 6, expected a whole"),
        (lambda: _broken(3, -1, "10"), r"train_valid\.amat has label 10 at image 3, expected 0 to 9"),
    ],
)
def test_bad_lines(tmp_path, content, message):
    write(tmp_path, "rotated_mnist", content(), tiny.amat_bytes(*digits(10, 1)))
    with pytest.raises(ValueError, match=message):
        load("rotated_mnist", data_dir=tmp_path)


def test_more_lines_than_any_set_has(tmp_path):
    write(tmp_path, "rotated_mnist", b"\n" * 3000, b"")
    with pytest.raises(ValueError, match=r"train_valid\.amat has more than 2,040 lines, expected 20: it is damaged"):
        load("rotated_mnist", data_dir=tmp_path)


def test_a_line_without_end(tmp_path):
    write(tmp_path, "rotated_mnist", b"0" * 70_000, b"")
    with pytest.raises(ValueError, match=r"train_valid\.amat has a line of over 65,536 bytes: it is damaged"):
        load("rotated_mnist", data_dir=tmp_path)
