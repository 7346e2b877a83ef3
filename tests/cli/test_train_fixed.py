"""Training with master coefficients from the command line."""

import html
import json
import re

import pytest
import torch
from tests.cli.commands import SMALL, invoke

from fastcaps import CapsNet, FastCapsNet, MasterCoefficients
from fastcaps.nn.pretrained import weights_hash

pytestmark = pytest.mark.usefixtures("unrendered")
FINETUNE = ["--epochs", "2", "--batch-size", "8", "--threads", "1"]


@pytest.fixture
def run(images, tmp_path):
    """A run that holds out six images, with its coefficients."""
    folder = tmp_path / "run"
    invoke("train", "--data", images, "--out", folder, "--validation", 6, *SMALL)
    invoke("accumulate", folder)
    return folder


@pytest.mark.slow
def test_finetuning_trained_weights_with_their_coefficients(run, tmp_path):
    out = tmp_path / "fixed"
    master = run / "master.safetensors"
    trained = invoke("train", "--init", run, "--coefficients", master, "--out", out, "--test-every", 1, *FINETUNE)
    assert f"next: fastcaps evaluate {out}" in trained.stderr
    about = json.loads((out / "run.json").read_text())
    assert about["init"] == {"run": str(run), "weights": weights_hash(CapsNet.from_pretrained(run))}
    assert about["data"]["validation"] == 6
    assert (about["settings"]["learning_rate"], about["settings"]["warmup"]) == (2e-4, 0)
    assert about["master"]["counts"] == [6, 6, 6]
    stored = MasterCoefficients.load(out / "master.safetensors")
    assert (stored.values == MasterCoefficients.load(master).values).all()
    actual = json.loads(invoke("evaluate", out, "--json", "--result", tmp_path / "one.json").stdout)
    result = json.loads((tmp_path / "one.json").read_text())
    assert result["evaluation"]["variants"] == actual["variants"]
    published = {**about["init"], "run": run.name}
    assert (result["init"], len(result["metrics"]), result["machine"]["cores"] > 0) == (published, 2, True)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    best = max(rows, key=lambda row: row["validation_accuracy"])
    assert actual["variants"]["fast"]["accuracy"] == best["test_accuracy"]
    assert set(actual["variants"]) == {"dynamic", "fast", "uniform"}  # the containers are of other weights
    held_out = json.loads(invoke("evaluate", out, "--part", "validation", "--json").stdout)
    assert held_out["images"] == 6
    assert held_out["variants"]["fast"]["accuracy"] == best["validation_accuracy"]
    assert rows[-1]["loss"] < json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    batch = torch.rand(2, 3, 40, 32)
    expected = CapsNet.from_pretrained(out)(batch, fixed=stored.values).lengths
    torch.testing.assert_close(FastCapsNet.from_pretrained(out / "fast")(batch).lengths, expected)
    refused = invoke("accumulate", out, code=1)
    assert f"{out} was trained with fixed coefficients, which {out}/master.safetensors holds" in refused.stderr
    assert refused.stderr.endswith("holds: give another file as --out\n")
    invoke("accumulate", out, "--out", tmp_path / "others.safetensors")


@pytest.mark.slow
def test_refitting_the_routing_layer(run, tmp_path):
    out = tmp_path / "refit"
    refit = ["--init", run, "--coefficients", "uniform", "--routing-only", "--loss", "cross_entropy", "--sharpness", 10]
    invoke("train", *refit, "--out", out, *FINETUNE)
    settings = json.loads((out / "run.json").read_text())["settings"]
    names = ("routing_only", "loss", "sharpness", "reconstruction_weight")
    assert [settings[name] for name in names] == [True, "cross_entropy", 10.0, 0.0]
    before, after = (CapsNet.from_pretrained(folder).state_dict() for folder in (run, out))
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["routing.weight"]
    refused = invoke("train", "--data", "digits", "--routing-only", "--out", tmp_path / "new", code=2)
    assert "--routing-only: a new network has nothing to keep, give --init" in " ".join(refused.stderr.split())
    shown = invoke("evaluate", out, "--compare", run)
    counts = re.search(rf"{run} with dynamic routing \((.*?) points, \+(\d+) −(\d+) answers", shown.stdout)
    assert counts is not None
    assert not (out / "evaluation.json").exists()
    result = json.loads(invoke("evaluate", out, "--compare", run, "--json").stdout)
    weights = weights_hash(CapsNet.from_pretrained(run))
    assert result["other"] == {"run": str(run), "routing": "dynamic", "weights": weights}
    against = result["variants"]["fast"]["against_other"]
    assert [int(count) for count in counts.groups()[1:]] == [against["gained"], against["lost"]]
    right = {name: variant["correct"] for name, variant in result["variants"].items()}
    assert against["gained"] - against["lost"] == right["fast"] - right["other"]
    backwards = json.loads(invoke("evaluate", run, "--compare", out, "--json").stdout)
    assert backwards["other"]["routing"] == "fast"  # as it was trained
    assert backwards["variants"]["other"]["confusion"] == result["variants"]["fast"]["confusion"]
    invoke("evaluate", out, "--compare", run, "--out", out)
    invoke("analyze", out, "--out", tmp_path / "report")
    page = html.unescape((tmp_path / "report" / "index.html").read_text())
    assert "another run's network, as it was trained" in page
    alone = json.loads(invoke("evaluate", run, "--json").stdout)
    assert result["variants"]["other"]["confusion"] == alone["variants"]["dynamic"]["confusion"]
    # What is trained from it learns by the same loss, all of it.
    invoke("train", "--init", out, "--out", tmp_path / "more", *FINETUNE)
    settings = json.loads((tmp_path / "more" / "run.json").read_text())["settings"]
    assert [settings[name] for name in names] == [False, "cross_entropy", 10.0, 0.0005]


