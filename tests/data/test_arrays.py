"""Data sets of arrays, tensors and torch datasets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fastcaps.data import Augmentation, DataSet, batches
from fastcaps.nn import CapsNet
from fastcaps.nn.config import CapsNetConfig
from fastcaps.training import Run, Trainer, TrainSettings

RANDOM = np.random.default_rng(0)
IMAGES, LABELS = RANDOM.integers(0, 256, (12, 1, 10, 8), np.uint8), np.arange(12) % 3
TESTS, TEST_LABELS = RANDOM.integers(0, 256, (6, 1, 10, 8), np.uint8), np.arange(6) % 3


def from_arrays(images=IMAGES, labels=LABELS, tests=TESTS, test_labels=TEST_LABELS, **options):
    return DataSet.from_arrays(images, labels, tests, test_labels, **options)


def everything(split):
    return split.images(torch.arange(len(split))).numpy()


@given(
    arrays.arrays(
        np.uint8, st.tuples(st.integers(2, 5), st.sampled_from([1, 3]), st.integers(1, 7), st.integers(1, 7))
    ),
    st.sampled_from([np.uint8, np.float16, np.float32, np.float64, torch.uint8, torch.bfloat16, torch.float32]),
    st.booleans(),
)
def test_all_types_and_shapes_give_the_same_bytes(pixels, dtype, flat):
    images = pixels[:, 0] if flat and pixels.shape[1] == 1 else pixels
    if isinstance(dtype, torch.dtype):
        tensor = torch.from_numpy(images.copy())
        converted = tensor if dtype == torch.uint8 else (tensor.double() / 255).to(dtype)
    else:
        converted = images if dtype == np.uint8 else (images / 255).astype(dtype)
    labels = [k % 2 for k in range(len(images))]
    data = DataSet.from_arrays(converted, labels, converted, labels)
    expected = pixels
    if dtype == torch.bfloat16:  # has 8 bits of precision, so its values are other ones
        expected = (converted.double() * 255).round().byte().numpy().reshape(pixels.shape)
    assert everything(data.train).dtype == np.uint8
    np.testing.assert_array_equal(everything(data.train), expected)
    assert data.image_shape == pixels.shape[1:]
    assert (data.background is None) == (pixels.shape[1] == 3)
    reference = DataSet.from_arrays(expected, labels, expected, labels)
    assert data.fingerprint == reference.fingerprint


@given(arrays.arrays(np.float64, (2, 3, 4), elements=st.floats(0, 1)))
def test_floats_are_rounded_to_the_nearest_byte(images):
    data = DataSet.from_arrays(images, [0, 1], images, [0, 1])
    assert np.abs(everything(data.train)[:, 0] / 255 - images).max() <= 0.5 / 255 + 1e-12


def test_halves_become_the_even_byte():
    images = np.full((2, 1, 2, 2), 2.5 / 255)
    assert (everything(from_arrays(images, [0, 1], images, [0, 1]).train) == 2).all()


def test_a_data_set_of_arrays():
    data = from_arrays(class_names=["a", "b", "c"], name="mine")
    assert (data.name, data.class_names, data.image_shape, data.call) == ("mine", ("a", "b", "c"), (1, 10, 8), None)
    assert data.provenance["kind"] == "arrays"
    assert not data.generated
    assert data.augmentation == Augmentation(shift=1, fill="edge")
    assert from_arrays().class_names == ("0", "1", "2")
    config = data.config(stem_kernel=3, primary_kernel=3)
    assert (config.channels, config.height, config.width, config.class_names) == (1, 10, 8, ("a", "b", "c"))
    assert json.loads(json.dumps(data.provenance)) == data.provenance
    batch, labels = next(batches(data.train, 4, view=data.augmentation.test_view))
    np.testing.assert_array_equal((batch * 255).round().numpy(), IMAGES[:4])
    assert labels.tolist() == [0, 1, 2, 0]


def test_the_fingerprint_follows_images_labels_and_parts():
    first = from_arrays().fingerprint
    assert from_arrays(IMAGES.copy(), class_names="xyz", name="other", augmentation=Augmentation()).fingerprint == first
    changed = IMAGES.copy()
    changed[11, 0, 9, 7] ^= 1
    prints = {
        first,
        from_arrays(changed).fingerprint,
        from_arrays(labels=LABELS[::-1]).fingerprint,
        from_arrays(TESTS, TEST_LABELS, IMAGES, LABELS).fingerprint,
        from_arrays(IMAGES.reshape(12, 1, 8, 10), tests=TESTS.reshape(6, 1, 8, 10)).fingerprint,
        from_arrays(test_labels=TEST_LABELS[::-1]).fingerprint,
    }
    assert len(prints) == 6


def test_the_edge_is_measured_unless_declared():
    black, white = np.zeros((4, 9, 9), np.uint8), np.full((4, 9, 9), 255, np.uint8)
    black[:, 3:6, 3:6] = 200
    labels = [0, 1, 0, 1]
    dark = from_arrays(black, labels, black, labels)
    assert (dark.background, dark.augmentation.fill) == (0.0, "zero")
    light = from_arrays(white, labels, white, labels)
    assert (light.background, light.augmentation.fill) == (1.0, "edge")
    assert from_arrays(white, labels, white, labels, background=0.25).background == 0.25
    # What the network sees decides.
    framed = np.pad(white, ((0, 0), (2, 2), (2, 2)))
    cropped = from_arrays(framed, labels, framed, labels, augmentation=Augmentation(crop=(9, 9)))
    assert (cropped.background, cropped.image_shape) == (1.0, (1, 9, 9))
    # Pictures are resized to the size of the images before the crop.
    assert cropped.config(stem_kernel=3, primary_kernel=3).resize == (13, 13)


def test_arrays_on_disk(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    data = from_arrays(mapped)
    assert data.fingerprint == from_arrays().fingerprint
    data.train.images(torch.tensor([1, 0])).zero_()
    np.testing.assert_array_equal(everything(data.train), IMAGES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": IMAGES.astype(int)}, r"images has dtype int64, expected uint8, or floats between 0 and 1: convert"),
        ({"images": IMAGES.tolist()}, r"images is a list, expected a NumPy array or a tensor"),
        ({"images": IMAGES[0, 0]}, r"images has shape \(10, 8\), expected \(n, channels, height, width\) or \(n, hei"),
        ({"images": np.zeros((12, 10, 8, 3))}, r"shape \(12, 10, 8, 3\), expected .*: move the channels to the front"),
        ({"images": np.zeros((12, 2, 8, 8))}, r"shape \(12, 2, 8, 8\), expected .* 1 channel \(gray\) or 3 \(color\)$"),
        ({"images": np.zeros((12, 1, 0, 8))}, r"images has shape \(12, 1, 0, 8\), expected"),
        ({"tests": TESTS.astype(float)}, r"^test_images has the value \d+ in image 0, expected floats between 0 and 1"),
        ({"tests": np.where(TESTS > 0, np.nan, 0.5)}, r"^test_images has the value nan in image 0, expected floats"),
        ({"images": np.where(IMAGES > 0, -0.1, -0.1)}, r"^images has the value -0\.1 in image 0, .*standardize=True"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, r"^images is empty, expected at least one image"),
        ({"labels": LABELS[:5]}, r"^images has 12 images, labels has 5 labels"),
        ({"labels": np.eye(12)}, r"^labels has shape \(12, 12\), expected \(n\): give labels\.argmax\(1\) for one-hot"),
        ({"labels": LABELS / 1}, r"^labels has dtype float64, expected integers"),
        ({"labels": LABELS + 1}, r"^no training image has label 0, expected labels from 0 to 3 without gaps: renumber"),
        ({"labels": LABELS * 0}, r"^there is 1 class, expected at least 2"),
        (
            {"labels": LABELS - 1, "class_names": "abc"},
            r"^training image 0 has label -1, expected 0 to 2 for 3 classes",
        ),
        ({"test_labels": TEST_LABELS + 2}, r"^test image 1 has label 3, expected 0 to 2 for 3 classes"),
        (
            {"tests": TESTS[..., :7]},
            r"^training images have shape \(1, 10, 8\), test images \(1, 10, 7\), expected the",
        ),
        ({"background": 1.5}, r"^background is 1\.5, expected a brightness between 0 and 1"),
    ],
)
def test_arrays_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(**changes)


class Pairs(Dataset[Any]):
    """A map-style dataset of given items."""

    def __init__(self, items, classes=None):
        self.items = items
        self.read = 0
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.read += 1
        return self.items[index]


def pairs(convert, images=IMAGES, labels=LABELS):
    return Pairs([(convert(image), label) for image, label in zip(images, labels.tolist(), strict=True)])


@pytest.mark.parametrize(
    "convert",
    [
        lambda image: image,
        lambda image: image[0],
        torch.from_numpy,
        lambda image: torch.from_numpy(image).float() / 255,
        lambda image: Image.fromarray(image[0]),
    ],
    ids=["array", "flat", "bytes", "floats", "pillow"],
)
def test_a_torch_dataset_is_what_its_arrays_are(convert, capsys):
    train, test = pairs(convert), pairs(convert, TESTS, TEST_LABELS)
    data, reference = DataSet.from_torch(train, test), from_arrays()
    assert "reading 18/18" in capsys.readouterr().err
    assert data.provenance == reference.provenance | {"kind": "torch"}
    assert (data.call, data.train.streams, data.background) == (None, True, reference.background)
    for view, seed in ((data.augmentation, 3), (data.augmentation.test_view, None)):
        for (images, labels), (expected, expected_labels) in zip(
            batches(data.train, 5, view=view, shuffle_seed=seed),
            batches(reference.train, 5, view=view, shuffle_seed=seed),
            strict=True,
        ):
            assert torch.equal(images, expected)
            assert torch.equal(labels, expected_labels)
    assert data.train.images(torch.arange(0)).shape == (0, 1, 10, 8)
    before = train.read
    data.train.images(torch.tensor([3, 4]))
    assert train.read == before + 2


def test_color_pictures_and_class_names():
    pictures = [Image.new("RGB", (6, 5), (10 * k, 0, 255)) for k in range(4)]
    items = Pairs(list(zip(pictures, [0, 1, 0, 1], strict=True)), classes=["cat", "dog"])
    data = DataSet.from_torch(items, items)
    assert (data.class_names, data.image_shape, data.background) == (("cat", "dog"), (3, 5, 6), None)
    assert everything(data.train)[2, :, 0, 0].tolist() == [20, 0, 255]
    assert DataSet.from_torch(items, items, class_names=["a", "b"]).class_names == ("a", "b")
    tensors = TensorDataset(torch.rand(4, 3, 5, 6), torch.tensor([0, 1, 1, 0]))
    assert DataSet.from_torch(tensors, tensors).class_names == ("0", "1")


class Endless(IterableDataset[Any]):
    def __iter__(self):
        return iter(())


class Flipping(Pairs):
    def __getitem__(self, index):
        image, label = self.items[index]
        self.read += 1
        return np.roll(image, self.read), label


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Endless(), r"^train_dataset is a Endless, expected a map-style dataset with a length and \(image, label\)"),
        (Pairs([]), r"^train_dataset is empty, expected at least one image"),
        (Pairs([IMAGES[0]]), r"^train_dataset: item 0 is a ndarray, expected a pair \(image, label\)"),
        (Pairs([("a.png", 0)]), r"^train_dataset: image 0 is a str, expected a NumPy array or a tensor"),
        (Pairs([(IMAGES[0], "cat")]), r"^train_dataset: the label of image 0 is 'cat', expected an integer from 0"),
        (
            Pairs([(np.zeros((9, 9, 3)), 0)]),
            r"image 0 has shape \(9, 9, 3\), expected \(channels, .*channels to the fr",
        ),
        (
            Pairs([(np.zeros(9), 0)]),
            r"image 0 has shape \(9,\), expected \(channels, height, width\) or \(height, width",
        ),
        (Pairs([(np.full((9, 9), -1.0), 0)]), r"^train_dataset: image 0 has the value -1, expected floats between 0"),
        (Pairs([(Image.new("F", (9, 9)), 0)]), r"^train_dataset: image 0: it has 32-bit pixels \(mode F\), expected 8"),
        (
            Pairs([(IMAGES[0], 0), (IMAGES[1, :, 1:], 1)]),
            r"^train_dataset: image 1 has shape \(1, 9, 8\), image 0 has \(1, 10, 8\), expected one shape for all: add",
        ),
        (Flipping([(IMAGES[0], 0)]), r"^train_dataset: image 0 is different when it is read again: leave out random"),
    ],
)
def test_datasets_that_do_not_fit(dataset, message):
    with pytest.raises(ValueError, match=message):
        DataSet.from_torch(dataset, pairs(torch.from_numpy))


def test_a_run_is_resumed_with_the_data_given_again(tmp_path):
    config = CapsNetConfig.for_images(
        10, 8, 1, classes=3, stem_channels=4, stem_kernel=3, capsule_types=2, primary_kernel=3, decoder=(4,)
    )
    settings = TrainSettings(epochs=1, batch_size=4)

    def train(data, folder, resume=False):
        torch.manual_seed(0)
        Trainer(CapsNet(config), data, settings, folder).fit(resume=resume)

    train(from_arrays(), tmp_path / "run")
    assert Run.open(tmp_path / "run").background == from_arrays().background
    train(from_arrays(IMAGES.copy()), tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="data"):
        train(from_arrays(255 - IMAGES), tmp_path / "run", resume=True)


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    section = page.split("## Arrays, tensors, torch datasets")[1]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(section.split("```python")[1].split("```")[0], names)
    assert names["data"].class_names == ("this", "that")
    assert (tmp_path / "runs" / "arrays" / "model").is_dir()
