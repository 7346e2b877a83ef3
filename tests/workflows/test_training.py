"""`fastcaps.workflows.train`: from a data set or its name to a run that its config file repeats."""

import json
import signal
import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from tests.data import tiny
from tests.training.conftest import make_data

from fastcaps import workflows
from fastcaps.data import load
from fastcaps.data.registry import SETS
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training import Logger, Report, Run, TrainSettings
from fastcaps.training.config import ConfigError
from fastcaps.training.description import Extension, InitialWeights
from fastcaps.training.interrupts import TrainingInterrupted

TINY: dict[str, Any] = {
    "stem_channels": 6,
    "capsule_types": 2,
    "lower_dimension": 4,
    "class_dimension": 6,
    "decoder": [8],
}
TINY |= {"stem_kernel": 5, "primary_kernel": 3, "threads": 1, "batch_size": 16, "warmup": 2}


def weights(folder, name="model"):
    return safetensors.torch.load_file(folder / name / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def run(tmp_path):
    result = workflows.train(make_data(), tmp_path / "run", epochs=2, validation=12, test_every=2, loggers=[], **TINY)
    assert result.run == str(tmp_path / "run")
    assert result.next_step == "accumulate"
    return result


def test_a_data_set_from_python(run, tmp_path):
    opened = Run.open(run.run)
    assert list(run.history) == opened.metrics()
    assert run.selected == max(run.history, key=lambda metrics: metrics.validation_accuracy)
    assert list(run.to_dict()) == ["run", "history", "selected", "next_step", "warnings"]
    assert "validation accuracy" in repr(run)
    config = (tmp_path / "run" / "config.toml").read_text()
    assert "# The data set patterns was made in Python: pass it as data=." in config
    tables = tomllib.loads(config)
    assert tables["training"] == {name: value for name, value in opened.settings.to_dict().items() if value is not None}
    assert tables["run"]["threads"] == 1
    again = workflows.train(make_data(), tmp_path / "again", config=tmp_path / "run" / "config.toml", loggers=[])
    assert same(weights(tmp_path / "run"), weights(tmp_path / "again"))
    assert again.selected.loss == run.selected.loss
    with pytest.raises(ValueError, match="holds a run already: pass resume=True"):
        workflows.train(make_data(), run.run, config=tmp_path / "run" / "config.toml", loggers=[])
    resumed = workflows.train(
        make_data(), run.run, config=tmp_path / "run" / "config.toml", loggers=[], resume=True, checkpoint_every=1
    )
    assert resumed.history == run.history


def test_more_augmentation_is_part_of_the_run(run, tmp_path):
    more: dict[str, Any] = {"rotation": 10.0, "zoom": 0.1, "threads": 1, "loggers": [], "epochs": 1}
    workflows.train(make_data(), tmp_path / "rotated", **{**TINY, **more})
    workflows.train(make_data(), tmp_path / "finetuned", init=run.run, **more)
    for folder in (tmp_path / "rotated", tmp_path / "finetuned"):
        augmentation = Run.open(folder).about.data.augmentation
        assert (augmentation["rotation"], augmentation["zoom"]) == (10.0, 0.1)
        tables = tomllib.loads((folder / "config.toml").read_text())
        assert (tables["data"]["rotation"], tables["data"]["zoom"]) == (10.0, 0.1)
    workflows.train(make_data(), tmp_path / "again", config=tmp_path / "rotated" / "config.toml", loggers=[])
    workflows.train(make_data(), tmp_path / "plain", **{**TINY, "epochs": 1, "loggers": []})
    assert same(weights(tmp_path / "rotated"), weights(tmp_path / "again"))
    assert not same(weights(tmp_path / "rotated"), weights(tmp_path / "plain"))


def test_training_from_a_run_with_fixed_coefficients(run, tmp_path):
    options = {"init": run.run, "coefficients": "uniform", "threads": 1, "epochs": 1, "loggers": []}
    fixed = workflows.train(make_data(), tmp_path / "fixed", loss="cross_entropy", sharpness=5.0, **options)
    assert fixed.next_step == "evaluate"
    about = Run.open(fixed.run).about
    assert about.to_dict()["init"]["run"] == run.run
    assert (about.settings.batch_size, about.settings.validation) == (16, 12)
    assert "network" not in tomllib.loads((tmp_path / "fixed" / "config.toml").read_text())
    workflows.train(make_data(), tmp_path / "again", config=tmp_path / "fixed" / "config.toml", loggers=[])
    for name in ("model", "fast"):
        assert same(weights(tmp_path / "fixed", name), weights(tmp_path / "again", name))
    for changes, message in (
        ({"iterations": 2}, "iterations=2: with init= the network is that of"),
        ({"dynamic_epochs": 1, "reinit": True}, "reinit=True: with init= the weights are those of a run"),
        ({"whiten_stem": True}, "whiten_stem=True: with init= the weights are those of a run, leave one of them out"),
        ({"sharpness": 5.0}, "sharpness=5 is of no use with the loss margin: leave it out, or change loss="),
        ({"epoch": 5}, r"epoch is no argument of a training run: did you mean epochs\?"),
    ):
        with pytest.raises(ConfigError, match=message):
            workflows.train(make_data(), tmp_path / "refused", init=run.run, loggers=[], **changes)
    refused: dict[str, Any]
    for refused, message in (
        ({"data": make_data()}, "give out=, the run folder"),
        ({"out": tmp_path / "refused"}, "give data=, or init= with a run whose data to use"),
        ({"out": tmp_path / "refused", "routing_only": True}, "routing_only=True: a new network has nothing to keep"),
        ({"out": tmp_path / "refused", "distill": True}, "distill=True: a new network has nothing to teach"),
    ):
        with pytest.raises(ConfigError, match=message):
            workflows.train(**refused)
    assert not (tmp_path / "refused").exists()


def test_a_resumed_run_has_the_settings_it_was_started_with(monkeypatch, tmp_path):
    tiny.use_few_digits(monkeypatch)

    def train(**changes):
        options = {"threads": 1, "loggers": [], "stem_channels": 4, "capsule_types": 2, "decoder": (8,), "recipe": None}
        return Run.open(workflows.train("digits", tmp_path / "run", **{**options, **changes}).run).settings

    started = train(epochs=1, batch_size=200, learning_rate=2e-3)
    defaults = {**SETS["digits"].training, "whiten_stem": True, "primary_rate": 0.1}
    monkeypatch.setitem(SETS, "digits", replace(SETS["digits"], training=defaults))
    (tmp_path / "run" / "config.toml").unlink()  # an earlier version did not write it, or not all settings
    assert train(epochs=2, resume=True) == replace(started, epochs=2)
    with pytest.raises(ValueError, match="learning_rate was 0.002, now 0.003"):
        train(epochs=3, resume=True, learning_rate=3e-3)


def with_recipes(monkeypatch, **recipes):
    monkeypatch.setitem(SETS, "digits", replace(SETS["digits"], recipes=recipes))


def test_a_recipe_is_a_start_for_options(monkeypatch, tmp_path):
    tiny.use_few_digits(monkeypatch)
    best = {"coefficients": "uniform", "loss": "cross_entropy", "primary_rate": 0.1, "epochs": 5}
    with_recipes(monkeypatch, best=best)
    trained = Run.open(workflows.train("digits", tmp_path / "best", recipe="best", loggers=[], epochs=1, **TINY).run)
    settings = trained.settings
    assert (settings.epochs, settings.loss, settings.primary_rate) == (1, "cross_entropy", 0.1)
    assert trained.about.fixed_coefficients
    with_recipes(monkeypatch)  # the run is described without its recipe
    workflows.train(out=tmp_path / "again", config=trained.config_file, loggers=[])
    assert same(weights(trained.folder), weights(tmp_path / "again"))
    workflows.train(resume=trained.folder, loggers=[])
    paper = workflows.train("digits", tmp_path / "paper", recipe="paper", loggers=[], epochs=1, **TINY)
    assert (Run.open(paper.run).settings.loss, Run.open(paper.run).about.fixed_coefficients) == ("margin", False)


def test_a_recipe_may_start_from_a_run(monkeypatch, tmp_path):
    tiny.use_few_digits(monkeypatch)
    run, other = (
        workflows.train("digits", tmp_path / name, epochs=1, validation=12, loggers=[], **TINY).run
        for name in ("run", "other")
    )
    with_recipes(monkeypatch, best={"init": run, "coefficients": "uniform", "epochs": 1, "primary_rate": 0.1})
    calls: list[tuple[str, dict[str, Any]]] = [
        (run, {"data": "digits"}),
        (other, {"init": other}),
        (other, {"data": "digits", "init": other}),
    ]
    for init, options in calls:
        folder = tmp_path / f"best-{len(list(tmp_path.iterdir()))}"
        trained = Run.open(workflows.train(out=folder, recipe="best", loggers=[], threads=1, **options).run)
        assert trained.about.init == InitialWeights(init, weights_hash(Run.open(init).model()))
        assert (trained.settings.validation, trained.settings.primary_rate) == (12, 0.1)


def test_recipes_that_are_refused(monkeypatch, tmp_path):
    def load(*arguments, **options):
        raise AssertionError("no data is needed to refuse a recipe")

    monkeypatch.setattr("fastcaps.workflows.training.load", load)
    call: dict[str, Any]
    for call, message in (
        ({"data": "cifar10", "recipe": "beste"}, "recipe=beste: cifar10 has no such recipe, expected paper or best"),
        ({"data": "mnist", "recipe": "best"}, "recipe=best: mnist has no such recipe, expected paper"),
        ({"data": make_data(), "recipe": "best"}, "recipe=best: the data set has no such recipe, expected paper"),
        ({"data": "cifar10", "recipe": "best", "settings": TrainSettings()}, "settings= are all settings, recipe="),
        ({"data": "cifar10", "recipe": "best", "iterations": 2}, "iterations=2: with init= the network is that of"),
    ):
        with pytest.raises(ConfigError, match=message):
            workflows.train(out=tmp_path / "refused", loggers=[], **call)
    assert not (tmp_path / "refused").exists()


def test_recipes_hold_what_a_recipe_may_hold():
    known = {*TrainSettings().to_dict(), "init", "coefficients"}
    assert "best" in SETS["cifar10"].recipes
    for data in SETS.values():
        for recipe in data.recipes.values():
            assert recipe.keys() <= known
            TrainSettings(**{name: value for name, value in recipe.items() if name not in ("init", "coefficients")})


def test_distillation_takes_the_coefficients_of_the_run(run, tmp_path):
    options: dict[str, Any] = {"init": run.run, "distill": True, "routing_only": True, "epochs": 1, "threads": 1}
    workflows.accumulate(run.run, data=make_data(), threads=1)
    distilled = Run.open(workflows.train(make_data(), tmp_path / "distilled", loggers=[], **options).run)
    assert torch.equal(distilled.master().values, Run.open(run.run).master().values)
    assert distilled.settings.distill is True
    source = Run.open(run.run).master_file
    assert tomllib.loads(distilled.config_file.read_text())["run"]["coefficients"] == str(source)
    source.unlink()
    with pytest.raises(FileNotFoundError, match=f"{source} does not exist: make it with fastcaps accumulate {run.run}"):
        workflows.train(make_data(), tmp_path / "refused", loggers=[], **options)


@pytest.mark.slow
def test_all_settings_at_once(tmp_path, monkeypatch):
    tiny.use_few_digits(monkeypatch)
    network = {name: value for name, value in TINY.items() if name not in ("batch_size", "warmup")}
    settings = TrainSettings(epochs=1, batch_size=16, warmup=2, seed=3)
    result = workflows.train("digits", tmp_path / "run", settings=settings, loggers=[], **network)
    about = Run.open(result.run).about
    assert about.settings == settings
    tables = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert tables["data"] == {"name": "digits", "seed": 0}
    strided = make_data().config(**{**tables["network"], "stem": "strided"})
    assert make_data().config(**tables["network"]) == strided


class _Interrupt(Logger):
    """Presses Ctrl-C after so many steps."""

    def __init__(self, after: int) -> None:
        self.left = after

    def step(self, report: Report) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_an_interrupted_run_needs_nothing_but_its_folder(tmp_path, monkeypatch):
    tiny.use_few_digits(monkeypatch)
    with pytest.raises(TrainingInterrupted, match="interrupted: workflows.train.resume='.*stopped'. resumes the run"):
        workflows.train("digits", tmp_path / "stopped", loggers=[_Interrupt(13)], **TINY, epochs=2)
    assert json.loads((tmp_path / "stopped" / "run.json").read_text())["state"] == "interrupted"
    workflows.train(resume=tmp_path / "stopped", loggers=[])
    workflows.train("digits", tmp_path / "whole", loggers=[], **TINY, epochs=2)
    assert same(weights(tmp_path / "stopped"), weights(tmp_path / "whole"))
    assert Run.open(tmp_path / "stopped").about.state == "finished"


@pytest.mark.slow
def test_a_run_is_extended(tmp_path):
    folder = tmp_path / "run"
    options: dict[str, Any] = {**TINY, "decay": "cosine", "loggers": []}
    workflows.train(make_data(), folder, epochs=2, **options)
    workflows.accumulate(folder, data=make_data(), threads=1)
    longer = workflows.train(make_data(), resume=folder, epochs=4, loggers=[])
    assert [metrics.epoch for metrics in longer.history] == [1, 2, 3, 4]
    whole = workflows.train(make_data(), tmp_path / "whole", epochs=4, **options)
    rates = [[metrics.learning_rate for metrics in result.history[2:]] for result in (longer, whole)]
    assert rates[0] == rates[1]  # the schedule of the new number of epochs
    run = Run.open(folder)
    assert run.about.extended == (Extension(epochs=2, new_epochs=4, after_epoch=2),)
    assert not run.master_file.exists()  # of other weights
    assert not list(run.fast_folder.glob("*"))
    with pytest.raises(ValueError, match="epochs was 4, now 3"):
        workflows.train(make_data(), resume=folder, epochs=3, loggers=[])
    run.config_file.unlink()
    with pytest.raises(FileNotFoundError, match="config.toml does not exist: resume .* with Trainer.fit"):
        workflows.train(make_data(), resume=folder)


def test_the_state_of_a_run_that_was_killed(run):
    killed = Run.open(run.run)
    killed.write_about(replace(killed.about, state="running"))
    with killed.locked():
        assert Run.open(run.run).about.state == "running"
    assert Run.open(run.run).about.state == "interrupted"
    assert json.loads(killed.about_file.read_text())["state"] == "interrupted"


def test_the_state_of_a_run_that_failed(tmp_path):
    class Failing(Logger):
        def step(self, report: Report) -> None:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        workflows.train(make_data(), tmp_path / "run", **TINY, epochs=1, loggers=[Failing()])
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "failed"


def test_a_run_on_white_paper_of_an_earlier_version_is_resumed(monkeypatch, tmp_path):
    for name in ("a", "b"):
        for k in range(10):
            path = tmp_path / "images" / name / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((20, 20), 240 + k, np.uint8)).save(path)
    options: dict[str, Any] = {**TINY, "loggers": [], "batch_size": 8}
    with monkeypatch.context() as patch:
        patch.setattr("fastcaps.data.folder.measure_background", lambda train: 0.0)  # it was shifted into black
        run = workflows.train(tmp_path / "images", tmp_path / "run", epochs=1, **options).run
    assert Run.open(run).about.data.augmentation["fill"] == "zero"
    assert load(tmp_path / "images").augmentation.fill == "edge"
    workflows.train(resume=run, epochs=2, loggers=[])
    assert Run.open(run).about.data.augmentation["fill"] == "zero"
