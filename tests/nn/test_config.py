"""The configuration: the paper's shapes, any other, and what can't work."""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fastcaps import CapsNetConfig


def test_the_papers_mnist_shape():
    config = CapsNetConfig.mnist()
    assert (config.height, config.width, config.channels, config.classes) == (28, 28, 1, 10)
    assert config.stem_size == (20, 20)
    assert config.grid == (6, 6)
    assert (config.lower_capsules, config.lower_dimension, config.class_dimension) == (1152, 8, 16)
    assert config.capsule_types * config.lower_dimension == config.stem_channels == 256
    assert config.decoder == (512, 1024)
    assert config.class_names == tuple("0123456789")


def test_the_papers_cifar10_shape():
    config = CapsNetConfig.cifar10()
    assert (config.height, config.width, config.channels) == (24, 24, 3)
    assert config.stem_size == (16, 16)
    assert config.grid == (4, 4)
    assert (config.lower_capsules, config.lower_dimension) == (1024, 4)
    assert config.capsule_types * config.lower_dimension == 256
    assert config.standardize
    assert config.resize == (32, 32)
    assert config.class_names[9] == "truck"


def test_it_goes_through_json_and_back():
    config = CapsNetConfig.for_images(40, 32, 3, classes=3, class_names=("é", "b", "c"), decoder=(), lower=0)
    assert CapsNetConfig.from_json(config.to_json()) == config
    assert CapsNetConfig.from_dict(config.to_dict()) == config
    assert config.grid == (12, 8)


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CapsNetConfig.mnist().classes = 3  # type: ignore[misc]


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    stem=st.integers(1, 9),
    stride=st.integers(1, 3),
    kernel=st.integers(1, 9),
    step=st.integers(1, 3),
)
def test_the_grid_follows_from_the_sizes(height, width, stem, stride, kernel, step):
    assume(min(height, width) >= stem + stride * (kernel - 1))
    config = CapsNetConfig.for_images(
        height,
        width,
        1,
        classes=2,
        stem_kernel=stem,
        stem_stride=stride,
        primary_kernel=kernel,
        primary_stride=step,
    )
    starts = len(range(0, height - stem + 1, stride))
    assert config.stem_size[0] == starts
    assert config.grid[0] == len(range(0, starts - kernel + 1, step))
    assert config.lower_capsules == config.grid[0] * config.grid[1] * 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"height": 16}, "images of 16×28 are too small: a 9×9 stem .* need at least 17×17: enlarge"),
        ({"classes": 1}, "classes is 1, expected at least 2"),
        ({"channels": 0}, "channels is 0, expected at least 1"),
        ({"decoder": (512, 0)}, r"decoder is \(512, 0\), expected at least 1"),
        ({"iterations": 0}, "iterations is 0, expected at least 1"),
        ({"iterations": 2.5}, "iterations is 2.5, expected a whole number"),
        ({"standardize": 1}, "standardize is 1, expected true or false"),
        ({"lower": "0"}, "lower is '0', expected a number"),
        ({"decoder": 512}, "decoder is 512, expected a list of whole numbers"),
        ({"class_names": "abc"}, "class_names is 'abc', expected a list of strings"),
        ({"class_names": ("a", "b")}, "2 class names were given for 10 classes"),
        ({"class_names": ("a",) * 10}, "class names repeat: a, a, a"),
        ({"normalization": "max min"}, "normalization is 'max min', expected a name such as max_min"),
        (
            {"stem_layers": [[1, 2]]},
            r"stem_layers is \(\(1, 2\),\), expected a list of \(channels, kernel size, stride\)",
        ),
        ({"stem_layers": [[1, 0, 2]]}, r"stem_layers is \(\(1, 0, 2\),\), expected at least 1"),
        ({"stem_layers": [[4, 3, 2]]}, "too small: 1 convolutions in front, a 9×9 stem .* need at least 35×35"),
        ({"normalization": 3}, "normalization is 3, expected a string"),
        ({"lower": 1.0}, "lower=1.0, upper=1.0: expected finite numbers, lower < upper"),
        ({"resize": (20, 40)}, "resize is 20×40, smaller than the 28×28"),
        ({"resize": (20,)}, r"resize is \(20,\), expected two whole numbers or null"),
    ],
)
def test_what_cannot_work_says_why(changes, message):
    with pytest.raises(ValueError, match=message):
        CapsNetConfig.mnist(**changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the configuration is not JSON: "),
        ("[]", "the configuration is a JSON list, expected an object"),
        ('{"hight": 28, "size": 1}', "the configuration has unknown entries: hight, size"),
    ],
)
def test_foreign_json_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        CapsNetConfig.from_json(text)


@pytest.mark.parametrize(
    ("size", "front", "grid"),
    [(28, 0, (6, 6)), (64, 1, (8, 8)), (96, 2, (4, 4)), (224, 3, (6, 6)), (512, 4, (8, 8))],
)
def test_a_strided_stem_keeps_the_number_of_capsules_near_the_papers(size, front, grid):
    config = CapsNetConfig.for_images(size, size, 3, classes=5, stem="strided")
    assert len(config.stem_layers) == front
    assert config.grid == grid
    assert config.lower_capsules <= 2 * 1152
    assert [channels for channels, _, _ in config.stem_layers] == [256 >> (front - k) for k in range(front)]
    assert CapsNetConfig.from_json(config.to_json()) == config
    paper = CapsNetConfig.for_images(size, size, 3, classes=5)
    assert paper.stem_layers == ()


@pytest.mark.parametrize(
    ("size", "capsules"),
    [(28, 1152), (34, 1152), (40, 2048), (48, 1152), (64, 1568), (96, 1152), (128, 1568), (224, 1152)],
)
def test_strides_are_chosen_by_the_size_of_the_images(size, capsules):
    config = CapsNetConfig.for_images(size, size, 3, classes=5, stem="auto")
    assert config.lower_capsules == capsules
    own = CapsNetConfig.for_images(size, size, 3, classes=5, stem="auto", primary_stride=2)
    assert own == CapsNetConfig.for_images(size, size, 3, classes=5)


def test_a_strided_stem_stops_before_the_image_is_gone():
    config = CapsNetConfig.for_images(40, 400, 1, classes=2, stem="strided")
    assert min(config.grid) >= 1
    with pytest.raises(ValueError, match="stem is 'wide', expected auto, paper or strided"):
        CapsNetConfig.for_images(40, 40, 1, classes=2, stem="wide")  # type: ignore[arg-type]


def test_default_class_names_follow_the_number_of_classes():
    config = CapsNetConfig.mnist()
    assert dataclasses.replace(config, classes=4).class_names == ("0", "1", "2", "3")
    assert dataclasses.replace(dataclasses.replace(config, classes=4), classes=12).class_names == tuple(
        map(str, range(12))
    )
    with pytest.raises(ValueError, match="2 class names were given for 4 classes"):
        dataclasses.replace(config, classes=4, class_names=("a", "b"))
