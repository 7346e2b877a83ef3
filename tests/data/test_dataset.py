import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data import tiny

from fastcaps.data import SETS, Split, load
from fastcaps.data.dataset import stratified
from fastcaps.nn.config import CapsNetConfig


@given(st.lists(st.integers(0, 6), min_size=2, max_size=60), st.data(), st.integers(0, 5))
def test_each_class_gives_its_share(labels, data, seed):
    labels = np.array(labels)
    count = data.draw(st.integers(1, len(labels) - 1))
    rest, held = stratified(labels, count, seed)
    assert len(held) == count
    assert sorted([*rest, *held]) == list(range(len(labels)))
    assert (np.diff(held) > 0).all()
    assert (np.diff(rest) > 0).all()
    classes, sizes = np.unique(labels, return_counts=True)
    share = sizes * count / len(labels)
    given_up = np.array([(labels[held] == label).sum() for label in classes])
    if (sizes > 1).all() and len(classes) <= count <= len(labels) - len(classes):
        assert (given_up >= 1).all()
        assert (given_up < sizes).all()
    else:
        return
    if (np.floor(share) >= 1).all() and (np.ceil(share) < sizes).all():
        assert (np.abs(given_up - share) < 1).all()
    again = stratified(labels, count, seed)
    assert (again[0] == rest).all()
    assert (again[1] == held).all()


def test_a_subset_of_a_subset():
    images = torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(10, 1, 2, 2)
    split = Split(torch.arange(10), images.__getitem__).subset(torch.tensor([9, 7, 5, 3])).subset(torch.tensor([2, 0]))
    assert len(split) == 2
    assert split.labels.tolist() == [5, 9]
    assert split.images(torch.tensor([1, 0, 1]))[:, 0, 0, 0].tolist() == [9, 5, 9]


@pytest.fixture
def digits():
    return load("digits")


def test_digits_need_no_file(digits):
    from sklearn.datasets import load_digits

    assert (len(digits.train), len(digits.test), digits.image_shape) == (1437, 360, (1, 28, 28))
    original = load_digits()
    train = digits.train.images(torch.arange(1437))
    assert train.dtype == torch.uint8
    # As in MNIST, four black pixels around 20×20.
    assert train.sum() == train[:, :, 4:24, 4:24].sum()
    whole = torch.bincount(torch.from_numpy(original.target))
    assert torch.equal(torch.bincount(digits.train.labels) + torch.bincount(digits.test.labels), whole)
    assert (torch.bincount(digits.test.labels) - whole * 360 / 1797).abs().max() < 1
    # Upright: brought back to 8×8 they are the originals, up to blur.
    test = digits.test.images(torch.arange(360)).float()[:, :, 4:24, 4:24]
    small = torch.nn.functional.interpolate(test, (8, 8), mode="area")[:, 0].flatten(1)
    candidates = torch.from_numpy(original.images).float().flatten(1)
    nearest = torch.cdist(small / 255 * 16, candidates).argmin(1)
    assert (torch.from_numpy(original.target)[nearest] == digits.test.labels).all()
    assert digits.provenance["kind"] == "original"
    assert digits.config() == CapsNetConfig.mnist()
    assert load("digits").fingerprint == digits.fingerprint


def test_holding_out_a_validation_part(digits):
    train, held = digits.validation_split(0.1, seed=1)
    assert (len(train), len(held)) == (1293, 144)
    shares = torch.bincount(digits.train.labels) * 144 / 1437
    assert (torch.bincount(held.labels) - shares).abs().max() < 1
    _, again = digits.validation_split(144, seed=1)
    _, other = digits.validation_split(144, seed=2)
    images = held.images(torch.arange(144))
    assert torch.equal(again.images(torch.arange(144)), images)
    assert not torch.equal(other.images(torch.arange(144)), images)


@pytest.mark.parametrize("held_out", [0, 1437, 0.0, 1.0, -0.5, True])
def test_what_cannot_be_held_out(digits, held_out):
    message = rf"^held_out is {held_out}, expected a fraction .* from 1 to 1436 for 1437 training images$"
    with pytest.raises(ValueError, match=message):
        digits.validation_split(held_out)


def test_sets_and_splits_show_themselves(digits):
    assert repr(digits) == "DataSet('digits', 1,437 training and 360 test images of 1×28×28, 10 classes, original)"
    assert repr(digits.test) == "Split(360 images, in memory)"


