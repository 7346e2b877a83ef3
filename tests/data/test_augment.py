import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastcaps.data import Augmentation


def random_images(b, c, h, w):
    return torch.randint(0, 256, (b, c, h, w), dtype=torch.uint8)


def resampled(settings, image, chance):
    """Rotated and zoomed about the middle, pixel by pixel."""
    angle = math.radians(settings.rotation * (2 * chance[5] - 1))
    zoom_y, zoom_x = (1 + settings.zoom * (2 * chance[k] - 1) for k in (6, 7))
    c, h, w = image.shape

    def pixel(channel, row, column):
        if settings.fill == "edge":
            return image[channel, min(max(row, 0), h - 1), min(max(column, 0), w - 1)]
        return image[channel, row, column] if 0 <= row < h and 0 <= column < w else 0.0

    result = np.zeros_like(image)
    for channel, row, column in np.ndindex(c, h, w):
        down, across = row - (h - 1) / 2, column - (w - 1) / 2
        y = (math.sin(angle) * across + math.cos(angle) * down) / zoom_y + (h - 1) / 2
        x = (math.cos(angle) * across - math.sin(angle) * down) / zoom_x + (w - 1) / 2
        top, left = math.floor(y), math.floor(x)
        for near_row, near_column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
            share = (1 - abs(y - near_row)) * (1 - abs(x - near_column))
            result[channel, row, column] += share * pixel(channel, near_row, near_column)
    return result


def reference(settings, images, chances):
    """The same, image by image and pixel by pixel."""
    results = []
    for image, chance in zip(images.double().numpy() / 255, chances.numpy(), strict=True):
        if settings.rotation or settings.zoom:
            image = resampled(settings, image, chance)
        s = settings.shift
        margins = ((0, 0), (s, s), (s, s))
        padded = np.pad(image, margins, "edge") if settings.fill == "edge" else np.pad(image, margins)
        h, w = settings.crop or image.shape[1:]
        down = int(chance[0] * (padded.shape[1] - h + 1))
        across = int(chance[1] * (padded.shape[2] - w + 1))
        view = padded[:, down : down + h, across : across + w]
        if settings.flip and chance[2] < 0.5:
            view = view[:, :, ::-1]
        if settings.brightness:
            view = view + (2 * chance[3] - 1) * settings.brightness
        if settings.contrast:
            mean = view.mean((1, 2), keepdims=True)
            view = mean + (view - mean) * (1 + (2 * chance[4] - 1) * settings.contrast)
        results.append(view.clip(0, 1))
    return np.stack(results)


@given(
    b=st.integers(1, 5),
    c=st.sampled_from([1, 3]),
    h=st.integers(3, 9),
    w=st.integers(3, 9),
    shift=st.integers(0, 3),
    fill=st.sampled_from(["zero", "edge"]),
    crop=st.none() | st.tuples(st.integers(1, 3), st.integers(1, 3)),
    flip=st.booleans(),
    brightness=st.sampled_from([0.0, 0.3]),
    contrast=st.sampled_from([0.0, 0.8]),
    rotation=st.sampled_from([0.0, 15.0, 180.0]),
    zoom=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 99),
)
def test_agrees_with_the_loop(b, c, h, w, seed, **values):
    settings = Augmentation(**values)
    torch.manual_seed(seed)
    images = random_images(b, c, h, w)
    chances = torch.rand(b, 8 if settings.resamples else 5, dtype=torch.float64)
    result = settings.apply(images, chances)
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    # A few roundings of float32 numbers of about one; places of a resampled pixel are rounded, too.
    tolerance = 2e-5 if settings.resamples else 1e-6
    expected = torch.from_numpy(reference(settings, images, chances))
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=0)
    torch.testing.assert_close(settings.apply(images.float() / 255, chances), result, atol=1e-6, rtol=0)


def test_resampling_leaves_the_other_random_changes_as_they_are():
    plain = Augmentation(shift=2, flip=True)
    rotating = dataclasses.replace(plain, rotation=10.0, zoom=0.1)

    def chances(settings):
        generator = np.random.default_rng(0)
        return np.hstack([generator.random(shape) for shape in settings.chance_shapes(6)])

    assert chances(plain).shape == (6, 5)
    assert chances(rotating).shape == (6, 8)
    assert np.array_equal(chances(rotating)[:, :5], chances(plain))


def test_a_quarter_turn_and_a_zoom_of_nothing():
    settings = Augmentation(rotation=90.0)
    images = random_images(2, 3, 7, 7)
    largest = torch.tensor([[0.0] * 5 + [1.0, 0.3, 0.8]] * 2, dtype=torch.float64)
    turned = settings.apply(images, largest)
    assert (turned - (images.float() / 255).rot90(1, (2, 3))).abs().max() < 1e-5
    still = dataclasses.replace(settings, zoom=0.2).apply(images, torch.full((2, 8), 0.5, dtype=torch.float64))
    torch.testing.assert_close(still, images.float() / 255, atol=1e-5, rtol=0)


