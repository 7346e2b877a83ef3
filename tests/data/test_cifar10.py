import dataclasses

import numpy as np
import pytest
import torch
from tests.data import tiny

from fastcaps.data import load
from fastcaps.data.registry import SETS
from fastcaps.nn.config import CapsNetConfig


@pytest.fixture
def contents(monkeypatch):
    contents = tiny.cifar_contents()
    monkeypatch.setitem(SETS, "cifar10", tiny.with_hashes(SETS["cifar10"], contents, train=20, test=4))
    return contents


def test_records_are_label_red_green_blue(tmp_path, contents):
    tiny.write(tmp_path, SETS["cifar10"], contents)
    data = load("cifar10", data_dir=tmp_path)
    assert (len(data.train), len(data.test), data.image_shape) == (20, 4, (3, 24, 24))
    record = np.frombuffer(contents[1], np.uint8)[:3073]  # the fifth image
    image = data.train.images(torch.tensor([4]))[0]
    assert data.train.labels[4] == record[0]
    assert image[0, 0, 1] == record[2]  # red goes row after row
    assert image[1, 0, 0] == record[1 + 1024]
    assert image[2, 31, 31] == record[3072]
    assert data.config() == CapsNetConfig.cifar10()


def test_the_test_images_need_one_file(tmp_path, contents):
    tiny.write(tmp_path, SETS["cifar10"], contents)
    whole = load("cifar10", data_dir=tmp_path)
    for number in range(1, 6):
        (tmp_path / "cifar10" / f"data_batch_{number}.bin").unlink()
    part = load("cifar10", data_dir=tmp_path, test_only=True)
    assert (len(part.train), len(part.test)) == (0, 4)
    assert part.fingerprint == whole.fingerprint
    assert torch.equal(part.test.images(torch.arange(4)), whole.test.images(torch.arange(4)))


def test_folder_and_tarball_are_the_same_set(tmp_path, contents):
    tiny.write(tmp_path / "loose", SETS["cifar10"], contents)
    names = [file.name for file in tiny.files_of(SETS["cifar10"])]
    inner = tmp_path / "inner" / "cifar10" / "cifar-10-batches-bin"
    packed = tmp_path / "packed" / "cifar10" / "cifar-10-binary.tar.gz"
    inner.mkdir(parents=True)
    packed.parent.mkdir(parents=True)
    for name, content in zip(names, contents, strict=True):
        (inner / name).write_bytes(content)
    packed.write_bytes(tiny.tar_bytes(dict(zip(names, contents, strict=True))))
    sets = [load("cifar10", data_dir=tmp_path / way) for way in ("loose", "inner", "packed")]
    assert len({data.fingerprint for data in sets}) == 1
    every = [data.train.images(torch.arange(20)) for data in sets]
    assert torch.equal(every[0], every[1])
    assert torch.equal(every[0], every[2])


def test_a_damaged_tarball(tmp_path, contents):
    names = [file.name for file in tiny.files_of(SETS["cifar10"])]
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    path.parent.mkdir()
    whole = tiny.tar_bytes(dict(zip(names, contents, strict=True)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz can't be unpacked \(.*\): it is damaged"):
        load("cifar10", data_dir=tmp_path)
    path.write_bytes(tiny.tar_bytes(dict(zip(names[:-1], contents, strict=False))))
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz has no test_batch\.bin in it: download it again"):
        load("cifar10", data_dir=tmp_path)
    path.write_bytes(tiny.tar_bytes(dict(zip(names, [contents[1], *contents[1:]], strict=True))))
    with pytest.raises(
        ValueError, match=rf"data_batch_1\.bin in .*tar\.gz has SHA-256 {tiny.sha256(contents[1])}, expected"
    ):
        load("cifar10", data_dir=tmp_path)


def test_records_cut_short(tmp_path, monkeypatch):
    contents = tiny.cifar_contents()
    contents[2] = contents[2][:-1]
    monkeypatch.setitem(SETS, "cifar10", tiny.with_hashes(SETS["cifar10"], contents))
    tiny.write(tmp_path, SETS["cifar10"], contents)
    with pytest.raises(ValueError, match=r"data_batch_3\.bin has 12291 bytes, expected records of 3073 each"):
        load("cifar10", data_dir=tmp_path)


def test_a_label_outside_the_classes(tmp_path, monkeypatch):
    contents = tiny.cifar_contents()
    contents[5] = b"\x0b" + contents[5][1:]
    monkeypatch.setitem(SETS, "cifar10", tiny.with_hashes(SETS["cifar10"], contents))
    tiny.write(tmp_path, SETS["cifar10"], contents)
    with pytest.raises(ValueError, match=r"test_batch\.bin has label 11 at image 0, expected 0 to 9"):
        load("cifar10", data_dir=tmp_path)


def test_a_member_that_is_too_large(tmp_path, contents, monkeypatch):
    entry = SETS["cifar10"]
    assert entry.files is not None
    small = tuple(dataclasses.replace(file, size=100) for file in tiny.files_of(entry))
    monkeypatch.setitem(
        SETS, "cifar10", dataclasses.replace(entry, files=dataclasses.replace(entry.files, files=small))
    )
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    path.parent.mkdir()
    path.write_bytes(tiny.tar_bytes(dict(zip([file.name for file in small], contents, strict=True))))
    with pytest.raises(ValueError, match=r"tar\.gz has 12,292 bytes in data_batch_1\.bin, expected at most 100: it is"):
        load("cifar10", data_dir=tmp_path)
