"""Export: what is written, what is refused, and that a refusal leaves no file and spoils none."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.conftest import exported, networks, small_config, some_images

from fastcaps import CapsNet, FastCapsNet
from fastcaps.exporting import Check, export, result
from fastcaps.exporting.exporter import calibrated
from fastcaps.exporting.result import find_problem
from fastcaps.runtime import load


@pytest.mark.parametrize("routing", ["fast", "dynamic"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
@torch.no_grad()
def test_the_file_answers_as_the_network_does(routing, precision, tmp_path):
    network = networks(small_config(channels=3, standardize=True))[routing]
    path = exported(network, tmp_path / "new" / "m.onnx", precision=precision, max_drop=100)
    actual = load(path, threads=1)
    images = some_images(network.config, 33)
    lengths = network(images).lengths.numpy()
    tolerance = 1e-5 if precision == "float32" else 0.1
    np.testing.assert_allclose(actual(images.numpy()).lengths, lengths, atol=tolerance)
    assert (actual.routing, actual.precision) == (routing, precision)
    assert list(path.parent.iterdir()) == [path]


def test_accuracy_is_in_the_file(fast, tmp_path):
    images = some_images(fast.config, 30)
    answers = fast.predict(images)
    labels = torch.where(torch.arange(30) < 6, (answers + 1) % 3, answers)
    result = export(fast, tmp_path / "m.onnx", tests=[(images[:10], labels[:10]), (images[10:], labels[10:])])
    check = result.check
    assert (check.images, check.correct, check.original_correct, check.changed) == (30, 24, 24, 0)
    assert check.accuracy == 0.8
    assert check.largest_difference < 1e-5
    about = load(tmp_path / "m.onnx").about
    assert (about, about.accuracy) == (result.metadata, check)
    with pytest.warns(
        DeprecationWarning, match=r'CapsNetMetadata\["accuracy"\]: use CapsNetMetadata.accuracy or .to_dict'
    ):
        assert about["accuracy"] == check.to_dict()
    assert result.to_dict() == {"file": str(tmp_path / "m.onnx"), "bytes": result.size, **about.to_dict()}
    assert (result.routing, result.size) == ("fast", (tmp_path / "m.onnx").stat().st_size)
    assert "80.00%" in repr(result)


def test_int8_that_loses_accuracy_is_refused(fast, tmp_path):
    images = some_images(fast.config, 60)
    path = tmp_path / "m.onnx"
    path.write_bytes(b"as it was")
    # Ranges of black images are wrong for any other.
    options: dict[str, Any] = {"precision": "int8", "calibration": [torch.zeros(1, 1, 11, 10, dtype=torch.uint8)]}
    message = r"m.onnx was not written: in int8 accuracy falls from 100.00% to [0-9.]+%, [0-9.]+ points, expected at"
    with pytest.raises(ValueError, match=message):
        export(fast, path, tests=[(images, fast.predict(images))], **options)
    assert path.read_bytes() == b"as it was"
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.onnx"]
    result = export(fast, path, tests=[(images, fast.predict(images))], max_drop=100, **options)
    assert result.check.correct is not None
    assert result.check.correct < 57


def test_three_images_are_not_a_drop():
    check = Check(images=10, changed=3, largest_difference=0.1, correct=7, original_correct=10)
    assert find_problem(check, "int8", max_drop=0.1) is None
    message = find_problem(dataclasses.replace(check, correct=6), "int8", max_drop=0.1)
    assert message is not None
    assert "accuracy falls from 100.00% to 60.00%, 40.00 points, expected at most 0.1" in message


@pytest.mark.parametrize("difference", [0.002, float("nan")])
def test_a_difference_in_float32_is_a_problem(difference):
    message = find_problem(Check(images=10, changed=0, largest_difference=difference), "float32", max_drop=100)
    assert message is not None
    assert "a length differs from PyTorch's by" in message


def test_a_float32_file_that_answers_otherwise_is_refused(fast, tmp_path, monkeypatch):
    monkeypatch.setattr(result, "TOLERANCE", 1e-12)
    with pytest.raises(
        ValueError, match=r"m.onnx was not written: a length differs from PyTorch's by \S+ on 40 images, ex"
    ):
        exported(fast, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_broken_weights_are_refused(fast, tmp_path):
    with torch.no_grad():
        fast.routing.weight[0] = float("nan")
    with pytest.raises(ValueError, match="m.onnx was not written: routing.weight has entries that are not finite, the"):
        exported(fast, tmp_path / "m.onnx", precision="int8")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch is 0, expected at least 1, or None for any"),
        ({"max_drop": float("nan")}, "max_drop is nan, expected points of accuracy, at least 0"),
        ({"precision": "float16"}, "precision is 'float16', expected float32 or int8"),
        ({"precision": "int8", "calibration": None}, "int8 needs training images to calibrate with: give some hundred"),
        ({"precision": "int8", "calibration": []}, "there are no images to calibrate with"),
    ],
)
def test_errors(fast, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        exported(fast, tmp_path / "m.onnx", **options)
    with pytest.raises(ValueError, match="there are no images to compare the exported network with the original on"):
        export(fast, tmp_path / "m.onnx", tests=[])
    with pytest.raises(IsADirectoryError, match="is a folder, expected the name of a file to write"):
        export(fast, tmp_path, tests=[])


def test_ranges_are_those_of_all_batches(fast):
    images = some_images(fast.config, 12)
    together, apart = calibrated(fast, [images]), calibrated(fast, images.split(5))
    np.testing.assert_allclose(together.maps, apart.maps, rtol=1e-6)
    np.testing.assert_allclose(together.channels, apart.channels, atol=1e-6)
    channels = fast.primary.conv(fast.stem(images / 255))
    np.testing.assert_allclose(together.channels, channels.detach().abs().amax((0, 2, 3)), atol=1e-6)


def real_images(count):
    """Test images of MNIST where they are at hand, otherwise the embedded digits, as bytes."""
    from fastcaps.data import load as load_data

    has_mnist = (Path(os.environ.get("FASTCAPS_DATA", "")) / "mnist").is_dir() and "FASTCAPS_DATA" in os.environ
    data = load_data("mnist" if has_mnist else "digits")
    chosen = torch.arange(count)
    return data.train.images(chosen), data.test.images(chosen), data.test.labels[chosen]


@pytest.mark.slow
@torch.no_grad()
def test_every_engine_gives_the_same_answers_on_real_images(tmp_path):
    """Ordinary convolution is the reference; largest difference of lengths and changed answers of all the others."""
    training, images, labels = real_images(16)
    for name, network in (
        ("fast", FastCapsNet.from_pretrained("mnist")),
        ("dynamic", CapsNet.from_pretrained("mnist")),
    ):
        network.primary.convolution = "direct"
        expected = network(images).lengths.numpy()
        alone = {}
        actual = {}
        network.primary.convolution = "winograd"
        actual["winograd"] = network(images).lengths.numpy()
        alone["winograd"] = network(images[5:6]).lengths.numpy()
        network.primary.convolution = "auto"
        alone["auto"] = network(images[5:6]).lengths.numpy()
        for precision in ("float32", "int8"):
            path = tmp_path / f"{name}-{precision}.onnx"
            export(network, path, tests=[(images, labels)], precision=precision, calibration=[training])
            predictor = load(path)
            actual[precision] = predictor(images.numpy()).lengths
            alone[precision] = predictor(images[5:6].numpy()).lengths
        for engine, lengths in actual.items():
            largest = np.abs(lengths - expected).max()
            changed = int((lengths.argmax(1) != expected.argmax(1)).sum())
            print(
                f"{name} {engine}: lengths differ by at most {largest:.1e}, {changed} of {len(images)} answers change"
            )
            assert largest <= (0.1 if engine == "int8" else 1e-3)
            assert changed <= (2 if engine == "int8" else 0)
        for engine, lengths in alone.items():
            np.testing.assert_allclose(lengths[0], actual.get(engine, expected)[5], atol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_batch_norm_is_merged_before_export(tmp_path, precision):
    """A network with dynamic routing that is still in training has BatchNorm layers; its file has none."""
    model = networks(small_config(batch_norm=True, height=17, width=16, stem_layers=((3, 3, 2),)))["dynamic"]
    images = some_images(model.config, 40)
    model.train()
    model(images)
    model.eval()
    path = exported(model, tmp_path / "m.onnx", precision=precision, max_drop=100)
    tolerance = 1e-5 if precision == "float32" else 0.05
    lengths = model(images).lengths.detach().numpy()
    np.testing.assert_allclose(load(path, threads=1)(images.numpy()).lengths, lengths, atol=tolerance)
    assert model.stem.norm is not None  # the model itself is not touched


def test_the_file_knows_the_background_of_the_network(fast, tmp_path):
    fast.provenance["background"] = 0.0
    example = some_images(fast.config, 3)
    stored = {
        given: export(fast, tmp_path / "m.onnx", example, threads=1, background=given).metadata.background
        for given in (None, 1.0)
    }
    assert stored == {None: 0.0, 1.0: 1.0}
    assert load(tmp_path / "m.onnx", threads=1).background == 1.0


def test_a_refused_export_leaves_no_folder(fast, tmp_path):
    with pytest.raises(ValueError, match="precision is 'float16', expected float32 or int8"):
        exported(fast, tmp_path / "new" / "m.onnx", precision="float16")
    with pytest.raises(ValueError, match="there are no images to compare the exported network with"):
        export(fast, tmp_path / "new" / "m.onnx", tests=[])
    assert list(tmp_path.iterdir()) == []
