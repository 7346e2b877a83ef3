"""Classifying pictures from Python."""

import io

import pytest
import torch
from PIL import Image

from fastcaps import workflows


@pytest.fixture(scope="module")
def file(run, data, tmp_path_factory):
    return workflows.export(run, tmp_path_factory.mktemp("file") / "m.onnx", data=data, limit=10, threads=1).file


@pytest.fixture
def pictures(data, tmp_path):
    for number in range(5):
        pixels = data.test.images(torch.arange(number, number + 1))[0, 0].numpy()
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    return tmp_path


def test_files_folders_bytes_and_binary_files(file, pictures):
    content = (pictures / "0.png").read_bytes()
    with (pictures / "1.png").open("rb") as binary:
        predictions = workflows.predict(file, [pictures, content, io.BytesIO(content), binary], threads=1, batch_size=2)
    names = [prediction.image for prediction in predictions.images]
    assert names == [*(str(pictures / f"{k}.png") for k in range(5)), "image 1", "image 2", str(pictures / "1.png")]
    labels = predictions.labels
    assert labels[0] == labels[5] == labels[6]
    assert labels[1] == labels[7]
    assert predictions.failed == ()
    assert workflows.predict(file, str(pictures / "3.png")).labels == labels[3:4]
    assert workflows.predict(file, content).labels == labels[:1]
    assert workflows.predict(file, io.BytesIO(content)).labels == labels[:1]
    assert "runner-up" in repr(predictions)


def test_pictures_that_cannot_be_read_are_listed(file, pictures):
    (pictures / "empty").mkdir()
    sources = [pictures / "none.png", b"no picture", pictures / "empty", pictures / "2.png"]
    predictions = workflows.predict(file, sources, threads=1)
    assert [prediction.image for prediction in predictions.images] == [str(pictures / "2.png")]
    assert {failure.image: failure.error for failure in predictions.failed} == {
        str(pictures / "empty"): f"{pictures / 'empty'} has no images in it",
        str(pictures / "none.png"): f"{pictures / 'none.png'} does not exist",
        "image 1": "image 1 can't be decoded as an image (no known image format): replace or remove it",
    }
    assert len(predictions.to_dict()["failed"]) == 3


def test_a_run_and_its_file_agree(run, file, pictures):
    from_file = workflows.predict(file, pictures, threads=1)
    from_run = workflows.predict(run, pictures, routing="both", threads=1, invert="no")
    assert from_run.routing == ("fast", "dynamic")
    assert from_run.labels == from_file.labels
    with pytest.raises(ValueError, match="was exported with fast routing, dynamic was asked for: export that, too"):
        workflows.predict(file, pictures, routing="dynamic")


def test_a_picture_given_twice_is_answered_twice(file, pictures):
    first, second = pictures / "0.png", pictures / "1.png"
    predictions = workflows.predict(file, [first, first, second], threads=1)
    assert [prediction.image for prediction in predictions.images] == [str(first), str(first), str(second)]
    assert len(predictions.labels) == 3
