"""Every figure draws for few and many classes, and the same numbers give the same file."""

import io

import numpy as np
import pytest
from PIL import Image

from fastcaps import CapsNetConfig
from fastcaps.analysis import figures
from fastcaps.analysis.capsules import Lengths


def drawn(classes: int, colors: int = 1):
    random = np.random.default_rng(classes)
    names = [str(k) if classes == 10 else f"class {k}" for k in range(classes)]
    square = random.uniform(-1, 1, (classes, classes))
    square[0, -1] = np.nan
    labels = random.integers(0, classes, 5)
    lengths = Lengths(
        labels, random.random((5, classes)).astype(np.float32), random.random((5, classes)).astype(np.float32)
    )
    images = random.random((5, colors, 9, 7))
    maps = random.random((classes, 6, 4, 3))
    means = random.random((classes, colors, 9, 7))
    matrices = random.random((classes, 72, classes))
    shares = np.zeros((3, 100))
    shares[0, 10] = 1
    shares[1:] = random.random((2, 100)) / 50
    edges = np.linspace(0, 1, 101)
    return {
        "confusion": figures.confusion_figure({"a": np.eye(classes, dtype=np.int64) * 3}, names),
        "images": figures.image_correlations_figure(random.uniform(-1, 1, (5, 5)), labels, names),
        "sorted": figures.image_correlations_figure(random.uniform(-1, 1, (5, 5)), np.sort(labels), names),
        "classes": figures.class_correlations_figure(square, names, symmetric=True),
        "master": figures.class_correlations_figure(square, names, symmetric=False, labels=("rows", "columns")),
        "tuning": figures.tuning_figure(np.abs(square), np.abs(square) / 2, names),
        "histogram": figures.histogram_figure({"one": (edges, shares), "two": (edges, shares[:2])}),
        "matrix": figures.master_matrix_figure(random.random((72, classes)), names),
        "positions": figures.position_figure(maps, means, names),
        "types": figures.types_figure(maps, names),
        "procedure": figures.procedure_figure(
            matrices * 9, matrices, matrices[0], np.full(classes, 9, np.int64), names
        ),
        "examples": figures.examples_figure(images, np.stack([images, images], 1), lengths, names),
        "examples alone": figures.examples_figure(images, None, lengths, names),
        "disagreements": figures.disagreement_figure(images, lengths, names),
        "variation": figures.variation_figure(random.random((4, 3, colors, 9, 7)), list("abcd"), (-0.1, 0, 0.1), "row"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "colors"), [(2, 3), (11, 1)])
def test_every_figure_has_something_in_it(classes, colors):
    for name, figure in drawn(classes, colors).items():
        if classes > 2 and name in ("sorted", "histogram", "examples alone", "variation"):
            continue  # drawn above; the number of classes changes nothing about them
        figure.savefig(buffer := io.BytesIO(), format="png", dpi=60)
        picture = np.asarray(Image.open(buffer).convert("L"))
        assert picture.std() > 5, name
        # Nothing reaches the edge, where it would be cut off.
        assert min(edge.min() for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1])) == 255, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        CapsNetConfig.mnist(),
        CapsNetConfig.cifar10(),
        CapsNetConfig.for_images(40, 32, 3, classes=3, normalization="softmax", decoder=(8,)),
        CapsNetConfig.for_images(96, 96, 1, classes=100, class_dimension=4, stem_stride=2),
    ],
)
def test_the_architecture_is_drawn_with_its_shapes(config):
    figure = figures.architecture_figure(config)
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    for shape in (
        f"{config.height}×{config.width}×{config.channels}",
        f"{config.stem_size[0]}×{config.stem_size[1]}×{config.stem_channels}",
        f"{config.grid[0]}×{config.grid[1]}×{config.capsule_types} = {config.lower_capsules:,} capsules",
        f"{config.classes}×{config.class_dimension}",
        "softmax" if config.normalization == "softmax" else "Max-Min",
    ):
        assert shape in words
    assert figures.figure_bytes(figure).startswith(b"\x89PNG")


def test_a_figure_for_a_page_has_two_sets_of_colors():
    figure = figures.confusion_figure({"fast": np.array([[3, 1], [0, 3]])}, ["a", "b"])
    assert [axis.get_text() for axis in (figure.axes[0].xaxis.label, figure.axes[0].yaxis.label)] == [
        "predicted",
        "true",
    ]
    assert figure.axes[0].get_title() == "fast: 1 error in 7"
    text = figures.page_svg(figure).decode()
    assert "@media(prefers-color-scheme:dark){:root{--c222222:#e8e8e6;" in text
    assert "fill: #222222" not in text
    assert "fill: #ffffff" not in text  # no background of its own
    assert "DejaVu" not in text


def test_ticks_count_the_images_that_are_drawn():
    figure = figures.image_correlations_figure(np.eye(3), np.array([1, 0, 1]), ["a", "b"])
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1", "2", "3"]
    assert all("-" not in tick.get_text() for axes in figure.axes for tick in axes.get_xticklabels())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_same_numbers_give_the_same_file(kind, start):
    square = np.random.default_rng(0).uniform(-1, 1, (3, 3))
    one, two = (
        figures.figure_bytes(figures.class_correlations_figure(square, ["a", "b", "c"], symmetric=True), kind)
        for _ in range(2)
    )
    assert one == two
    assert one.startswith(start)
