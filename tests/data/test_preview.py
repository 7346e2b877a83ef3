import numpy as np
import pytest
import torch
from PIL import Image
from tests.training.conftest import make_data

from fastcaps import workflows
from fastcaps.data import DataSet, load
from fastcaps.data.preview import preview

# Where the first image is, and its name below it.
TOP, LEFT, TILE = 39, 8, 96


def flat(labels, names):
    """A set whose images are of one brightness each, by which they are found again in a picture."""
    pixels = torch.arange(1, len(labels) + 1, dtype=torch.uint8)[:, None, None, None] * 20
    images, numbers = pixels.expand(-1, 1, 16, 16), torch.tensor(labels)
    return DataSet.from_arrays(images, numbers, images, numbers, class_names=names)


def test_images_come_class_after_class():
    labels = [2, 2, 0, 1, 0, 1, 2]
    data = flat(labels, ["a", "b", "c"])

    def shown(count):
        pixels = np.asarray(preview(data, count))[..., 0]
        tiles = pixels[TOP :: TILE + 31, LEFT :: TILE + 8][:, : min(3, count)]
        return [int(value) // 20 - 1 for value in tiles.flat if value < 255][:count]

    assert shown(7) == [2, 3, 0, 4, 5, 1, 6]
    assert shown(2) == [2, 3]


def test_a_grid_has_every_image_and_its_name():
    data = load("digits")
    picture = preview(data, 20)
    assert picture.mode == "RGB"
    pixels = np.asarray(picture)
    first = data.train.images(data.train.labels.new_tensor([0]))[0, 0].numpy()  # a zero
    assert (pixels[TOP : TOP + 84 : 3, LEFT : LEFT + 84 : 3, 0] == first).all()
    below = pixels[TOP + 86 : TOP + 104, LEFT : LEFT + 84]
    assert below.min() < 100  # its name, dark on white
    assert preview(data, 1).height < picture.height
    assert not np.array_equal(np.asarray(preview(data, 20, augmented=True)), pixels)


def test_long_names_are_cut_to_their_image():
    def name(*names):
        pixels = np.asarray(preview(flat([0, 1], names), 2))[TOP + TILE : TOP + TILE + 25]
        return pixels[:, LEFT : LEFT + TILE], pixels[:, LEFT + TILE : LEFT + TILE + 8]

    short, gap = name("cat", "dog")
    assert short.min() < 100
    assert gap.min() == 255
    cut, gap = name("a very long name of a class", "dog")
    assert (cut.min(axis=(0, 2)) < 128).sum() > (short.min(axis=(0, 2)) < 128).sum()
    assert gap.min() == 255  # it does not reach the next image
    assert np.array_equal(cut, name("a very long name of another class", "dog")[0])


def test_no_images():
    with pytest.raises(ValueError, match=r"count is 0, expected at least 1"):
        preview(load("digits"), 0)


def test_a_picture_as_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = make_data()
    path = workflows.preview(data, count=4)
    assert path.name == f"{data.name}.png"
    with Image.open(path) as picture:
        assert np.array_equal(np.asarray(picture), np.asarray(preview(data, 4)))
    assert workflows.preview("digits", tmp_path / "some" / "digits.png", count=1).is_file()
    rotated = workflows.preview(data, "rotated.png", count=4, augmented=True, rotation=40.0)
    assert rotated.read_bytes() != workflows.preview(data, "plain.png", count=4, augmented=True).read_bytes()
    with pytest.raises(ValueError, match=r"rotation= and zoom= change augmented images only: give augmented=True"):
        workflows.preview(data, "plain.png", zoom=0.1)
    with pytest.raises(ValueError, match=r"out=digits\.jpg: expected a name that ends in \.png"):
        workflows.preview("digits", "digits.jpg")
    assert not (tmp_path / "digits.jpg").exists()
