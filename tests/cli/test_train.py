"""`fastcaps train`: options from fields, groups in the help, config files, former options."""

import json
import re
import signal
import tomllib
from typing import Any

import pytest
import safetensors.torch
from tests.cli.commands import SMALL, invoke
from tests.data import tiny
from tests.ranks import command

from fastcaps.cli._options import in_words_of_options
from fastcaps.training import Run

TINY = [f"--set={change}" for change in ("stem_channels=6", "capsule_types=2", "class_dimension=6", "decoder=[8]")]
TRAIN = ["train", "--data", "digits", "--epochs", 1, "--threads", 1, "--warmup", 2, *TINY]


@pytest.fixture(autouse=True)
def _few_digits(monkeypatch):
    tiny.use_few_digits(monkeypatch)


def weights(run):
    return {
        name: value.tolist() for name, value in safetensors.torch.load_file(run / "model/model.safetensors").items()
    }


def test_help_has_groups_and_no_former_names():
    text = invoke("train", "--help").stdout
    sections = [line.removesuffix(":") for line in text.splitlines() if line and not line.startswith(" ")]
    assert sections[1:] == ["Run", "Data", "Network", "Training", "Loss", "Fixed coefficients", "Options"]
    words = " ".join(text.split())
    assert "--learning-rate, --lr" in words
    assert "Highest learning rate of Adam (default: 0.001, lower for small folders)." in words
    assert "exponential|cosine" in words
    assert "--reinit / --no-reinit" in words
    for former in ("--afresh", "--refresh ", "--network", "--master", "--tensorboard", "--channels"):
        assert former not in text


@pytest.mark.slow
def test_a_run_is_repeated_from_its_config_file(tmp_path, kept_memory):
    one, two, three = tmp_path / "one", tmp_path / "two", tmp_path / "three"
    changes = ("--lr", 0.002, "--primary-rate", 0.5, "--whiten-stem", "--normalization", "softmax", "--validation", 20)
    invoke(*TRAIN, *changes, "--out", one)
    assert kept_memory == ["reuse_memory"]
    config = tomllib.loads((one / "config.toml").read_text())
    settings = json.loads((one / "run.json").read_text())["settings"]
    assert config["training"] == {name: value for name, value in settings.items() if value is not None}
    given = {"learning_rate": 0.002, "primary_rate": 0.5, "validation": 20, "whiten_stem": True}
    assert {name: config["training"][name] for name in given} == given
    assert config["data"] == {"name": "digits", "seed": 0}
    assert config["network"]["normalization"] == "softmax"
    assert config["run"] == {
        "out": str(one), "loggers": [], "convolution": "auto", "device": "cpu", "threads": 1
    }  # fmt: skip
    repeated = json.loads(invoke("train", "--config", one / "config.toml", "--out", two, "--json").stdout)
    assert weights(one) == weights(two)
    assert (two / "config.toml").read_text() == (one / "config.toml").read_text().replace(str(one), str(two))
    invoke("train", "--config", one / "config.toml", "--out", three, "--seed", 1, "--logger", "tensorboard")
    assert weights(one) != weights(three)
    assert list((three / "tensorboard").iterdir())
    assert repeated["selected"] == repeated["history"][0]


def test_a_recipe_that_a_set_does_not_have(tmp_path):
    error = invoke("train", "--data", "mnist", "--recipe", "best", "--out", tmp_path / "x", code=2).stderr
    assert "--recipe best: mnist has no such recipe, expected paper" in " ".join(error.split())


def test_errors_of_config_files_are_one_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[training]\nrefresh_evry = 3\n")
    error = invoke("train", "--config", path, "--out", tmp_path / "x", code=1).stderr
    assert error == f"error: {path}: [training] has no key 'refresh_evry': did you mean 'refresh_every'?\n"
    path.write_text('[data]\nname = "digits"\n')
    assert "give --out, the run folder" in invoke("train", "--config", path, code=2).stderr
    assert "missing.toml" in invoke("train", "--config", "missing.toml", code=1).stderr


@pytest.mark.slow
def test_former_options(tmp_path):
    former: list[Any] = [option.replace("--set=", "--network=") for option in TINY]
    former += ["--dynamic-epochs", 1, "--afresh", "--refresh", 1]
    done = invoke(
        "train", "--data", "digits", "--epochs", 2, "--threads", 1, *former, "--tensorboard", "--out", tmp_path / "run"
    )
    for old, new in (
        ("--afresh", "--reinit"),
        ("--refresh", "--refresh-every"),
        ("--network", "--set"),
        ("--tensorboard", "--logger tensorboard"),
    ):
        assert f"warning: {old} is deprecated, use {new}\n" in done.stderr
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (about["settings"]["reinit"], about["settings"]["refresh_every"]) == (True, 1)
    assert about["config"]["decoder"] == [8]
    refused = invoke("train", "--data", "digits", "--master", "none", "--out", tmp_path / "x", code=1)
    assert "warning: --master is deprecated, use --coefficients\n" in refused.stderr
    assert "none does not exist" in refused.stderr


