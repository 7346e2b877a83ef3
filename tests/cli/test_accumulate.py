"""Filters, methods and iterations from the command line, on digits with a tiny network."""

import json
from dataclasses import replace

import pytest
import torch
from tests.cli.commands import SMALL, invoke

from fastcaps import CapsNet, MasterCoefficients
from fastcaps.data import batches, load
from fastcaps.master import Correct, Filter, Similarity, sweep
from fastcaps.training import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on digits, trained for an epoch: it gets some digits of every class right, and some wrong."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    network = ["stem_channels=8", "capsule_types=2", "decoder=[8]", "primary_kernel=5", "primary_stride=4"]
    options = [word for change in network for word in ("--set", change)]
    invoke("train", "--data", "digits", "--out", folder, "--epochs", 2, "--batch-size", 32, "--threads", 1, *options)
    return folder


@pytest.fixture
def accumulated(run, tmp_path):
    """Calls the command, and returns what it prints as JSON and writes to a file."""

    def call(*options):
        out = tmp_path / "master.safetensors"
        printed = json.loads(invoke("accumulate", run, "--out", out, "--json", *options).stdout)
        master = MasterCoefficients.load(out)
        assert printed == {"master": str(out), **master.summary().to_dict()}
        assert [path.name for path in tmp_path.iterdir()] == [out.name]
        return master

    return call


@pytest.mark.slow
def test_filters_methods_and_iterations(run, accumulated):
    data = load("digits")
    model = CapsNet.from_pretrained(run)
    chains: dict[str, list[Filter]] = {"none": [], "both": [Correct(), Similarity(keep_fraction=0.8)]}
    sweeps = sweep(model, lambda: batches(data.train, 256, view=data.augmentation.test_view), [2, 3, 4], chains)

    def same(master, expected):
        assert replace(master.summary(), provenance={}) == expected.summary()
        torch.testing.assert_close(master.values, expected.values, rtol=0, atol=1e-6)

    same(accumulated(), sweeps.sums[3, "none"].compute())
    same(accumulated("--filter", "none", "--method", "pooled"), sweeps.sums[3, "none"].compute(method="pooled"))
    both = ("--filter", "correct", "--filter", "similarity", "--keep-fraction", 0.8)
    same(accumulated(*both), sweeps.sums[3, "both"].compute())
    same(accumulated(*both, "--iteration", 2), sweeps.sums[2, "both"].compute())
    same(
        accumulated(*both, "--iteration", "final", "--method", "columns"),
        sweeps.sums[4, "both"].compute(method="columns"),
    )


@pytest.mark.slow
def test_every_filter_reports_what_it_kept(run, accumulated):
    seen = torch.bincount(load("digits").train.labels).tolist()
    clustering = ("--clusters", 5, "--max-outlier-fraction", 0.2, "--seed", 1)
    master = accumulated("--filter", "kmeans", "--filter", "em", *clustering, "--components", 4)
    kmeans, em = master.filters
    assert kmeans.options == {"clusters": 5, "max_outlier_fraction": 0.2, "seed": 1}
    assert em.options == {"clusters": 5, "components": 4, "max_outlier_fraction": 0.2, "seed": 1}
    assert list(kmeans.seen) == seen
    assert em.seen == kmeans.kept
    assert list(em.kept) == master.counts.tolist()
    assert 0.6 * sum(seen) <= sum(em.kept) < sum(seen)


