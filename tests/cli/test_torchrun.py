"""The commands in several processes, started as a user does: by torchrun, interrupted, killed."""

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from tests.cli.commands import invoke
from tests.commands import run_all
from tests.ranks import Child, launch, torchrun

from fastcaps import MasterCoefficients
from fastcaps.training import Run

NETWORK = ["stem_channels=8", "stem_kernel=5", "capsule_types=2", "primary_kernel=5", "decoder=[8]"]
SETTINGS = [
    *("--batch-size", 8, "--warmup", 2, "--checkpoint-every", 5, "--threads", 1),
    *(word for change in NETWORK for word in ("--set", change)),
]
TRAIN, TEST, STEPS = 120, 60, 15  # images, and steps per epoch
TWO_EPOCHS = ["--epochs", 2, "--test-every", 2]
LONG = ["--epochs", 8, "--test-every", 8]
FILTERS = ["--filter", "correct", "--filter", "similarity", "--keep-fraction", 0.8]
needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks in /proc")


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """``fastcaps train`` with images of three classes."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for part, count in (("train", TRAIN), ("test", TEST)):
        for label in range(3):
            (folder / part / f"class {label}").mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 60, (20, 16))
            pixels[:, 5 * (number % 3) : 5 * (number % 3) + 5] += 150
            Image.fromarray(pixels.astype(np.uint8)).save(folder / part / f"class {number % 3}" / f"{number}.png")
    return ["train", "--data", folder, *SETTINGS]


def ranks_of(launcher: Child) -> list[int]:
    """Process numbers of a launcher's ranks, in the order of their ranks."""
    ranks = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                variables = dict(
                    line.split("=", 1) for line in (entry / "environ").read_text().split("\0") if "=" in line
                )
            except OSError:
                continue
            if parent == launcher.pid and "RANK" in variables:
                ranks[int(variables["RANK"])] = int(entry.name)
    return [ranks[rank] for rank in sorted(ranks)]


def steps_done(folder: Path) -> int:
    """Steps of the checkpoint in a folder."""
    try:
        with safetensors.safe_open(folder / "checkpoint.safetensors", framework="pt") as file:
            progress = json.loads(file.metadata()["progress"])
    except FileNotFoundError:
        return 0
    return int(progress["step"] + STEPS * progress["epoch"])


