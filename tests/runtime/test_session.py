"""Answers from a file: no PyTorch, any batch, any number of threads."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.runtime.conftest import exported, some_images

from fastcaps.runtime import load, session


@pytest.mark.slow
def test_it_doesnt_import_torch(model_file):
    code = f"""
import sys
import numpy as np
import fastcaps.runtime
network = fastcaps.runtime.load({str(model_file)!r}, threads=1)
print(network.predict(np.zeros((2, 1, 11, 10), np.uint8)).shape)
print([name for name in ("torch", "onnx", "sklearn", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["(2,)", "[]"]
    assert done.stderr == ""


def test_what_the_file_says(fast, model_file):
    network = load(model_file, threads=1)
    assert network.config == fast.config
    assert (network.routing, network.precision, network.background) == ("fast", "float32", 0.0)
    assert network.about.to_dict()["accuracy"]["images"] == 40
    assert "uint8 (batch, 1, 11, 10), gray, 0 to 255" in network.about.input


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("batch", [None, 1, 7])
def test_alone_and_inside_any_batch(fast, tmp_path, precision, batch, monkeypatch):
    monkeypatch.setattr(session, "CHUNK_IMAGES", 8)
    network = load(exported(fast, tmp_path / "m.onnx", precision=precision, batch=batch), threads=1)
    images = some_images(fast.config, 19).numpy()
    together = network(images)
    assert together.capsules.shape == (19, 3, 7)
    np.testing.assert_allclose(together.lengths, np.linalg.norm(together.capsules, axis=-1), atol=1e-6)
    for k in range(19):
        np.testing.assert_allclose(network(images[k : k + 1]).lengths[0], together.lengths[k], atol=1e-6)
    np.testing.assert_array_equal(network.predict(images[::-1]), together.lengths.argmax(1)[::-1])


def test_an_empty_batch(model_file):
    out = load(model_file, threads=1)(np.empty((0, 1, 11, 10), np.uint8))
    assert (out.capsules.shape, out.lengths.shape) == ((0, 3, 7), (0, 3))


def test_many_threads_ask_at_once(fast, model_file):
    network = load(model_file, threads=2)
    images = some_images(fast.config, 64).numpy()
    expected = network(images).lengths
    with ThreadPoolExecutor(8) as pool:
        for k, lengths in enumerate(pool.map(lambda k: network(images[k : k + 9]).lengths, list(range(50)) * 4)):
            np.testing.assert_allclose(lengths, expected[k % 50 : k % 50 + 9], atol=1e-6)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((1, 1, 11, 10), np.float32), "images are float32, expected a NumPy array of uint8 between 0 and 255"),
        ([[0]], "images are list, expected a NumPy array of uint8"),
        (np.zeros((1, 11, 10), np.uint8), r"images have shape \(1, 11, 10\), expected \(batch, 1, 11, 10\)"),
        (np.zeros((1, 11, 10, 1), np.uint8), r"images have shape \(1, 11, 10, 1\), expected \(batch, 1, 11, 10\)"),
    ],
)
def test_other_images_are_refused(model_file, images, message):
    with pytest.raises(ValueError, match=message):
        load(model_file, threads=1)(images)


def test_threads_are_checked(model_file):
    with pytest.raises(ValueError, match="threads is 0, expected at least 1"):
        load(model_file, threads=0)


def test_a_missing_runtime_says_what_to_install(model_file, missing_package):
    missing_package("onnxruntime")
    with pytest.raises(ModuleNotFoundError, match=r"fastcaps.runtime needs onnxruntime, .*pip install .onnxruntime>="):
        load(model_file, threads=1)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder, expected a file from fastcaps.export"):
        load(tmp_path)