@pytest.mark.slow
def test_a_table_for_people_and_the_runs_own_files(run):
    result = invoke("accumulate", run, "--filter", "correct")
    master = Run.open(run).master()
    assert "Images kept" in result.stdout
    selected, total = int(master.counts.sum()), len(load("digits").train)
    assert f"correct: {total - selected} left out: dynamic routing gives them another class" in result.stdout
    assert f"coefficients of iteration 3 of {selected:,} images, max_min, per_class" in result.stdout
    assert "observing" in result.stderr
    assert "accumulating" in result.stderr
    about = json.loads((run / "fast" / "config.json").read_text())
    assert about["provenance"]["master"]["filters"] == [report.to_dict() for report in master.filters]
    after = invoke("accumulate", run, "--iteration", "final").stdout
    assert "coefficients of iteration 4 (after the last) of" in after
    assert "Images kept" not in after


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--margin", 0.1], "--margin is of no use without --filter similarity"),
        (["--filter", "correct", "--clusters", 3], "--clusters is of no use without --filter kmeans or --filter em"),
        (["--filter", "kmeans", "--components", 3], "--components is of no use without --filter em"),
        (["--filter", "none", "--filter", "em"], "--filter none together with em"),
        (["--filter", "best"], "--filter best: expected one of none, correct, similarity, kmeans, em"),
        (["--iteration", "last"], "--iteration last: expected a whole number from 1, or final"),
        (["--method", "rows"], "rows"),
    ],
)
def test_wrong_use_is_2(run, arguments, message):
    assert message in invoke("accumulate", run, *arguments, code=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--iteration", 4], "error: --iteration is 4, expected 1 to 3, or 'final'"),
        (
            ["--filter", "em", "--iteration", 1],
            "error: ground-truth columns are all equal at iteration 1: take a later",
        ),
        (["--filter", "kmeans", "--clusters", 1], "error: --clusters is 1, expected at least 2"),
        (
            ["--filter", "similarity", "--keep-fraction", 0.5, "--margin", 0],
            "error: --margin is 0.0, expected none together with",
        ),
        (["--filter", "correct", "--confidence", 0.99], "error: filter correct (--confidence 0.99) keeps none of the "),
    ],
)
def test_failures_are_one_line_and_leave_nothing(run, tmp_path, arguments, message):
    result = invoke("accumulate", run, "--out", tmp_path / "master", *arguments, code=1)
    assert result.stderr.splitlines()[-1].startswith(message)
    assert not list(tmp_path.iterdir())


def test_interrupted_while_observing(run, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fastcaps.master.observations.ColumnFiles.add", interrupted)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    invoke("accumulate", run, "--out", tmp_path / "master", "--filter", "kmeans", code=130)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_validation_images_are_not_accumulated(images, tmp_path):
    run = tmp_path / "run"
    trained = invoke("train", "--data", images, "--out", run, "--validation", 6, *SMALL)
    assert trained.stdout.startswith(f"{run}\n")
    assert "validation accuracy" in trained.stdout
    assert "validation accuracy" in trained.stdout
    result = json.loads(invoke("accumulate", run, "--json").stdout)
    assert result["counts"] == [6, 6, 6]
    assert result["provenance"]["part"] == "train without validation"


@pytest.mark.slow
def test_former_options(run, tmp_path):
    options = ["--filter", "similarity", "--filter", "kmeans", "--kept", 0.8, "--outlying", 0.1]
    options += ["--iteration", "after", "--method", "containers"]
    done = invoke("accumulate", run, "--out", tmp_path / "old.st", *options)
    for old, new in (
        ("--kept", "--keep-fraction"),
        ("--outlying", "--max-outlier-fraction"),
        ("--iteration after", "--iteration final"),
        ("--method containers", "--method per_class"),
    ):
        assert f"warning: {old} is deprecated, use {new}\n" in done.stderr
    similarity, kmeans = MasterCoefficients.load(tmp_path / "old.st").filters
    assert 0.8 in similarity.options.values()
    assert 0.1 in kmeans.options.values()


@pytest.mark.slow
def test_coefficients_of_another_iteration_in_another_file(images, tmp_path):
    run = tmp_path / "run"
    invoke("train", "--data", images, "--out", run, *SMALL)
    missing = invoke("evaluate", run, code=1)
    assert f"master.safetensors does not exist: make it with fastcaps accumulate {run}" in missing.stderr
    first = json.loads(invoke("accumulate", run, "--iteration", 1, "--out", tmp_path / "m.st", "--json").stdout)
    assert (first["iteration"], first["counts"]) == (1, [8, 8, 8])
    assert not (run / "fast").exists()
    result = json.loads(
        invoke("evaluate", run, "--coefficients", tmp_path / "m.st", "--out", tmp_path, "--json").stdout
    )
    assert result["variants"]["fast"]["against_dynamic"] == result["variants"]["uniform"]["against_dynamic"]
    (images / "train" / "sky" / "0.png").unlink()
    changed = invoke("accumulate", run, code=1)
    assert f"the images of photos are not those that {run} was trained with (fingerprint " in changed.stderr


def test_a_folder_that_is_no_run():
    assert "error: nowhere is no run: it has no run.json" in invoke("accumulate", "nowhere", code=1).stderr
