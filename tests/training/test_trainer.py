"""Training: it learns, it resumes bit for bit, it stops where nothing can be gained."""

import copy
import json
import math
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from tests.kills import Killed as KilledWriting
from tests.kills import killed_before_write
from tests.ranks import Child
from tests.training.conftest import make_data, small_config

import fastcaps
from fastcaps import CapsNet, analysis
from fastcaps.analysis.training_pass import collect
from fastcaps.data import Augmentation
from fastcaps.nn.whitening import whiten_stem
from fastcaps.training import CallbackLogger, Report, Run, Trainer, TrainSettings, optimization
from fastcaps.training.accuracy import count_correct
from fastcaps.training.description import InitialWeights
from fastcaps.training.interrupts import stop_between_steps


def trainer(data, config, out, observe=lambda report: None, about=None, loggers=(), measure=None, **changes):
    settings = TrainSettings(**({"epochs": 3, "batch_size": 16, "warmup": 5, "learning_rate": 3e-3} | changes))
    torch.manual_seed(settings.seed)
    options = {} if measure is None else {"measure": measure}
    loggers = [CallbackLogger(observe), *loggers]
    return Trainer(CapsNet(config), data, settings, out, about=about, loggers=loggers, **options)


def weights(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def same(one, other):
    assert one.keys() == other.keys()
    return all((one[name] == other[name]).all() for name in one)


def untimed(history):
    return [replace(metrics, seconds=0) for metrics in history]


def test_only_one_process_trains_into_a_folder(data, config, tmp_path):
    message = (
        f"another process is writing into {tmp_path}: wait until it has finished, or choose another folder "
        f"(if none is, remove {tmp_path / '.lock'})"
    )

    def a_second(report):
        for resume in (True, False):
            with pytest.raises(ValueError, match=re.escape(message)):
                trainer(data, config, tmp_path, epochs=1).fit(resume=resume)

    trainer(data, config, tmp_path, a_second, epochs=1).fit()
    assert trainer(data, config, tmp_path, epochs=1).fit(resume=True) == Run.open(tmp_path).metrics()


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"machine": "my laptop", "rounded": True}, "about has machine, rounded, which the trainer itself writes"),
        ({"fast_every": "2"}, "about is damaged: fast_every: expected int | null, got str"),
        ({"init": {"run": "a"}}, "about is damaged: init: object missing required field weights"),
    ],
)
def test_entries_for_run_json_are_checked_at_once(data, config, tmp_path, about, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        trainer(data, config, tmp_path, about=about)


def test_a_measure_that_is_not_a_number_and_own_entries(data, config, tmp_path):
    def measure(model, epoch):
        return {"own": math.nan}

    about = {"command": "train", "init": {"run": "a", "weights": "b"}, "own": {"entry": Path("x")}}
    options = {"about": about, "measure": measure, "loggers": ["tensorboard"]}
    trainer(data, config, tmp_path, epochs=1, **options).fit()
    history = trainer(data, config, tmp_path, epochs=2, **options).fit(resume=True)
    assert [math.isnan(metrics.measures["own"]) for metrics in Run.open(tmp_path).metrics()] == [True, True]
    assert len(history) == 2
    stored = Run.open(tmp_path).about
    assert (stored.command, stored.init, stored.more) == ("train", InitialWeights("a", "b"), {"own": {"entry": "x"}})


@pytest.mark.parametrize("primary_rate", [1.0, 0.1])
def test_primary_capsules_have_a_learning_rate_of_their_own(data, config, tmp_path, primary_rate):
    states: list[dict[str, torch.Tensor]] = []

    def keep_weights(report=None):
        states.append({name: weight.detach().clone() for name, weight in run.model.named_parameters()})

    settings = {"epochs": 1, "learning_rate": 1e-3, "warmup": 0, "decay": "linear"}
    run = trainer(data, config, tmp_path, keep_weights, primary_rate=primary_rate, **settings)
    keep_weights()
    run.fit()
    # The first step of Adam moves a weight by the learning rate.
    moved = {name: float((weight - states[0][name]).abs().max()) for name, weight in states[1].items()}
    rates = {"stem.conv.weight": 1e-3, "primary.conv.weight": 1e-3 * primary_rate, "routing.weight": 1e-3}
    assert {name: moved[name] for name in rates} == pytest.approx(rates, rel=0.05)


@pytest.mark.parametrize(("validation", "images"), [(0, 10), (36, 6)])
def test_the_stem_starts_from_patches_of_training_images(data, config, tmp_path, monkeypatch, validation, images):
    monkeypatch.setattr("fastcaps.training.trainer._WHITENING_IMAGES", 10)
    settings = {"whiten_stem": True, "validation": validation, "averaging": 0.9, "learning_rate": 1e-12, "epochs": 1}
    run = trainer(data, config, tmp_path, **settings)
    drawn = run.model.stem.conv.weight.detach().clone()
    expected = copy.deepcopy(run.model.stem)
    run.fit()
    train = data.validation_split(validation, 0)[0] if validation else data.train
    indices = torch.arange(0, len(train), 5 if not validation else 2)  # held-out images have no part in it
    assert len(indices) == images
    whiten_stem(expected, data.augmentation.test_view(train.images(indices)))
    torch.testing.assert_close(run.model.stem.conv.weight, expected.conv.weight, rtol=0, atol=1e-9)
    torch.testing.assert_close(Run.open(tmp_path).model().stem.conv.weight, expected.conv.weight, rtol=0, atol=1e-9)
    assert not torch.allclose(drawn, expected.conv.weight)


def test_a_resumed_run_does_not_start_from_patches_again(data, config, tmp_path, monkeypatch):
    trainer(data, config, tmp_path, whiten_stem=True, epochs=1).fit()
    monkeypatch.setattr("fastcaps.training.optimization.whiten_stem", lambda stem, images: pytest.fail("started again"))
    trainer(data, config, tmp_path, whiten_stem=True, epochs=2).fit(resume=True)


@pytest.mark.slow
def test_it_learns_and_leaves_a_run_folder(data, config, tmp_path):
    reports: list[Report] = []
    history = trainer(data, config, tmp_path, reports.append, epochs=12, test_every=12, about={"command": "x"}).fit()
    assert history[-1].loss < 0.5 * history[0].loss
    assert history[-1].test_accuracy > 0.9
    assert [row.epoch for row in history] == list(range(1, 13))
    assert history[0].test_accuracy is None
    assert list(history[0].to_dict()) == ["epoch", "routing", "loss", "accuracy", "learning_rate", "seconds"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock",
        "checkpoint.safetensors",
        "metrics.jsonl",
        "model",
        "run.json",
    ]
    run = Run.open(tmp_path)
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert rows == [metrics.to_dict() for metrics in history]
    assert run.metrics() == history
    assert (run.about.state, run.about.command, run.about.data.train) == ("finished", "x", 48)
    assert run.about.settings.epochs == 12
    with pytest.raises(
        ValueError, match="with patterns, a data set made in Python, .* pass the same data set as data="
    ):
        run.data()
    assert run.data(data=data) is data
    with pytest.warns(
        UserWarning, match="the images of patterns are not those of the training, but others of the same"
    ):
        run.data(data=make_data(seed=1))
    model = run.model()
    assert model.config == config
    assert model.provenance["data"] == "patterns"
    assert count_correct(model, data.test, data.augmentation.test_view) / 30 == history[-1].test_accuracy
    assert len(reports) == 36
    assert (reports[-1].epoch, reports[-1].epochs, reports[-1].step, reports[-1].steps) == (12, 12, 3, 3)
    assert reports[-1].seconds_left == 0
    assert reports[0].images_per_second > 0


@pytest.mark.slow
def test_two_runs_are_the_same_and_seeds_differ(data, config, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        trainer(data, config, tmp_path / name, seed=seed).fit()
    assert same(weights(tmp_path / "a/model"), weights(tmp_path / "b/model"))
    assert not same(weights(tmp_path / "a/model"), weights(tmp_path / "c/model"))


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with validation images that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    trainer(make_data(), small_config(), folder, validation=12).fit()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_run_that_died_anywhere_ends_with_the_same_weights(whole, data, config, tmp_path, step, every):
    seen = 0

    def die(report):
        nonlocal seen
        seen += 1
        if seen == step:
            raise Killed

    with pytest.raises(Killed):
        trainer(data, config, tmp_path / "cut", die, validation=12, checkpoint_every=every).fit()
    history = trainer(data, config, tmp_path / "cut", validation=12, checkpoint_every=every).fit(resume=True)
    for part in ("model", "best"):
        assert same(weights(whole / part), weights(tmp_path / "cut" / part))
    assert untimed(history) == untimed(Run.open(whole).metrics())


def train_and_tell(folder, resume):
    """Sixty steps with a checkpoint after each; prints every step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = TrainSettings(epochs=20, batch_size=16, warmup=5, checkpoint_every=1)
    loggers = [CallbackLogger(lambda report: print(report.epoch, report.step, flush=True))]
    Trainer(CapsNet(small_config()), make_data(), settings, folder, loggers=loggers).fit(resume=resume)


@pytest.mark.slow
def test_sigkill_at_any_moment_loses_nothing(tmp_path):
    """Killed again and again, mostly while it writes, since it writes after each step."""
    assert Child(train_and_tell, tmp_path / "whole", False).wait()[::2] == (0, "")
    for number, lines in enumerate((7, 8, 10, 7, 9)):
        process = Child(train_and_tell, tmp_path / "killed", number > 0)
        for _ in range(lines):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        assert process.wait()[0] == -signal.SIGKILL
    assert Child(train_and_tell, tmp_path / "killed", True).wait()[::2] == (0, "")
    assert same(weights(tmp_path / "whole/model"), weights(tmp_path / "killed/model"))
    # Left-overs without a marker are removed when they are old.
    for path in (tmp_path / "killed").glob(".*.part"):
        assert {entry.name for entry in path.iterdir()} <= {"lock", "marker.new"}
        os.utime(path, (0, 0))
    Run.open(tmp_path / "killed")
    assert not list((tmp_path / "killed").glob(".*.part"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_the_step_it_was_at(tmp_path, number):
    process = Child(train_and_tell, tmp_path / "run", False)
    for _ in range(9):
        process.stdout.readline()
    last = process.stdout.readline()
    process.send_signal(number)
    code, out, err = process.wait()
    assert code == 1
    assert "TrainingInterrupted" in err
    assert "resumes the run" in err
    run = Run.open(tmp_path / "run")
    assert run.about.state == "interrupted"
    with pytest.raises(FileNotFoundError, match="model does not exist: the run is not finished, resume its training"):
        run.model()
    resumed = Child(train_and_tell, tmp_path / "run", True)
    first = resumed.stdout.readline()
    resumed.send_signal(signal.SIGKILL)
    resumed.wait()
    before, after = ([int(number) for number in line.split()] for line in ((last + out).splitlines()[-1], first))
    assert 3 * after[0] + after[1] == 3 * before[0] + before[1] + 1


def test_only_a_second_ctrl_c_is_granted_at_once():
    with stop_between_steps() as stopped:
        for _ in range(2):  # as a batch system sends it to all, and a launcher sends it on
            signal.raise_signal(signal.SIGTERM)
        assert stopped.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("validation", [0, 12])
def test_what_is_stopped_while_it_measures_has_its_epoch(data, config, tmp_path, validation):
    whole = trainer(data, config, tmp_path / "whole", validation=validation, test_every=1)
    whole.fit()

    def measuring(model, epoch):
        raise Killed

    with pytest.raises(Killed):
        trainer(data, config, tmp_path / "killed", measure=measuring, validation=validation, test_every=1).fit()
    resumed = trainer(data, config, tmp_path / "killed", validation=validation, test_every=1)
    resumed.fit(resume=True)
    assert same(weights(tmp_path / "whole/model"), weights(tmp_path / "killed/model"))
    assert resumed.progress.step == whole.progress.step == 0
    assert untimed(resumed.progress.history) == untimed(whole.progress.history)


@pytest.mark.slow
@pytest.mark.parametrize("write", [1, 2, 3, 4, 5, 7, 9])
def test_a_run_that_died_before_a_write_resumes(whole, data, config, tmp_path, write):
    """Before the first checkpoint, between the best weights and the checkpoint, before the result: anywhere."""
    with pytest.raises(KilledWriting), killed_before_write(write):
        trainer(data, config, tmp_path / "cut", validation=12).fit()
    started = (tmp_path / "cut" / "checkpoint.safetensors").exists()
    history = trainer(data, config, tmp_path / "cut", validation=12).fit(resume=started)
    assert same(weights(whole / "model"), weights(tmp_path / "cut/model"))
    assert untimed(history) == untimed(Run.open(whole).metrics())


@pytest.mark.slow
def test_resuming_is_exact_with_the_fast_convolution(data, config, tmp_path):
    def prepared(out, observe=lambda report: None):
        run = trainer(data, config, out, observe)
        run.model.primary.convolution = "winograd"
        return run

    prepared(tmp_path / "whole").fit()

    def die(report):
        if (report.epoch, report.step) == (2, 2):
            raise Killed

    with pytest.raises(Killed):
        prepared(tmp_path / "cut", die).fit()
    prepared(tmp_path / "cut").fit(resume=True)
    assert same(weights(tmp_path / "whole/model"), weights(tmp_path / "cut/model"))
    assert Run.open(tmp_path / "cut").about.convolution == "winograd"


@pytest.mark.parametrize("convolution", ["winograd", "direct"])
def test_the_memory_order_of_a_kernel_in_training_changes_no_weight(data, config, tmp_path, monkeypatch, convolution):
    ordered = set()

    def train(out):
        run = trainer(data, config, out, lambda report: ordered.add(is_ordered(kernel())), averaging=0.9)
        run.model.primary.convolution = convolution

        def kernel():
            return run.model.primary.conv.weight

        run.fit()
        assert kernel().is_contiguous()
        return weights(out / "model")

    def is_ordered(kernel):
        return kernel.permute(2, 3, 0, 1).is_contiguous()

    in_order = train(tmp_path / "in order")
    assert ordered == {convolution == "winograd"}
    monkeypatch.setattr(optimization, "order_for_training", torch.Tensor.contiguous)
    as_made = train(tmp_path / "as made")
    assert same(in_order, as_made)


def test_with_a_validation_split_the_best_is_kept(data, config, tmp_path):
    run = trainer(data, config, tmp_path, validation=0.25, epochs=4)
    history = run.fit()
    assert (len(run.schedule.train), len(run.validation)) == (36, 12)
    best = max(row.validation_accuracy for row in history)
    assert same(weights(tmp_path / "model"), weights(tmp_path / "best"))
    model = Run.open(tmp_path).model()
    assert count_correct(model, run.validation, Augmentation().test_view) / 12 == best
    assert model.provenance["epoch"]["validation_accuracy"] == best
    assert (Run.open(tmp_path).training_part(data).labels == run.schedule.train.labels).all()


def test_tensorboard_events_when_asked(data, config, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def die(report):
        if (report.epoch, report.step) == (3, 1):
            raise Killed

    with pytest.raises(Killed):
        trainer(data, config, tmp_path, die, loggers=["tensorboard"]).fit()
    history = trainer(data, config, tmp_path, loggers=["tensorboard"]).fit(resume=True)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx([row.loss for row in history])


def test_broken_weights_are_never_kept(data, config, tmp_path):
    run = trainer(data, config, tmp_path)
    with torch.no_grad():
        run.model.routing.weight[0, 0, 0, 0] = torch.nan
    message = r"the weights routing.weight are not finite any more in epoch 1, step 0: lower learning_rate=0.003"
    with pytest.raises(ValueError, match=message):
        run.fit()
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_a_loss_that_is_not_a_number_stops_the_run(data, config, tmp_path):
    def spoil(report):
        with torch.no_grad():
            run.model.routing.weight[0, 0, 0, 0] = torch.nan

    run = trainer(data, config, tmp_path, spoil)
    message = r"the loss became nan in epoch 1, step 2: lower learning_rate=0.003 or raise warmup=5, and start"
    with pytest.raises(ValueError, match=message):
        run.fit()
    with safetensors.safe_open(tmp_path / "checkpoint.safetensors", framework="pt") as file:
        assert file.get_tensor("model.routing.weight").isfinite().all()


def test_weights_that_break_in_the_last_step_are_no_result(data, config, tmp_path):
    def spoil(report):
        if (report.epoch, report.step) == (3, 3):
            with torch.no_grad():
                run.model.stem.conv.weight[0] = torch.nan

    run = trainer(data, config, tmp_path, spoil)
    with pytest.raises(ValueError, match="the weights stem.conv.weight are not finite any more in epoch 3, step 3"):
        run.fit()
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_capsules_that_saturate_stop_the_run(data, config, tmp_path):
    run = trainer(data, config, tmp_path, epochs=30, learning_rate=1e-9)
    with torch.no_grad():
        run.model.routing.weight.mul_(1e4)
    with pytest.raises(
        ValueError,
        match=r"saturated in epoch 17, step 2: their mean length was 1.000, above 0.99 for 50 steps, where nothing",
    ):
        run.fit()


def test_a_folder_that_holds_a_run_is_not_overwritten(data, config, tmp_path):
    trainer(data, config, tmp_path).fit()
    before = weights(tmp_path / "model")
    with pytest.raises(
        ValueError, match="holds a run already: pass resume=True to continue it, or choose another folder"
    ):
        trainer(data, config, tmp_path, seed=3).fit()
    assert same(before, weights(tmp_path / "model"))


def test_only_the_same_run_is_resumed(data, config, tmp_path):
    trainer(data, config, tmp_path).fit()
    message = r"checkpoint.safetensors is of another run \(batch_size was 16, now 8; epochs was 3, now 2\): resume with"
    with pytest.raises(ValueError, match=message):
        trainer(data, config, tmp_path, batch_size=8, epochs=2).fit(resume=True)
    with pytest.raises(ValueError, match=r"is of another run \(data was [0-9a-f]{64}, now [0-9a-f]{64}\)"):
        trainer(make_data(seed=1), config, tmp_path).fit(resume=True)
    other = trainer(data, config, tmp_path)
    other.model.primary.convolution = "direct"
    with pytest.raises(ValueError, match="convolution was auto, now direct"):
        other.fit(resume=True)
    trainer(data, config, tmp_path, test_every=1, checkpoint_every=5).fit(resume=True)  # these change no weights
    with pytest.raises(FileNotFoundError, match="checkpoint.safetensors does not exist: there is nothing to resume"):
        trainer(data, config, tmp_path / "none", loggers=["tensorboard"]).fit(resume=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "checkpoint.safetensors").write_bytes(b"junk")
    with pytest.raises(ValueError, match="checkpoint.safetensors is damaged or not a safetensors file"):
        trainer(data, config, tmp_path).fit(resume=True)
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "checkpoint.safetensors")
    with pytest.raises(ValueError, match="is no checkpoint of fastcaps: it was written by something else"):
        trainer(data, config, tmp_path).fit(resume=True)


def test_a_run_begun_when_there_were_fewer_settings_resumes(data, config, tmp_path):
    trainer(data, config, tmp_path).fit()
    file = tmp_path / "checkpoint.safetensors"
    with safetensors.safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    stored = json.loads(metadata["run"])
    for name in ("loss", "sharpness", "routing_only", "decay", "averaging"):
        del stored[name]
    for name in ("rotation", "zoom"):
        del stored["augmentation"][name]
    metadata["run"] = json.dumps(stored)
    safetensors.torch.save_file(safetensors.torch.load_file(file), file, metadata=metadata)
    trainer(data, config, tmp_path).fit(resume=True)
    with pytest.raises(ValueError, match=r"of another run \(loss was margin, now cross_entropy\)"):
        trainer(data, config, tmp_path, loss="cross_entropy").fit(resume=True)
    metadata["run"] = json.dumps({**stored, "epochs": None})
    safetensors.torch.save_file(safetensors.torch.load_file(file), file, metadata=metadata)
    with pytest.raises(ValueError, match=r"of another run \(epochs was None, now 3\)"):
        trainer(data, config, tmp_path).fit(resume=True)
    metadata["run"] = json.dumps({**stored, "augmentation": "none"})
    safetensors.torch.save_file(safetensors.torch.load_file(file), file, metadata=metadata)
    with pytest.raises(ValueError, match=r"the augmentation in .*checkpoint\.safetensors is damaged: expected object"):
        trainer(data, config, tmp_path).fit(resume=True)


def test_a_finished_run_that_is_resumed_is_finished(data, config, tmp_path):
    history = trainer(data, config, tmp_path).fit()
    before = weights(tmp_path / "model")
    assert trainer(data, config, tmp_path).fit(resume=True) == history
    assert same(before, weights(tmp_path / "model"))


def test_a_resumed_run_keeps_the_command_that_makes_it(data, config, tmp_path):
    trainer(data, config, tmp_path, about={"command": "train"}).fit()
    trainer(data, config, tmp_path, about={"command": "train --resume"}).fit(resume=True)
    assert Run.open(tmp_path).about.command == "train"


def test_network_and_data_must_fit(data, tmp_path):
    with pytest.raises(ValueError, match="patterns has images of 1×12×12, the network is for 1×28×28: make it with"):
        trainer(data, CapsNet(small_config()).config.mnist(classes=3, class_names=("a", "b", "c")), tmp_path)
    with pytest.raises(ValueError, match="patterns has 4 classes, the network 3"):
        trainer(make_data(classes=4), small_config(), tmp_path)


def test_other_modules_are_refused(data, tmp_path):
    net: Any = torch.nn.Sequential(torch.nn.Flatten())
    settings, nothing = TrainSettings(epochs=1), cast(Any, None)
    calls = {
        "Trainer": lambda: Trainer(net, data, settings, tmp_path / "run"),
        "evaluate": lambda: analysis.evaluate(net, nothing, []),
        "collect": lambda: collect(net, []),
        "compress": lambda: fastcaps.compress(net, data),
    }
    for name, call in calls.items():
        with pytest.raises(
            ValueError, match=f"^{name} takes a CapsNet, not a Sequential: use accumulate, fold, record"
        ):
            call()
    assert not (tmp_path / "run").exists()


def test_runs_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no run: it has no run.json, as fastcaps train writes"):
        Run.open(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="run.json is not JSON"):
        _ = Run.open(tmp_path).about
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="run.json is not of a fastcaps run: it lacks data, settings or config"):
        _ = Run.open(tmp_path).about
    (tmp_path / "run.json").write_text('{"data": {}, "settings": {}, "config": {}}')
    with pytest.raises(ValueError, match="run.json is damaged: data: object missing required field name"):
        _ = Run.open(tmp_path).about
    with pytest.raises(FileNotFoundError, match="master.safetensors does not exist: make it with fastcaps accumulate"):
        Run.open(tmp_path).master()
