"""The commands in several processes, started as a user does: by torchrun, interrupted, killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.cli.test_method import invoke
from tests.ranks import done, free_port, torchrun

from fastcaps import MasterCoefficients
from fastcaps.data import load
from fastcaps.training import Run

NETWORK = ["stem_channels=8", "capsule_types=2", "decoder=[8]", "primary_kernel=5", "primary_stride=4"]
TRAIN = [
    *("train", "--data", "digits", "--batch-size", 64, "--checkpoint-every", 5, "--threads", 1),
    *(word for change in NETWORK for word in ("--set", change)),
]


def weights(run: Path, file: str = "model/model.safetensors") -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / file)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two processes, undisturbed."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    out, err = done(torchrun(2, *TRAIN, "--out", folder, "--epochs", 2, "--test-every", 2, "--json"))
    assert [row["epoch"] for row in json.loads(out)["history"]] == [1, 2]  # printed once
    assert len(re.findall(r"epoch 2/2 step 23/23", err)) == 1
    return folder


@pytest.mark.slow
def test_training_is_that_of_one_process(run, tmp_path):
    assert Run.open(run).about["processes"] == 2
    assert not list(run.rglob(".*.part"))
    invoke(*TRAIN, "--out", tmp_path / "one", "--epochs", 2, "--test-every", 2)
    for name, tensor in weights(tmp_path / "one").items():
        # 46 steps in float32: each rounds differently, and Adam divides by what may be small.
        assert (weights(run)[name] - tensor).abs().max() < 1e-2, name
    ours, others = Run.open(run).metrics(), Run.open(tmp_path / "one").metrics()
    assert [row.loss for row in ours] == pytest.approx([row.loss for row in others], rel=1e-2)


def ranks_of(process) -> list[int]:
    """Process numbers of a launcher's ranks, in the order of their ranks."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                variables = dict(
                    line.split("=", 1) for line in (entry / "environ").read_text().split("\0") if "=" in line
                )
            except OSError:
                continue
            if parent == process.pid and "RANK" in variables:
                found[int(variables["RANK"])] = int(entry.name)
    return [found[rank] for rank in sorted(found)]


