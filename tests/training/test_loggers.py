"""Loggers: what they are told, by whom, and how one of one's own is chosen by name."""

import json
import os
import subprocess
import sys

import pytest
from tests.training.conftest import make_data, small_config
from tests.training.test_trainer import Killed, trainer

from fastcaps import CapsNet
from fastcaps.training import EpochMetrics, Logger, Run, Trainer, TrainSettings

SHORT = TrainSettings(epochs=2, batch_size=16, warmup=5)


class Own(Logger):
    """As in the documentation: ten lines."""

    name = "own"
    lines: list[str]

    def start(self, run, history):
        Own.lines = [f"start {run.folder.name} {run.about.settings.epochs} {len(history)}"]

    def step(self, report):
        self.lines.append(f"step {report.epoch}.{report.step} of {report.epochs}.{report.steps}")

    def epoch(self, metrics):
        self.lines.append(f"epoch {metrics.epoch} {sorted(metrics.to_dict())}")

    def finish(self):
        self.lines.append("finish")


def test_a_logger_of_ones_own(data, config, tmp_path):
    Trainer(CapsNet(config), data, SHORT, tmp_path / "run", loggers=["own"]).fit()
    names = ["accuracy", "epoch", "learning_rate", "loss", "routing", "seconds"]
    assert Own.lines == [
        "start run 2 0",
        *(f"step 1.{step} of 2.3" for step in (1, 2, 3)),
        f"epoch 1 {names}",
        *(f"step 2.{step} of 2.3" for step in (1, 2, 3)),
        f"epoch 2 {names}",
        "finish",
    ]
    assert len(Run.open(tmp_path / "run").metrics()) == 2  # always written


def test_a_logger_that_is_unknown(data, config, tmp_path):
    with pytest.raises(ValueError, match="logger is 'other', expected one of jsonl, tensorboard, console"):
        Trainer(CapsNet(config), data, SHORT, tmp_path, loggers=["other"])


def test_loggers_finish_when_the_run_dies_and_know_what_was_done_when_it_resumes(data, config, tmp_path):
    def die(report):
        if (report.epoch, report.step) == (2, 1):
            raise Killed

    with pytest.raises(Killed):
        trainer(data, config, tmp_path, die, loggers=["own"]).fit()
    assert Own.lines[-2:] == [f"epoch 1 {sorted(Run.open(tmp_path).metrics()[0].to_dict())}", "finish"]
    trainer(data, config, tmp_path, loggers=["own"]).fit(resume=True)
    assert Own.lines[:2] == [f"start {tmp_path.name} 3 1", "step 2.1 of 3.3"]


@pytest.mark.slow
def test_lines_of_epochs_that_are_repeated_are_replaced(data, config, tmp_path):
    def die(report):
        if (report.epoch, report.step) == (2, 1):
            raise Killed

    with pytest.raises(Killed):
        trainer(data, config, tmp_path, die).fit()
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text() + '{"epoch": 2, "loss": 9}\n')  # as if it had been killed before the checkpoint
    history = trainer(data, config, tmp_path).fit(resume=True)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [row.to_dict() for row in history]


def test_progress_is_shown_by_default(data, config, tmp_path, capsys):
    Trainer(CapsNet(config), data, SHORT, tmp_path / "mine").fit()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" loss")[0] for line in lines] == ["mine epoch 1/2 step 3/3", "mine epoch 2/2 step 3/3"]
    Trainer(CapsNet(config), data, SHORT, tmp_path / "quiet", loggers=[]).fit()
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_logger_from_a_plugin(tmp_path):
    (tmp_path / "plugin.py").write_text(
        "from fastcaps.training import Logger\n"
        "class Printing(Logger):\n"
        "    name = 'printing'\n"
        "    def epoch(self, metrics):\n"
        "        print('epoch', metrics.epoch)\n"
    )
    program = (
        "from fastcaps.training.loggers import get_logger\n"
        "from fastcaps.training import EpochMetrics\n"
        "get_logger('printing').epoch(EpochMetrics(epoch=3, loss=1, accuracy=1, learning_rate=1, seconds=1))"
    )
    environment = {"FASTCAPS_PLUGINS": str(tmp_path / "plugin.py")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | environment, check=False
    )
    assert (done.stdout, done.stderr) == ("epoch 3\n", "")


def test_metrics_as_json_and_back():
    row = {"epoch": 1, "routing": "fixed", "loss": 0.5, "accuracy": 0.25, "learning_rate": 0.1, "test_accuracy": 0.3}
    row |= {"fast_test_accuracy": 0.2, "seconds": 1.5}
    metrics = EpochMetrics.from_dict(row)
    assert list(metrics.to_dict().items()) == list(row.items())
    assert metrics.measures == {"fast_test_accuracy": 0.2}
    with pytest.warns(DeprecationWarning, match=r'EpochMetrics\["loss"\]: use EpochMetrics.loss'):
        assert metrics["loss"] == 0.5


def test_former_arguments(tmp_path):
    seen: list[int] = []
    with pytest.warns(DeprecationWarning, match="Trainer") as warned:
        Trainer(  # type: ignore[call-arg]
            CapsNet(small_config()),
            make_data(),
            SHORT,
            tmp_path,
            observe=lambda report: seen.append(report.step),
            tensorboard=True,
        ).fit()
    assert [str(entry.message).split(";")[0] for entry in warned] == [
        "Trainer(observe=…): use loggers=[CallbackLogger(observe)]",
        'Trainer(tensorboard=…): use loggers=["tensorboard"]',
    ]
    assert seen == [1, 2, 3, 1, 2, 3]
    assert list((tmp_path / "tensorboard").iterdir())


def test_former_settings():
    with pytest.warns(DeprecationWarning, match=r"TrainSettings\(refresh=…\): use refresh_every"):
        settings = TrainSettings(refresh=2)  # type: ignore[call-arg]
    assert settings.refresh_every == 2
    with pytest.warns(DeprecationWarning, match="TrainSettings.afresh: use reinit"):
        assert settings.afresh is False  # type: ignore[attr-defined]
    assert TrainSettings.from_dict({"afresh": True, "dynamic_epochs": 1}).reinit


def test_a_measure_cannot_replace_a_metric():
    with pytest.raises(ValueError, match="measure returned accuracy, loss, which the trainer measures: choose other"):
        EpochMetrics(
            epoch=1, loss=1.0, accuracy=0.5, learning_rate=1e-3, measures={"loss": 0, "accuracy": 1}, seconds=1
        )