@pytest.fixture(scope="module")
def stopped(train, tmp_path_factory):
    """A run one of whose ranks was killed, started again by its launcher, and interrupted; and what was said."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    job = torchrun(2, *train, "--out", folder, *LONG, restarts=1)
    job.wait_until(lambda: steps_done(folder) >= 5)
    first = ranks_of(job)
    os.kill(first[1], signal.SIGKILL)
    job.wait_until(lambda: len(ranks_of(job)) == 2 and not set(first) & set(ranks_of(job)))
    before = steps_done(folder)
    job.wait_until(lambda: steps_done(folder) > before)
    job.send_signal(signal.SIGINT)
    _, err = job.fail()
    assert Run.open(folder).about.state == "interrupted"
    return folder, err, steps_done(folder)


class Done(NamedTuple):
    """What the ranks of a command printed together, and their exit codes."""

    out: str
    err: str
    codes: list[str]


@pytest.fixture(scope="module")
def done(train, stopped, tmp_path_factory):
    """The commands of this module in two processes, all in one start; their folder is ``done["folder"]``."""
    folder = tmp_path_factory.mktemp("commands")
    run, arguments = folder / "run", ["--coefficients", folder / "two.master", "--batch-size", 8, "--json"]
    commands = {
        "train": [*train, "--out", run, *TWO_EPOCHS, "--json"],
        "whole": [*train, "--out", folder / "whole", *LONG],
        "resume": [*train, "--out", stopped[0], *LONG, "--resume"],
        "accumulate": ["accumulate", run, "--out", folder / "two.master", "--json", *FILTERS],
        "divide": ["accumulate", run, "--out", folder / "divided.master", "--memory", 0.000005, *FILTERS],
        "evaluate": ["evaluate", run, "--compare", run, *arguments, "--out", folder / "evaluation"],
        "analyze": ["analyze", run, "--limit", 50, *arguments, "--out", folder / "report"],
        "differ": ["evaluate", run, "--out", folder / "refused"],
        "unknown": ["train", "--data", "nothing", "--out", folder / "nothing"],
    }
    plan = []
    for name, words in commands.items():
        (folder / "said" / name).mkdir(parents=True)
        ranks = [words, [*words, "--limit", 100] if name == "differ" else words]
        plan.append((folder / "said" / name, [[str(word) for word in words] for words in ranks]))
    launch(2, run_all, plan)
    result = {
        path.name: Done(
            (path / "out").read_text(),
            (path / "err").read_text(),
            [(path / f"code-{rank}").read_text() for rank in range(2)],
        )
        for path in (folder / "said").iterdir()
    }
    for name, said in result.items():
        assert said.codes == (["1", "1"] if name in ("differ", "unknown") else ["0", "0"]), said.err
    return folder, result


def weights(run: Path, file: str = "model/model.safetensors") -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / file)


@pytest.mark.slow
def test_training_is_that_of_one_process(done, train, tmp_path):
    folder, said = done
    assert [row["epoch"] for row in json.loads(said["train"].out)["history"]] == [1, 2]  # printed once
    assert len(re.findall(r"epoch 2/2 step 15/15", said["train"].err)) == 1
    assert Run.open(folder / "run").about.processes == 2
    assert not list((folder / "run").rglob(".*.part"))
    invoke(*train, "--out", tmp_path, *TWO_EPOCHS)
    for name, tensor in weights(tmp_path).items():
        # 30 steps in float32: each rounds differently, and Adam divides by what may be small.
        assert (weights(folder / "run")[name] - tensor).abs().max() < 1e-2, name
    ours, others = Run.open(folder / "run").metrics(), Run.open(tmp_path).metrics()
    assert [row.loss for row in ours] == pytest.approx([row.loss for row in others], rel=1e-2)


@pytest.mark.slow
@needs_proc
def test_an_interrupt_stops_all_ranks_after_the_same_step(stopped):
    _, err, steps = stopped
    lost = err.count("error: another process of this job has died or doesn't answer any more: see above what it said")
    assert lost <= 1  # unless the launcher stopped the other before it could say so
    assert len(re.findall(r"^interrupted; resume with: fastcaps train --resume ", err, re.M)) == 1
    assert err.count("Traceback") == 1  # the launcher's
    assert 5 <= steps < 8 * STEPS


@pytest.mark.slow
@needs_proc
def test_killed_started_again_and_resumed_nothing_is_lost(stopped, done):
    resumed, expected = weights(stopped[0]), weights(done[0] / "whole")
    assert resumed.keys() == expected.keys()
    assert all(torch.equal(resumed[name], tensor) for name, tensor in expected.items())
    folders = stopped[0], done[0] / "whole"
    histories = [[replace(row, seconds=0) for row in Run.open(folder).metrics()] for folder in folders]
    assert histories[0] == histories[1]


@pytest.fixture(scope="module")
def one(done):
    """Coefficients made in one process."""
    path = done[0] / "one.master"
    invoke("accumulate", done[0] / "run", "--out", path, *FILTERS)
    return MasterCoefficients.load(path)


@pytest.mark.slow
def test_accumulation_is_that_of_one_process(done, one):
    folder, said = done
    assert json.loads(said["accumulate"].out)["master"] == str(folder / "two.master")
    assert said["accumulate"].err.count("120/120") == 2  # of the whole job, once observing and once accumulating
    two = MasterCoefficients.load(folder / "two.master")
    torch.testing.assert_close(two.values, one.values, rtol=0, atol=1e-5)
    assert torch.equal(two.counts, one.counts)
    assert two.filters == one.filters


@pytest.mark.slow
def test_divided_by_class(done, one):
    folder, said = done
    assert said["divide"].err.count("classes are taken") == 1
    assert said["divide"].err.count("sums are not stored") == 1
    divided = MasterCoefficients.load(folder / "divided.master")
    torch.testing.assert_close(divided.values, one.values, rtol=0, atol=1e-5)
    assert divided.containers is None


@pytest.mark.slow
def test_evaluation_is_that_of_one_process(done, tmp_path):
    folder, said = done
    two = json.loads(said["evaluate"].out)
    assert json.loads((folder / "evaluation" / "evaluation.json").read_text()) == two
    assert said["evaluate"].err.count("60/60") == 1
    arguments = ["--coefficients", folder / "two.master", "--batch-size", 8, "--json", "--out", tmp_path]
    one = json.loads(invoke("evaluate", folder / "run", "--compare", folder / "run", *arguments).stdout)
    assert (two["processes"], one["processes"]) == (2, 1)
    for evaluation in (one, two):
        for variant in evaluation["variants"].values():
            assert (variant.pop("images_per_second") is None) == (variant is evaluation["variants"]["ceiling"])
    assert one["variants"] == two["variants"]
    assert one["other"] == two["other"]
    assert one["variants"]["other"]["confusion"] == one["variants"]["dynamic"]["confusion"]


@pytest.mark.slow
def test_the_report_of_two_processes(done):
    folder, said = done
    report = json.loads(said["analyze"].out)
    assert report["training"]["images"] == report["evaluation"]["images"] == 50
    assert report["evaluation"]["processes"] == 2
    labels = Run.open(folder / "run").data().train.labels[:50].tolist()
    assert report["first_images"]["labels"] == labels
    assert (folder / "report" / "index.html").stat().st_size > 20_000


@pytest.mark.slow
def test_processes_with_other_options_are_refused(done):
    """The same line typed by hand on two machines, but not quite."""
    folder, said = done
    assert said["differ"].err.count("error: the processes of this job differ: command is [") == 1
    assert not (folder / "refused").exists()


@pytest.mark.slow
def test_what_is_wrong_is_said_once(done):
    folder, said = done
    assert said["unknown"].out == ""
    assert said["unknown"].err.count("error: there is no data set 'nothing'") == 1
    assert not (folder / "nothing").exists()