@pytest.mark.slow
def test_finetuning_with_dynamic_routing_is_the_control(run, tmp_path):
    trained = invoke("train", "--init", run, "--out", tmp_path / "more", *FINETUNE)
    assert "next: fastcaps accumulate" in trained.stderr
    rows = [json.loads(line) for line in (tmp_path / "more" / "metrics.jsonl").read_text().splitlines()]
    assert [row["routing"] for row in rows] == ["dynamic", "dynamic"]
    # The weights start from the run's.
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert abs(rows[0]["loss"] - last["loss"]) < abs(rows[0]["loss"] - first["loss"])


@pytest.mark.slow
def test_a_new_network_with_uniform_coefficients_and_all_in_one_run(images, tmp_path):
    invoke("train", "--data", images, "--coefficients", "uniform", "--out", tmp_path / "ones", *SMALL)
    assert (MasterCoefficients.load(tmp_path / "ones" / "master.safetensors").values == 1).all()
    result = json.loads(invoke("evaluate", tmp_path / "ones", "--json").stdout)
    assert result["variants"]["fast"]["confusion"] == result["variants"]["uniform"]["confusion"]
    options = ["--dynamic-epochs", 1, "--dynamic-fraction", 0.5, "--refresh-every", 1, "--reinit"]
    done = invoke("train", "--data", images, "--out", tmp_path / "both", *options, *SMALL, "--epochs", 3, "--json")
    assert [row["routing"] for row in json.loads(done.stdout)["history"]] == ["dynamic", "fixed", "fixed"]
    assert "both accumulating for epoch 2/3 batch 2/2" in done.stderr
    settings = json.loads((tmp_path / "both" / "run.json").read_text())["settings"]
    assert (settings["dynamic_epochs"], settings["dynamic_fraction"], settings["reinit"]) == (1, 0.5, True)


@pytest.mark.slow
def test_images_held_out_once_stay_held_out(run, images, tmp_path):
    out = tmp_path / "x"
    for options, words in (
        (["--seed", 1], "with 6 images held out by seed 1"),
        (["--validation", 3], "with 3 images held out by seed 0"),
        (["--validation", 0.25], "with 0.25 of its images held out by seed 0"),
        (["--validation", 0], "with no images held out"),
    ):
        refused = invoke("train", "--init", run, "--out", out, *options, *FINETUNE, code=1)
        assert f"{run} was trained with 6 images held out by seed 0, this run would be {words}: some" in refused.stderr
    master = ["--coefficients", run / "master.safetensors"]
    refused = invoke("train", "--data", images, *master, "--validation", 3, "--out", out, *SMALL, code=1)
    words = (
        "accumulated with 6 images held out by seed 0, this run would be with 3 images held out by seed 0: images that"
    )
    assert words in refused.stderr
    invoke("train", "--data", images, *master, "--validation", 6, "--out", tmp_path / "same", *SMALL)
    invoke("train", "--data", images, "--out", tmp_path / "all", *SMALL)
    refused = invoke("train", "--init", tmp_path / "all", "--validation", 3, "--out", out, *FINETUNE, code=1)
    assert "trained with no images held out, this run would be with 3 images held out by seed 0" in refused.stderr
    assert not out.exists()


@pytest.mark.slow
def test_what_does_not_go_together(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for arguments, message in (
        (["train", "--out", "x"], "give --data, or --init with a run whose data to use"),
        (
            ["train", "--init", run, "--out", "x", "--iterations", 2],
            "--iterations 2: with --init the network is that of",
        ),
        (["train", "--init", run, "--out", "x", "--set", "decoder=[8]"], "decoder=(8,): with --init the network is"),
        (
            ["train", "--init", run, "--out", "x", "--dynamic-epochs", 1, "--reinit"],
            "--reinit: with --init the weights are those of a run, leave one of them out",
        ),
        (
            ["train", "--init", run, "--out", "x", "--sharpness", 5],
            "--sharpness 5 is of no use with the loss margin: leave it out, or change --loss",
        ),
        (
            ["train", "--init", run, "--out", "x", "--loss", "cross_entropy", "--negative-margin", 0.2],
            "--negative-margin 0.2 is of no use with the loss cross_entropy: leave it out, or change --loss",
        ),
    ):
        assert message in " ".join(invoke(*arguments, code=2).stderr.replace("│", "").split())
    for arguments, message in (
        (["train", "--init", "nowhere", "--out", "x"], "nowhere is no run: it has no run.json"),
        (
            ["train", "--data", "digits", "--coefficients", "none", "--out", "x"],
            "none does not exist: expected a file of",
        ),
        (
            ["train", "--data", "digits", "--coefficients", run, "--out", "x"],
            f"{run} is a folder, perhaps {run}/master.safetensors is meant: expected a file of master coefficients",
        ),
        (
            ["train", "--data", "digits", "--coefficients", run / "master.safetensors", "--out", "x"],
            "×3 capsules, this model has",
        ),
        (["train", "--init", run, "--out", "x", "--refresh-every", 1], "only fixed coefficients are refreshed"),
    ):
        assert message in invoke(*arguments, code=1).stderr
    assert sorted(tmp_path.iterdir()) == before
