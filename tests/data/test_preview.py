import numpy as np
import pytest

from fastcaps.data import load
from fastcaps.data.preview import _fitted, _font, _one_of_each, preview


def test_images_come_class_after_class():
    labels = np.array([2, 2, 0, 1, 0, 1, 2])
    assert labels[_one_of_each(labels, 7)].tolist() == [0, 1, 2, 0, 1, 2, 2]
    assert _one_of_each(labels, 2).tolist() == [2, 3]


def test_a_grid_has_every_image_and_its_name():
    data = load("digits")
    picture = preview(data, 20)
    assert picture.mode == "RGB"
    pixels = np.asarray(picture)
    first = data.train.images(data.train.labels.new_tensor([0]))[0, 0].numpy()  # a zero
    top, left = 39, 8
    assert (pixels[top : top + 84 : 3, left : left + 84 : 3, 0] == first).all()
    below = pixels[top + 86 : top + 104, left : left + 84]
    assert below.min() < 100  # its name, dark on white
    assert preview(data, 1).height < picture.height
    assert not np.array_equal(np.asarray(preview(data, 20, augmented=True)), pixels)


def test_long_names_are_cut_to_their_image():
    font = _font()
    assert _fitted("cat", 90, font) == "cat"
    cut = _fitted("a very long name of a class", 90, font)
    assert cut.endswith("…")
    assert font.getlength(cut) <= 90


def test_no_images():
    with pytest.raises(ValueError, match=r"count is 0, expected at least 1"):
        preview(load("digits"), 0)