def test_a_generator_repeats_it():
    settings = Augmentation(shift=2, flip=True, brightness=0.1, contrast=0.1)
    images = random_images(64, 1, 28, 28)
    first, second = (settings.augment(images, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, settings.augment(images, torch.Generator().manual_seed(6)))


def test_every_shift_occurs_and_nothing_comes_in_at_the_other_side():
    images = torch.zeros(2000, 1, 28, 28, dtype=torch.uint8)
    images[:, :, 0, 0] = 255  # a corner: any shift up or left takes it out
    moved = Augmentation(shift=2).augment(images, torch.Generator().manual_seed(0))
    places = {tuple(place) for place in moved[:, 0].nonzero()[:, 1:].tolist()}
    assert places == {(y, x) for y in range(3) for x in range(3)}
    inside = moved.flatten(1).sum(1)
    assert set(inside.tolist()) == {0.0, 1.0}
    # 9 of 25 shifts keep it; four standard deviations of a share of 2000.
    assert abs(float(inside.mean()) - 9 / 25) < 4 * (0.36 * 0.64 / 2000) ** 0.5


def test_the_test_view_is_the_middle():
    settings = Augmentation(crop=(24, 24), flip=True, brightness=0.5, contrast=0.5, shift=1)
    images = random_images(3, 3, 32, 32)
    view = settings.test_view(images)
    assert view.dtype == torch.float32
    assert torch.equal(view, images[:, :, 4:28, 4:28].float() / 255)
    assert torch.equal(Augmentation(shift=2).test_view(images), images.float() / 255)


def test_goes_through_json():
    settings = Augmentation(crop=(24, 24), flip=True, rotation=10.0, zoom=0.1)
    again = Augmentation.from_dict(json.loads(json.dumps(settings.to_dict())))
    assert again == settings
    assert dataclasses.replace(again, flip=False) != settings


@pytest.mark.parametrize("fill", ["zero", "edge"])
def test_images_may_be_on_another_device(fill):
    # The meta device has no pixels, but mixes with the processor's tensors as little as any other.
    settings = Augmentation(
        shift=2, fill=fill, crop=(24, 20), flip=True, brightness=0.1, contrast=0.1, rotation=10.0, zoom=0.1
    )
    images = random_images(3, 1, 28, 28).to("meta")
    for view in (settings.augment(images), settings.apply(images, torch.rand(3, 8, dtype=torch.float64))):
        assert view.device == images.device
        assert (view.shape, view.dtype) == ((3, 1, 24, 20), torch.float32)


def test_an_empty_batch_stays_empty():
    settings = Augmentation(shift=2, flip=True, contrast=0.1, fill="edge", rotation=10.0)
    empty = torch.zeros(0, 1, 28, 28, dtype=torch.uint8)
    assert settings.augment(empty).shape == (0, 1, 28, 28)
    assert Augmentation(crop=(24, 24)).test_view(empty).shape == (0, 1, 24, 24)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shift": -1}, r"shift is -1, expected a whole number of pixels, at least 0"),
        ({"shift": 1.5}, r"shift is 1\.5, expected a whole number of pixels, at least 0"),
        ({"fill": "wrap"}, r"fill is 'wrap', expected zero or edge"),
        ({"crop": (24,)}, r"crop is \(24,\), expected height and width of at least 1"),
        ({"crop": (0, 24)}, r"crop is \(0, 24\), expected height and width of at least 1"),
        ({"brightness": -0.5}, r"brightness is -0\.5, expected 0 to 1"),
        ({"contrast": 2}, r"contrast is 2, expected 0 to 1"),
        ({"rotation": -1}, r"rotation is -1, expected 0 to 180 degrees"),
        ({"rotation": math.nan}, r"rotation is nan, expected 0 to 180 degrees"),
        ({"rotation": "10"}, r"rotation is '10', expected 0 to 180 degrees"),
        ({"zoom": 1}, r"zoom is 1, expected a relative change of 0 to 0\.9"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**settings)


def test_unknown_settings():
    with pytest.raises(ValueError, match=r"the Augmentation has unknown entries: hue, tilt"):
        Augmentation.from_dict({"tilt": 1, "hue": 2})


def test_numbers_that_do_not_fit():
    images, numbers = torch.zeros(3, 1, 8, 8), torch.zeros(3, 5, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"chances have shape \(3, 5\), expected \(3, 8\)"):
        Augmentation(rotation=10).apply(images, numbers)
    with pytest.raises(ValueError, match=r"chances have shape \(3, 5\), expected \(2, 5\)"):
        Augmentation().apply(images[:2], numbers)


def test_images_that_do_not_fit():
    with pytest.raises(ValueError, match=r"images have shape \(28, 28\), expected \(batch, channels, height, width\)"):
        Augmentation().test_view(torch.zeros(28, 28))
    with pytest.raises(ValueError, match=r"a crop of 24×24 doesn't fit into images of 28×20: make it"):
        Augmentation(crop=(24, 24)).augment(torch.zeros(1, 1, 28, 20))
