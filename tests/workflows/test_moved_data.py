"""Images of a run that are elsewhere now, are more now, are broken, or are others of the same classes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastcaps import workflows
from fastcaps.data import DataSet
from fastcaps.master import MasterCoefficients
from fastcaps.runtime import load
from fastcaps.training import Run

_TINY: dict[str, Any] = {
    "stem_channels": 4,
    "capsule_types": 2,
    "lower_dimension": 4,
    "decoder": (4,),
    "stem_kernel": 5,
}
_TRAINING: dict[str, Any] = {"epochs": 1, "batch_size": 8, "warmup": 1, "primary_kernel": 5, "threads": 1}


def save(folder: Path, name: str, number: int) -> None:
    pixels = np.random.default_rng([number, len(name)]).integers(0, 256, (14, 14), np.uint8)
    (folder / name).mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / name / f"{number}.png")


def write(folder: Path, count: int, start: int = 0) -> Path:
    for name in ("cat", "horse"):
        for number in range(start, start + count):
            save(folder, name, number)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, Path]:
    """A folder of images and a run that was trained on it."""
    place = tmp_path_factory.mktemp("pets")
    images, run = write(place / "images", 10), place / "run"
    workflows.train(images, run, **_TRAINING, **_TINY)
    workflows.accumulate(run)
    return images, run


@pytest.fixture
def own(trained, tmp_path) -> tuple[Path, Path]:
    """Copies of both, and the run looks for its images where the copy is."""
    images, run = shutil.copytree(trained[0], tmp_path / "images"), shutil.copytree(trained[1], tmp_path / "run")
    about = json.loads((run / "run.json").read_text())
    about["data"]["call"]["name_or_folder"] = str(images)
    (run / "run.json").write_text(json.dumps(about))
    return images, run


@pytest.mark.slow
def test_a_folder_that_moved_is_recognized(own, tmp_path, recwarn):
    images, run = own
    moved = images.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="images, which is not there any more: give the folder where they are"):
        workflows.evaluate(run)
    evaluation = workflows.evaluate(run, data=moved)
    assert (evaluation.images, evaluation.images_note) == (4, None)
    assert (run / "evaluation.json").is_file()
    assert not [entry for entry in recwarn if "images" in str(entry.message)]


@pytest.mark.slow
def test_a_folder_that_grew_keeps_its_test_images(own):
    images, run = own
    before = workflows.evaluate(run)
    write(images, 5, start=20)
    with pytest.warns(UserWarning, match="images has grown by 10 images since the training"):
        after = workflows.evaluate(run)
    assert after.labels.tolist() == before.labels.tolist()
    assert (after.dynamic.predictions == before.dynamic.predictions).all()
    assert after.images_note is not None
    assert any("has grown by 10 images" in sentence for sentence in after.sentences())
    with pytest.warns(UserWarning, match="has grown"):
        workflows.accumulate(run)
    master = MasterCoefficients.load(run / "master.safetensors")
    assert int(master.counts.sum()) == 26
    assert "has grown by 10 images" in master.provenance["images_note"]


def test_a_folder_that_lost_a_test_image_is_refused_unless_given(own):
    images, run = own
    data = Run.open(run).data()
    write(images, 5, start=20)
    (images / "cat" / "0.png").unlink()
    for path in images.glob("*/[1-9].png"):
        path.unlink()
    assert data.test_hashes
    with pytest.raises(ValueError, match="are not those that .* was trained with"):
        workflows.evaluate(run)


def test_other_images_of_the_same_classes(own, tmp_path):
    run = own[1]
    others = write(tmp_path / "others", 6, start=50)
    with pytest.warns(UserWarning, match="the images of others are not those of the training, but others of the same"):
        evaluation = workflows.evaluate(run, data=str(others))
    assert (evaluation.images, evaluation.data) == (12, "others")  # all of them: none was trained on
    assert "others of the same classes" in evaluation.to_dict()["images_note"]
    assert not (run / "evaluation.json").exists()
    with (
        pytest.warns(UserWarning, match="others"),
        pytest.raises(ValueError, match="give another place than the run as out="),
    ):
        workflows.accumulate(run, data=others)
    with pytest.warns(UserWarning, match="others"), pytest.raises(ValueError, match="held out for validation is not"):
        workflows.evaluate(run, data=others, part="validation")
    (others / "cat").rename(others / "cow")
    with pytest.raises(ValueError, match="others has the classes cow, horse, expected cat, horse: give images of"):
        workflows.evaluate(run, data=others)


def test_classes_in_another_order(data):
    names = data.class_names[::-1]
    turned = data.with_classes(names)
    assert [names[k] for k in turned.test.labels[:9]] == [data.class_names[k] for k in data.test.labels[:9]]
    assert (turned.test.images(torch.arange(9)) == data.test.images(torch.arange(9))).all()


def test_training_from_a_run_with_other_images(own, tmp_path):
    run = own[1]
    others = write(tmp_path / "others", 6, start=50)
    workflows.train(others, tmp_path / "next", init=run, epochs=1, threads=1)
    assert Run.open(tmp_path / "next").about.data.name == "others"


def test_exporting_without_data(own, tmp_path):
    images, run = own
    shutil.rmtree(images)
    result = workflows.export(run, tmp_path / "m.onnx", check=False)
    assert result.check.correct is None
    assert "accuracy of" in result.sentences()[0]
    with pytest.raises(FileNotFoundError, match="not there any more"):
        workflows.export(run, tmp_path / "i.onnx", check=False, precision="int8")
    others = write(tmp_path / "others", 3, start=50)
    workflows.export(run, tmp_path / "i.onnx", check=False, precision="int8", calibration=others)
    assert load(tmp_path / "i.onnx", threads=1).precision == "int8"
    with pytest.warns(UserWarning, match="others"):
        checked = workflows.export(run, tmp_path / "c.onnx", data=others)
    assert "others" in str(checked.check.images_note)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty has no images in it: give a folder of pictures to calibrate with"):
        workflows.export(run, tmp_path / "e.onnx", check=False, calibration=tmp_path / "empty")


def test_what_an_export_may_overwrite(own, tmp_path):
    run, file = own[1], tmp_path / "m.onnx"
    file.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="m.onnx exists: choose another name, or pass force=True"):
        workflows.export(run, file, check=False)
    assert file.read_bytes() == b"mine"
    workflows.export(run, file, check=False, force=True)
    with pytest.raises(ValueError, match="m.pt was given as the file to write, expected a name that ends with .onnx"):
        workflows.export(run, tmp_path / "m.pt", check=False)


def test_broken_files_are_left_out_when_asked(own, tmp_path, capsys):
    images, _ = own
    intact = load_folder(images).fingerprint
    whole = (images / "cat" / "0.png").read_bytes()
    (images / "cat" / "cut.png").write_bytes(whole[: len(whole) // 2])  # its header is intact
    (images / "horse" / "text.jpg").write_text("no image")
    with pytest.raises(ValueError, match="text.jpg can't be decoded"):
        load_folder(images)
    data = load_folder(images, skip_broken=True)
    assert data.left_out == ("cat/cut.png", "horse/text.jpg")
    assert "left out 2 of 22 files" in capsys.readouterr().err
    assert data.fingerprint == intact
    workflows.train(images, tmp_path / "again", skip_broken=True, **_TRAINING, **_TINY)
    run = Run.open(tmp_path / "again")
    assert run.about.data.left_out == ("cat/cut.png", "horse/text.jpg")
    assert run.data().fingerprint == intact
    for path in images.glob("cat/*.png"):
        path.write_text("no image")
    with pytest.raises(ValueError, match="the class folder .*cat has no images that can be decoded"):
        load_folder(images, skip_broken=True)


def load_folder(folder: Path, **options: Any) -> DataSet:
    from fastcaps.data import load as load_data

    return load_data(folder, **options)
