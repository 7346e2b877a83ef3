"""From a picture to the network's input."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fastcaps import CapsNetConfig
from fastcaps.data import Augmentation
from fastcaps.runtime.pictures import edge_brightness, inverted, network_input


def test_it_is_what_the_test_view_shows(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    actual = network_input(tmp_path / "a.png", CapsNetConfig.cifar10())
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    assert actual.dtype == np.uint8
    np.testing.assert_array_equal(actual, Augmentation(crop=(24, 24)).middle(images)[0])
    np.testing.assert_allclose(actual / 255, Augmentation(crop=(24, 24)).test_view(images)[0], atol=1e-6)


@pytest.mark.parametrize("size", [(28, 28), (280, 140), (9, 30)])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "LA"])
def test_any_size_and_color(size, mode, tmp_path):
    Image.new(mode, size).save(tmp_path / "a.png")
    assert network_input(tmp_path / "a.png", CapsNetConfig.mnist()).shape == (1, 28, 28)
    assert network_input(tmp_path / "a.png", CapsNetConfig.cifar10()).shape == (3, 24, 24)


def test_content_instead_of_a_file():
    buffer = io.BytesIO()
    Image.new("L", (28, 28), 9).save(buffer, "JPEG")
    assert (network_input(Path("standard input"), CapsNetConfig.mnist(), buffer.getvalue()) == 9).all()
    with pytest.raises(ValueError, match=r"standard input can't be decoded as an image \(no known image format\)"):
        network_input(Path("standard input"), CapsNetConfig.mnist(), b"")


def digit(background, ink):
    image = np.full((1, 28, 28), background, np.uint8)
    image[:, 8:20, 12:16] = ink
    return image


@pytest.mark.parametrize(
    ("image", "background", "expected"),
    [
        (digit(0, 255), 0.0, False),
        (digit(255, 0), 0.0, True),
        (digit(200, 60), 0.02, True),
        (digit(90, 255), 0.02, False),
        (digit(255, 0), 1.0, False),
        (digit(0, 255), 0.9, True),
        (digit(255, 0), 0.5, False),
        (digit(255, 0), None, False),
        (np.repeat(digit(255, 0), 3, 0), 0.0, False),
    ],
)
def test_which_pictures_are_inverted(image, background, expected):
    turned, decision = inverted(image, background)
    assert decision is expected
    np.testing.assert_array_equal(turned, 255 - image if expected else image)
    assert inverted(image, background, "yes")[1]
    np.testing.assert_array_equal(inverted(image, background, "no")[0], image)


def test_the_edge_is_the_outermost_pixels():
    image = np.full((2, 1, 5, 4), 255, np.uint8)
    image[..., 1:-1, 1:-1] = 0
    assert edge_brightness(image) == 1.0
    assert edge_brightness(255 - image) == 0.0
