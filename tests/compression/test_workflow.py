"""A compressed run is an ordinary run."""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.compression.test_refitting import CONFIG, data

from fastcaps import CapsNet, FastCapsNet, accumulate, fold, workflows
from fastcaps.benchmark.size_figure import size_figure
from fastcaps.benchmark.sizes import time_networks
from fastcaps.compression import CompressSettings, RefitSettings, Size
from fastcaps.compression.results import CompressionResult
from fastcaps.data import batches
from fastcaps.master import uniform_coefficients
from fastcaps.training import Run, Trainer, TrainSettings
from fastcaps.training.accuracy import count_correct

pytestmark = pytest.mark.slow

SETTINGS = CompressSettings(max_drop=100, held_out=30, batch_size=32, refit=RefitSettings(epochs=1))


@pytest.fixture(scope="module", autouse=True)
def _short_measurements():
    short = partial(time_networks, batches=(1,), repetitions=1, least=0.0, budget=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastcaps.workflows.compression.time_networks", short)
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "run"
    torch.manual_seed(0)
    Trainer(CapsNet(CONFIG), data(), TrainSettings(epochs=2, batch_size=32, warmup=2), folder).fit()
    model = CapsNet.from_pretrained(folder)
    accumulate(model, batches(data().train, 64, view=data().augmentation.test_view)).save(Run(folder).master_file)
    return folder


@pytest.fixture(scope="module")
def compressed(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compressed") / "small"
    result = workflows.compress(
        source, folder, settings=SETTINGS, data=data(), threads=1, command="fastcaps compress …"
    )
    return folder, result


def test_the_result_says_what_was_tried(compressed):
    folder, result = compressed
    assert result.size == Size(1, 1)
    assert (result.met, result.seen, result.held_out) == (True, True, 30)
    assert result.whole == Size(4, 6)
    assert [step.size for step in result.steps] == [Size(2, 3), Size(2, 2), Size(1, 2), Size(1, 1)]
    assert {(time.network, time.engine) for time in result.times if time.batch == 1} >= {
        ("whole", "PyTorch"),
        ("1 types, 1 maps", "ONNX Runtime"),
    }
    assert json.loads((folder / "compress.json").read_bytes()) == result.to_dict()
    assert (folder / "compress.png").read_bytes().startswith(b"\x89PNG")
    whole = result.whole_network
    assert whole is not None
    assert (whole.size, whole.parameters > result.steps[0].parameters) == (result.whole, True)
    assert CompressionResult.load(folder / "compress.json").to_dict() == result.to_dict()
    assert "on 30 held-out images" in result.sentences()[0]
    assert "Accuracy after pruning" in repr(result)


def test_the_folder_is_a_run_whose_folded_network_is_the_compressed_one(compressed):
    folder, result = compressed
    run = Run.open(folder)
    assert Size.of(run.model().config) == result.size
    images = next(iter(batches(data().test, 8, view=data().augmentation.test_view)))[0]
    searched = FastCapsNet.from_pretrained(folder / "search" / "1-types-1-maps")(images).capsules
    torch.testing.assert_close(fold(run.model(), run.master())(images).capsules, searched)
    torch.testing.assert_close(FastCapsNet.from_pretrained(folder)(images).capsules, searched)
    held_out = run.validation_part(data())
    assert held_out is not None
    assert len(held_out) == 30
    evaluation = workflows.evaluate(folder, data=data(), threads=1)
    assert evaluation.variants["fast"].correct == evaluation.variants["uniform"].correct


def test_it_is_exported_in_float32_and_int8(compressed, tmp_path):
    folder, _ = compressed
    for precision in ("float32", "int8"):
        file = tmp_path / f"{precision}.onnx"
        workflows.export(folder, file, precision=precision, max_drop=100, data=data(), threads=1)
        assert file.stat().st_size > 0


def test_a_search_is_resumed_and_may_take_another_size(source, compressed):
    folder, result = compressed
    again = workflows.compress(source, folder, settings=SETTINGS, resume=True, data=data(), threads=1)
    assert again.steps == result.steps
    np.testing.assert_equal(again.reference, result.reference)
    with pytest.raises(ValueError, match="holds a search already: pass resume=True to resume it"):
        workflows.compress(source, folder, settings=SETTINGS, data=data(), threads=1)
    other = CompressSettings(max_drop=100, held_out=30, batch_size=16, refit=RefitSettings(epochs=1))
    with pytest.raises(ValueError, match=r"is of another search \(batch_size was 32, now 16\)"):
        workflows.compress(source, folder, settings=other, resume=True, data=data(), threads=1)
    others = replace(data(), class_names=("0", "1", "2"), provenance={"kind": "generated", "train": "others"})
    message = r"is of another search \(images was [0-9a-f]{64}, now [0-9a-f]{64}\)"
    with pytest.warns(UserWarning, match="are not those of the training"), pytest.raises(ValueError, match=message):
        workflows.compress(source, folder, settings=SETTINGS, resume=True, data=others, threads=1)
    other = replace(SETTINGS, refit=RefitSettings(epochs=2))
    with pytest.raises(ValueError, match=r"is of another search \(refit\.epochs was 1, now 2\)"):
        workflows.compress(source, folder, settings=other, resume=True, data=data(), threads=1)


def test_a_search_of_an_earlier_version_is_resumed_without_averaging(source, compressed, tmp_path, capsys):
    folder = shutil.copytree(compressed[0], tmp_path / "before")
    settings = folder / "search" / "settings.json"
    stored = json.loads(settings.read_bytes())
    kept = {name: value for name, value in stored.items() if name not in ("images", "augmentation")}
    del kept["refit"]["averaging"]
    settings.write_text(json.dumps(kept))
    (folder / "search" / "identity.json").unlink()  # earlier versions did not write it
    workflows.compress(source, folder, settings=SETTINGS, resume=True, data=data(), threads=1)
    assert Run.open(folder).about.settings.averaging == 0.0
    assert "the sizes it has finished keep the weights of their best epoch" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ValueError, match=r"augmentation\.rotation was 0\.0, now 30\.0"):
        workflows.compress(source, folder, settings=SETTINGS, resume=True, rotation=30.0, data=data(), threads=1)


def test_the_run_describes_the_training_after_pruning(compressed):
    settings = Run.open(compressed[0]).about.settings
    assert (settings.decay, settings.final_rate, settings.distill) == ("linear", 0.0, True)
    assert settings.averaging == 0.998
    assert (settings.epochs, settings.batch_size, settings.validation) == (1, 32, 30)


def test_every_network_and_engine_is_in_the_figure(compressed):
    _, result = compressed
    (panel,) = size_figure(result).axes
    lines = {line.get_label(): np.asarray(line.get_xydata()) for line in panel.lines}
    names = [result.whole_network, *result.steps]
    for engine in ("PyTorch", "ONNX Runtime", "ONNX Runtime int8 (accuracy in float32)"):
        assert lines[engine][:, 1] == pytest.approx([100 * step.accuracy for step in names])
        own = [time for time in result.times if time.engine == engine.partition(" (")[0]]
        assert lines[engine][:, 0] == pytest.approx([t.ms_per_image for t in own if t.network != "Efficient-CapsNet"])
    assert [text.get_text() for text in panel.texts] == ["whole", *(str(step.size) for step in result.steps)]


def test_a_network_that_knows_the_held_out_images(compressed, source, tmp_path):
    _, result = compressed
    assert "evaluate it on the test images first" in result.sentences()[-1]
    known = replace(result, reference=0.5, reference_images="test", source_accuracy=0.75)
    assert known.sentences()[-1] == (
        "losses are counted from the test accuracy of the original network, 50.00%: it was trained on the held-out "
        "images (75.00%)"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"types": 99}, "types is 99, expected at most 4"),
        ({"types": None, "speedup": 1e9}, "speedup is 1e\\+09, expected at most"),
        ({"held_out": 100_000}, "100000"),
    ],
)
def test_a_call_that_is_refused_leaves_nothing_behind(source, tmp_path, changes, message):
    settings = replace(SETTINGS, **changes)
    with pytest.raises(ValueError, match=message):
        workflows.compress(source, tmp_path / "small", settings=settings, data=data(), threads=1)
    assert not (tmp_path / "small").exists()