def test_a_set_cannot_be_changed(digits):
    with pytest.raises(dataclasses.FrozenInstanceError):
        digits.name = "other"


def test_unknown_names():
    known = "mnist, fashion_mnist, cifar10, rotated_mnist, background_mnist, digits"
    message = rf"^there is no data set 'minst', and no folder.* \(did you mean mnist\?\): expected one of {known}, or"
    with pytest.raises(ValueError, match=message):
        load("minst")


def test_a_name_goes_before_a_folder(tmp_path, monkeypatch):
    for name in ("a", "b"):
        for k in range(2):
            tiny.save_image(tmp_path / "digits" / name / f"{k}.png")
    monkeypatch.chdir(tmp_path)
    assert load("digits").class_names == SETS["digits"].class_names
    assert load("./digits").class_names == ("a", "b")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits", {"size": 20}, r"size=20 has no meaning for digits: leave it out"),
        ("digits", {"channels": 3}, r"channels=3 has no meaning for digits"),
        ("digits", {"channels": 0}, r"channels=0 has no meaning for digits"),
        ("digits", {"test_fraction": 7.0}, r"test_fraction=7\.0 has no meaning for digits: leave"),
        ("digits", {"photographs": "x"}, r"photographs='x' has no meaning for digits"),
        ("digits", {"seed": -1}, r"seed is -1, expected at least 0"),
        ("digits", {"rotation": 200}, r"rotation is 200, expected 0 to 180 degrees"),
        ("digits", {"zoom": 1.5}, r"zoom is 1\.5, expected a relative change of 0 to 0\.9"),
    ],
)
def test_options_without_meaning(name, options, message):
    with pytest.raises(ValueError, match=message):
        load(name, **options)


def test_a_set_knows_how_it_is_loaded_again(tmp_path, monkeypatch):
    import json

    from PIL import Image

    from fastcaps.data import load

    for name in ("a", "b"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for k in range(5):
            Image.new("L", (20, 20), 10 * k).save(tmp_path / "own" / name / f"{k}.png")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "divided").mkdir()
    for part in ("train", "test"):
        (tmp_path / "divided" / part).symlink_to(tmp_path / "own", target_is_directory=True)
    for data in (
        load("digits"),
        load("digits", rotation=10.0),
        load("own", seed=3, size=(24, 22), rotation=5.0, zoom=0.1),
        load("own", test_fraction=0.4, channels=3),
        load("divided", size=10),
    ):
        monkeypatch.chdir("/")
        call = json.loads(json.dumps(data.call))
        assert load(**call).fingerprint == data.fingerprint
        assert load(**call).augmentation == data.augmentation
        monkeypatch.chdir(tmp_path)


def test_uncovered_corners_have_the_color_of_the_background(digits):
    rotated = digits.augmented(rotation=10.0)
    assert (rotated.augmentation.rotation, rotated.augmentation.zoom, rotated.augmentation.fill) == (10.0, 0.0, "zero")
    bright = dataclasses.replace(digits, background=None).augmented(zoom=0.2)
    assert (bright.augmentation.zoom, bright.augmentation.fill) == (0.2, "edge")
    assert digits.augmented() is digits
    assert digits.augmented(rotation=0.0).augmentation == digits.augmentation


def test_what_the_named_sets_declare():
    from fastcaps.data.loading import load_named

    assert {name: entry.background for name, entry in SETS.items()} == {
        "mnist": 0.0,
        "fashion_mnist": 0.0,
        "cifar10": None,
        "rotated_mnist": 0.0,
        "background_mnist": None,
        "digits": 0.0,
    }
    renamed = dataclasses.replace(SETS["digits"], name="numbers", background=0.5, augmentation={"shift": 3})
    data = load_named(renamed)
    assert (data.background, data.augmentation.shift, load("digits").background) == (0.5, 3, 0.0)


def test_the_network_of_a_set_does_not_go_by_its_name(digits):
    cifar10 = dataclasses.replace(
        digits,
        image_shape=(3, 24, 24),
        class_names=SETS["cifar10"].class_names,
        network=SETS["cifar10"].network,
    )
    assert cifar10.config() == CapsNetConfig.cifar10()
    assert cifar10.config(stem="strided", iterations=2) == CapsNetConfig.cifar10(iterations=2)
    named = dataclasses.replace(digits, name="cifar10")
    assert named.config() == CapsNetConfig.mnist()
