"""What the command line does, from Python: functions of a run folder."""

import json

import pytest
import torch

from fastcaps import CapsNet, _progress, workflows
from fastcaps.data import load
from fastcaps.master import Similarity
from fastcaps.training import Run, Trainer, TrainSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    data = load("digits")
    torch.manual_seed(0)
    tiny = {"stem_channels": 6, "capsule_types": 3, "lower_dimension": 4, "class_dimension": 6, "decoder": (8,)}
    settings = TrainSettings(epochs=1, batch_size=128, warmup=5, validation=200)
    Trainer(CapsNet(data.config(**tiny)), data, settings, folder).fit()
    return folder


def test_the_whole_way(folder):
    master = workflows.accumulate(folder, filters=[Similarity()], device="cpu")
    run = Run.open(folder)
    assert torch.equal(run.master().values, master.values)
    assert run.fast_folder.is_dir()
    result = workflows.evaluate(run, folder, limit=50)
    assert json.loads((folder / "evaluation.json").read_bytes()) == result.to_dict()
    assert result.images == 50
    held_out = workflows.evaluate(str(folder), part="validation")
    assert held_out.images == 200
    numbers = workflows.analyze(folder, folder / "report", limit=60)
    assert (folder / "report" / "index.html").is_file()
    assert numbers["training"]["images"] == 60
    ablation = workflows.ablate(folder, {"none": []}, ["pooled", "columns"], [2, 3], limit=100)
    assert [(trial.method, trial.iteration) for trial in ablation.trials] == [
        ("pooled", 2),
        ("columns", 2),
        ("pooled", 3),
        ("columns", 3),
    ]


def test_another_network_on_the_same_images(folder):
    workflows.accumulate(folder)
    result = workflows.evaluate(folder, compare=folder, limit=40)
    assert result.other is not None
    assert result.other.run == str(folder)
    assert result.variants["other"].correct == result.dynamic.correct


def test_a_device_that_cannot_be_used(folder):
    with pytest.raises(ValueError, match="device 'cuda:7' can't be used here .*: try cpu, or auto"):
        workflows.accumulate(folder, device="cuda:7")


def test_progress_in_a_log_is_a_line_now_and_then_and_at_the_end(monkeypatch, capsys):
    now = iter([0.0, 10.0, 31.0, 31.0, 40.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    with _progress.progress_bar("counting", 3000) as count:
        count(1000)
        assert capsys.readouterr().err == ""
        count(1000)
        assert capsys.readouterr().err == "counting 2,000/3,000\n"
        count(1000)
    assert capsys.readouterr().err == "counting 3,000/3,000\n"