@pytest.mark.parametrize(
    ("argument", "option"),
    [
        ("pass resume=True to continue it", "pass --resume to continue it"),
        ("lower learning_rate=0.003 or raise warmup=5, and", "lower --learning-rate 0.003 or raise --warmup 5, and"),
        ("give data=, or init= with a run", "give --data, or --init with a run"),
        ("the loss became nan in epoch 3", "the loss became nan in epoch 3"),
        ("dynamic_epochs is 4, expected", "--dynamic-epochs is 4, expected"),
        ("seed=1: /a/seed=2/data_dir and 'data_dir'", "--seed 1: /a/seed=2/data_dir and 'data_dir'"),
        ("stem_kernel=3 is for all", "stem_kernel=3 is for all"),
        ("seed is -1, expected", "--seed is -1, expected"),
        ("the data is old, the seed is -1, expected", "the data is old, the seed is -1, expected"),
        ("data is no run: it has no run.json", "data is no run: it has no run.json"),
        ("data is a folder, expected a file", "data is a folder, expected a file"),
        ("take init='runs/a'", "take --init runs/a"),
        ("resume it with Trainer.fit(resume=True)", "resume it with Trainer.fit(resume=True)"),
        ("with workflows.compress(resume=True)", "with fastcaps compress --resume"),
        ("workflows.export('a', 'b.onnx', max_drop=1), or", "fastcaps export a b.onnx --max-drop 1, or"),
    ],
)
def test_errors_speak_of_options(argument, option):
    names = [
        "resume",
        "learning_rate",
        "warmup",
        "data",
        "init",
        "loss",
        "epochs",
        "dynamic_epochs",
        "seed",
        "data_dir",
    ]
    assert in_words_of_options(argument, {name: f"--{name.replace('_', '-')}" for name in names}) == option


@pytest.mark.parametrize(("value", "option"), [("False", "--no-isolated"), ("True", "--isolated")])
def test_errors_name_one_option_of_a_pair(value, option):
    words = in_words_of_options(f"measure with isolated={value}", {"isolated": "--isolated/--no-isolated"})
    assert words == f"measure with {option}"


def test_a_compressed_run_is_resumed_by_another_command():
    refused = invoke("train", "--resume", "mnist-small", code=1).stderr
    assert refused.endswith("does not exist: resume the run as it was started, with fastcaps compress --resume\n")


@pytest.mark.slow
def test_a_run_is_not_overwritten_but_resumed(images, tmp_path):
    run = tmp_path / "run"
    invoke("train", "--data", images, "--out", run, *SMALL)
    refused = invoke("train", "--data", images, "--out", run, *SMALL, code=1)
    assert f"error: {run} holds a run already: pass --resume to continue it, or choose another folder" in refused.stderr
    done = json.loads(invoke("train", "--data", images, "--out", run, "--resume", "--json", *SMALL).stdout)
    assert len(done["history"]) == 2
    longer = invoke("train", "--resume", run, "--epochs", 3)
    assert len(Run.open(run).metrics()) == 3
    assert "photos: 24 training and 9 test images of 3×40×32, 3 classes; 192 lower capsules, " in longer.stderr
    assert re.search(r"photos: about 0:00:\d\d per epoch, 0:00:\d\d for what is left of 3", longer.stderr)
    assert "was given without --resume" in invoke("train", run, code=2).stderr
    assert "leave --out and --config out" in invoke("train", "--resume", run, "--out", run, code=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "nothing", "--out", "x"], "mnist"),
        (["train", "--data", "digits", "--out", "x", "--device", "meta"], "--device meta can't be used here"),
        (["train", "--data", "digits", "--out", "x", "--seed", "99999999999999999999"], "seed is 9999999999999999999"),
        (["train", "--data", "digits", "--out", "x", "--epochs", "0"], "epochs is 0, expected a whole number"),
        (["train", "--data", "digits", "--out", "x", "--validation", "1.0"], "is 1.0, expected a fraction below 1, or"),
        (["train", "--data", "digits", "--out", "x", "--validation", "1.7"], "is 1.7, expected a fraction below 1, or"),
        (["train", "--data", "digits", "--out", "x", "--validation", "inf"], "validation is inf, expected a fraction"),
        (
            ["train", "--data", "digits", "--out", "x", "--set", "stem_channels=1000000000000"],
            "needs 79,039,484.3 GiB: choose fewer classes, smaller images or fewer capsules",
        ),
        (["train", "--data", "digits", "--out", "x", "--device", "gpu"], "--device gpu can't be used here"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments, code=1)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "digits", "--out", "x", "--size", "40"], "--size 40: expected height and width such"),
        (["train", "--data", "digits", "--out", "x", "--normalization", "max"], "normalization is 'max', expected one"),
        (["train", "--data", "digits", "--out", "x", "--set", "stem"], "--set stem: expected name=value"),
        (["train", "--data", "digits", "--out", "x", "--set", "height=8"], "--set height=8: expected name=val"),
        (["train", "--data", "digits", "--out", "x", "--convolution", "fast"], "fast"),
        (["train", "--data", "digits"], "--out"),
    ],
)
def test_wrong_use_ends_with_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in invoke(*arguments, code=2).stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_ctrl_c_saves_and_exits_with_130(images, tmp_path):
    process = command("train", "--data", images, "--out", tmp_path / "run", *SMALL, "--epochs", 100000)
    metrics = tmp_path / "run" / "metrics.jsonl"
    process.wait_until(lambda: metrics.is_file() and metrics.read_text() != "")
    process.send_signal(signal.SIGINT)
    code, _, err = process.wait()
    assert code == 130
    assert err.splitlines()[-1] == f"interrupted; resume with: fastcaps train --resume {tmp_path / 'run'}"
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
