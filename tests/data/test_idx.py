import gzip

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.data import tiny

from fastcaps.data import Augmentation, idx, load
from fastcaps.data.registry import SETS


@given(
    st.sampled_from([1, 3]).flatmap(
        lambda d: hnp.arrays(np.uint8, hnp.array_shapes(min_dims=d, max_dims=d, min_side=0, max_side=5))
    ),
    st.booleans(),
)
def test_decoding_gives_back_what_was_written(array, packed):
    content = tiny.idx_bytes(array)
    decoded = idx.decode(gzip.compress(content) if packed else content, "a file", array.ndim)
    assert decoded.shape == array.shape
    assert (decoded == array).all()


def test_a_set_is_read_in_the_order_of_its_files(tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "mnist", tiny.write_idx_set(tmp_path))
    data = load("mnist", data_dir=tmp_path)
    images, labels = tiny.digit_images(60)
    assert (data.train.images(torch.arange(60)).numpy()[:, 0] == images).all()
    assert (data.train.labels.numpy() == labels).all()
    assert len(data.test) == 20
    assert data.provenance["kind"] == "original"
    assert set(data.provenance["files"]) == {file.name for file in tiny.files_of(SETS["mnist"])}


@pytest.mark.parametrize(("name", "expected"), [("mnist", {"shift": 2}), ("fashion_mnist", {"shift": 1, "flip": True})])
def test_digits_are_shifted_and_clothes_mirrored(tmp_path, monkeypatch, name, expected):
    monkeypatch.setitem(SETS, name, tiny.write_idx_set(tmp_path, name))
    assert load(name, data_dir=tmp_path).augmentation == Augmentation(**expected)


def test_the_test_images_alone_are_the_same_set(tmp_path, monkeypatch):
    entry = tiny.write_idx_set(tmp_path)
    monkeypatch.setitem(SETS, "mnist", entry)
    whole = load("mnist", data_dir=tmp_path)
    for file in tiny.files_of(entry)[:2]:
        (tmp_path / "mnist" / file.name).unlink()
    part = load("mnist", data_dir=tmp_path, test_only=True)
    assert (len(part.train), len(part.test)) == (0, 20)
    assert (part.fingerprint, part.call) == (whole.fingerprint, whole.call)
    assert torch.equal(part.test.images(torch.arange(20)), whole.test.images(torch.arange(20)))


def test_the_test_images_of_mnist_are_embedded():
    data = load("mnist", test_only=True)
    assert (len(data.train), len(data.test)) == (0, 10_000)
    assert data.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_unpacked_files_are_the_same_set(tmp_path, monkeypatch):
    entry = tiny.write_idx_set(tmp_path)
    monkeypatch.setitem(SETS, "mnist", entry)
    packed = load("mnist", data_dir=tmp_path)
    for file in tiny.files_of(entry):
        path = tmp_path / "mnist" / file.name
        (tmp_path / "mnist" / file.unpacked).write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    unpacked = load("mnist", data_dir=tmp_path)
    assert unpacked.fingerprint == packed.fingerprint
    assert (unpacked.test.images(torch.arange(20)) == packed.test.images(torch.arange(20))).all()


def test_truncated_gzip():
    packed = gzip.compress(tiny.idx_bytes(np.arange(200, dtype=np.uint8)))
    with pytest.raises(ValueError, match=r"^x/labels\.gz can't be unpacked \(.*end-of-stream.*\): it is truncated or"):
        idx.decode(packed[:-20], "x/labels.gz", 1)


def test_wrong_magic_number():
    content = tiny.idx_bytes(np.zeros(3, np.uint8))
    with pytest.raises(
        ValueError,
        match=r"^labels begins with the magic number 0x00000801, expected 0x00000803: .* of images",
    ):
        idx.decode(content, "labels", 3)
    with pytest.raises(ValueError, match=r"magic number 0x, expected 0x00000801: it is not an idx file of labels"):
        idx.decode(b"", "labels", 1)


def test_truncated_content():
    content = tiny.idx_bytes(np.zeros((2, 3, 4), np.uint8))
    with pytest.raises(ValueError, match=r"^images holds 23 bytes, expected 24 for 2×3×4: it is truncated"):
        idx.decode(content[:-1], "images", 3)
    with pytest.raises(ValueError, match=r"^images is truncated: 10 bytes, expected a header of 16"):
        idx.decode(content[:10], "images", 3)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            (5, 28, 28),
            [0, 1, 2, 3],
            r"train-images.*\.gz has 5 images, .*train-labels.*\.gz has 4 labels: they don't",
        ),
        ((3, 28, 28), [0, 10, 2], r"train-labels.*\.gz has label 10 at image 1, expected 0 to 9"),
        ((3, 27, 28), [0, 1, 2], r"train-images.*\.gz has images of 27×28, expected 28×28 for mnist"),
    ],
)
def test_files_that_do_not_belong_together(tmp_path, images, labels, message):
    contents = [
        tiny.idx_bytes(np.zeros(images, np.uint8)),
        tiny.idx_bytes(np.array(labels, np.uint8)),
        *[gzip.decompress(content) for content in tiny.idx_contents()[2:]],
    ]
    contents = [gzip.compress(content) for content in contents]
    entry = tiny.with_hashes(SETS["mnist"], contents)
    tiny.write(tmp_path, entry, contents)
    file = tiny.located(entry.files, tmp_path)
    with pytest.raises(ValueError, match=message):
        idx.load(entry, file)