def test_more_augmentation_is_part_of_the_search(source, tmp_path):
    settings = replace(SETTINGS, types=1)
    call = partial(workflows.compress, source, tmp_path / "small", settings=settings, data=data(), threads=1)
    call(rotation=10.0, zoom=0.1)
    augmentation = Run.open(tmp_path / "small").about.data.augmentation
    assert (augmentation["shift"], augmentation["rotation"], augmentation["zoom"]) == (1, 10.0, 0.1)
    with pytest.raises(ValueError, match=r"augmentation\.rotation was 10\.0, now 0\.0; augmentation\.zoom was"):
        call(resume=True)
    call(rotation=10.0, zoom=0.1, resume=True)


def test_a_run_of_other_images_describes_those(source, tmp_path):
    names = ("0", "1", "2")
    others = replace(data(train=120), class_names=names, provenance={"kind": "generated", "train": "others"})
    with pytest.warns(UserWarning, match="are not those of the training"):
        result = workflows.compress(
            source, tmp_path / "small", settings=replace(SETTINGS, types=1), data=others, threads=1
        )
    about = Run.open(tmp_path / "small").about
    assert about.data.fingerprint == others.fingerprint != Run.open(source).about.data.fingerprint
    assert (result.seen, about.data.train, about.data.validation) == (False, 90, 30)