def wait_for_step(process, folder: Path, least: int) -> None:
    """Until a checkpoint of so many steps is there."""
    while True:
        assert process.poll() is None, process.communicate()[1]
        try:
            with safetensors.safe_open(folder / "checkpoint.safetensors", framework="pt") as file:
                progress = json.loads(file.metadata()["progress"])
                if progress["step"] + 23 * progress["epoch"] >= least:
                    return
        except FileNotFoundError:
            pass
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks in /proc")
def test_a_rank_that_dies_ends_the_job_and_nothing_is_lost(run, tmp_path):
    folder = tmp_path / "killed"
    arguments = [*TRAIN, "--out", folder, "--epochs", 2, "--test-every", 2]
    job = torchrun(2, *arguments)
    wait_for_step(job, folder, 5)
    os.kill(ranks_of(job)[1], signal.SIGKILL)
    killed = time.monotonic()
    _, err = done(job, succeeds=False)
    assert time.monotonic() - killed < 60
    assert "SIGKILL" in err  # the launcher's message
    lost = err.count("error: another process of this job has died or doesn't answer any more: see above what it said")
    assert lost <= 1  # the launcher may have stopped the other before it could say so
    assert err.count("Traceback") == 1  # the launcher's
    kept = weights(folder, "checkpoint.safetensors")  # whole
    assert all(tensor.isfinite().all() for tensor in kept.values())
    done(torchrun(2, *arguments, "--resume"))
    resumed, expected = weights(folder), weights(run)
    assert resumed.keys() == expected.keys()
    assert all(torch.equal(resumed[name], tensor) for name, tensor in expected.items())
    histories = [[replace(row, seconds=0) for row in Run.open(where).metrics()] for where in (folder, run)]
    assert histories[0] == histories[1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks in /proc")
def test_a_job_that_its_launcher_starts_again_goes_on(run, tmp_path):
    folder = tmp_path / "restarted"
    job = torchrun(2, *TRAIN, "--out", folder, "--epochs", 2, "--test-every", 2, restarts=1)
    wait_for_step(job, folder, 5)
    os.kill(ranks_of(job)[1], signal.SIGKILL)
    done(job)
    restarted, expected = weights(folder), weights(run)
    assert all(torch.equal(restarted[name], tensor) for name, tensor in expected.items())


@pytest.mark.slow
def test_an_interrupt_stops_all_ranks_after_the_same_step(tmp_path):
    folder = tmp_path / "run"
    job = torchrun(2, *TRAIN, "--out", folder, "--epochs", 10000)
    wait_for_step(job, folder, 5)
    job.send_signal(signal.SIGINT)
    _, err = done(job, succeeds=False)
    assert len(re.findall(r"^interrupted$", err, re.M)) == 1
    with safetensors.safe_open(folder / "checkpoint.safetensors", framework="pt") as file:
        progress = json.loads(file.metadata()["progress"])
    assert progress["epoch"] * 23 + progress["step"] >= 5
    assert Run.open(folder).about["state"] == "running"


FILTERS = ["--filter", "correct", "--filter", "similarity", "--kept", 0.8]


@pytest.fixture(scope="module")
def masters(run, tmp_path_factory):
    """Coefficients made in one process and in two."""
    out = tmp_path_factory.mktemp("masters")
    invoke("accumulate", run, "--out", out / "one", *FILTERS)
    printed, err = done(torchrun(2, "accumulate", run, "--out", out / "two", "--json", *FILTERS))
    assert json.loads(printed)["master"] == str(out / "two")
    assert err.count("1,437/1,437") == 2  # of the whole job, once observing and once accumulating
    return out


@pytest.mark.slow
def test_divided_by_class(run, masters, tmp_path):
    out = tmp_path / "divided"
    _, err = done(torchrun(2, "accumulate", run, "--out", out, "--memory", 0.00002, *FILTERS))
    assert err.count("classes are taken") == 1
    assert err.count("sums are not kept") == 1
    divided, one = MasterCoefficients.load(out), MasterCoefficients.load(masters / "one")
    torch.testing.assert_close(divided.values, one.values, rtol=0, atol=1e-5)
    assert divided.containers is None


@pytest.mark.slow
def test_processes_with_other_options_are_refused(run, tmp_path):
    """The same line typed by hand on two machines, but not quite."""
    variables = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "fastcaps", "evaluate", str(run), "--out", str(tmp_path / "out"), *options],
            env={**variables, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, options in enumerate(([], ["--limit", "100"]))
    ]
    errors = [job.communicate(timeout=120)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [1, 1]
    assert "".join(errors).count("error: the processes of this job differ: command is [") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_accumulation_is_that_of_one_process(masters):
    one, two = (MasterCoefficients.load(masters / name) for name in ("one", "two"))
    torch.testing.assert_close(two.values, one.values, rtol=0, atol=1e-5)
    assert torch.equal(two.counts, one.counts)
    assert two.filters == one.filters


@pytest.mark.slow
def test_evaluation_and_report_are_those_of_one_process(run, masters, tmp_path):
    arguments = ["--coefficients", masters / "one", "--batch-size", 64, "--json", "--out"]
    one = json.loads(invoke("evaluate", run, "--against", run, *arguments, tmp_path / "one").stdout)
    printed, err = done(torchrun(2, "evaluate", run, "--against", run, *arguments, tmp_path / "two"))
    two = json.loads(printed)
    assert json.loads((tmp_path / "two" / "evaluation.json").read_text()) == two
    assert (two["processes"], one["processes"]) == (2, 1)
    assert err.count("360/360") == 1
    for found in (one, two):
        for variant in found["variants"].values():
            assert (variant.pop("images_per_second") is None) == (variant is found["variants"]["ceiling"])
    assert one["variants"] == two["variants"]
    assert one["other"] == two["other"]
    assert one["variants"]["other"]["confusion"] == one["variants"]["dynamic"]["confusion"]
    printed, _ = done(torchrun(2, "analyze", run, "--limit", 150, *arguments, tmp_path / "report"))
    report = json.loads(printed)
    assert report["training"]["images"] == report["evaluation"]["images"] == 150
    assert report["evaluation"]["processes"] == 2
    assert report["first_images"]["labels"] == load("digits").train.labels[:100].tolist()
    assert (tmp_path / "report" / "index.html").stat().st_size > 100_000


@pytest.mark.slow
def test_what_is_wrong_is_said_once(tmp_path):
    out, err = done(torchrun(2, "train", "--data", "nothing", "--out", "x", cwd=tmp_path), succeeds=False)
    assert out == ""
    assert err.count("error: there is no data set 'nothing'") == 1
    assert not list(tmp_path.iterdir())