def test_an_interrupted_search_says_how_to_resume(source, tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, observer, **options):
        observer.begin(Size(2, 3), 0.5, 1000)
        observer.teacher(10)
        raise KeyboardInterrupt

    monkeypatch.setattr("fastcaps.workflows.compression.compress_network", interrupted)
    with pytest.raises(KeyboardInterrupt, match="interrupted: the same call with resume=True resumes the search"):
        workflows.compress(source, tmp_path / "small", settings=SETTINGS, data=data(), threads=1)
    assert "1,000/1,000" not in capsys.readouterr().err  # as if it had been completed


def test_a_folder_with_something_else_is_refused(source, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="is not empty and holds no search to resume: choose another folder"):
        workflows.compress(source, tmp_path, settings=SETTINGS, data=data(), threads=1)


def test_a_file_in_place_of_the_folder_is_refused(source, tmp_path):
    (tmp_path / "small").write_text("dear")
    with pytest.raises(ValueError, match="small is a file, expected a folder for the run: choose another name"):
        workflows.compress(source, tmp_path / "small", settings=SETTINGS, data=data(), threads=1)
    assert (tmp_path / "small").read_text() == "dear"


def test_a_network_trained_with_fixed_coefficients_teaches_as_it_was_trained(tmp_path):
    torch.manual_seed(1)
    model = CapsNet(CONFIG)
    settings = TrainSettings(epochs=2, batch_size=32, warmup=2)
    Trainer(model, data(), settings, tmp_path / "run", master=uniform_coefficients(CONFIG)).fit()
    evaluation = workflows.evaluate(tmp_path / "run", data=data(), threads=1)
    result = workflows.compress(
        tmp_path / "run", tmp_path / "small", settings=replace(SETTINGS, types=1), data=data(), threads=1
    )
    folded = FastCapsNet.from_pretrained(tmp_path / "run")
    _, held_out = data().validation_split(30, SETTINGS.seed)
    accuracy = count_correct(folded, held_out, data().augmentation.test_view) / 30
    assert result.whole_network is not None
    assert result.source_accuracy == result.whole_network.accuracy == accuracy
    assert (result.reference, result.reference_images) == (evaluation.variants["fast"].accuracy, "test")
