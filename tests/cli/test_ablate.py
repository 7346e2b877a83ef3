"""The table of all ways of building the matrix, from the command line."""

import json

import pytest
from tests.cli.commands import SMALL, invoke


@pytest.fixture
def run(images, tmp_path):
    folder = tmp_path / "run"
    invoke("train", "--data", images, "--out", folder, "--validation", 6, *SMALL)
    return folder


@pytest.mark.slow
def test_every_row_is_what_accumulate_and_evaluate_give(run, tmp_path):
    done = invoke("ablate", run, "--filter", "none", "--filter", "similarity", "--filter", "correct+kmeans")
    assert "Best on the held-out images:" in done.stdout
    assert (run / "ablation.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((run / "ablation.json").read_text())
    trials = {(t["filter"], t["method"], t["iteration"]) for t in result["trials"]}
    skipped = [line.split(",")[0] for line in result["skipped"]]
    names = {"none", "similarity", "correct+kmeans"} - set(skipped)
    assert trials == {(f, m, k) for f in names for m in ("per_class", "columns", "pooled") for k in (2, 3, 4)}
    assert result["images"] == {"validation": 6, "test": 9}
    for trial in result["trials"]:
        if (trial["filter"], trial["iteration"]) not in {("none", 4), ("similarity", 3)}:
            continue
        options = ["--filter", trial["filter"], "--method", trial["method"]]
        options += ["--iteration", "final" if trial["iteration"] == 4 else trial["iteration"]]
        invoke("accumulate", run, *options, "--out", tmp_path / "m.st")
        one = json.loads(invoke("evaluate", run, "--coefficients", tmp_path / "m.st", "--json").stdout)
        assert one["variants"]["fast"]["accuracy"] == trial["test"]["accuracy"]
        assert one["variants"]["dynamic"]["accuracy"] == result["dynamic"]["test"]
        assert one["variants"]["uniform"]["accuracy"] == result["uniform"]["test"]["accuracy"]
        assert sum(one["master"]["counts"]) == trial["images"]
    best = max(result["trials"] + [result["uniform"]], key=lambda t: t["validation"]["accuracy"])
    assert result["best"]["validation"]["accuracy"] == best["validation"]["accuracy"]


@pytest.mark.slow
def test_without_held_out_images_nothing_is_chosen(images, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    invoke("train", "--data", images, "--out", run, *SMALL)
    options = ["--filter", "none", "--iteration", 1, "--method", "pooled", "--limit", 24]
    done = invoke("ablate", run, *options, "--out", out, "--result", tmp_path / "results" / "one.json")
    assert "held out no images, so none of these is chosen: train with validation images" in done.stdout
    result = json.loads((out / "ablation.json").read_text())
    assert json.loads((tmp_path / "results" / "one.json").read_text()) == result
    assert result["best"] is None
    (only,) = result["trials"]
    assert only["test"] == result["uniform"]["test"]  # the first iteration's are all ones
    assert not (run / "ablation.json").exists()


@pytest.mark.slow
def test_wrong_use(run):
    for options, message in (
        (["--filter", "some"], "--filter some: expected none, correct, similarity, kmeans, em, or several of these"),
        (["--iteration", "last"], "--iteration last: expected a whole number from 1, or final"),
        (["--method", "mean"], "--method mean: expected one of per_class, columns, pooled"),
    ):
        assert message in " ".join(invoke("ablate", run, *options, code=2).stderr.replace("│", "").split())
    refused = invoke("ablate", run, "--iteration", 7, code=1)
    assert "iteration is 7, expected 1 to 3, or 4 for the update after the last" in refused.stderr
    refused = invoke("ablate", "mnist", code=1)
    assert "mnist comes with fastcaps and is not written to: give another place as --out" in refused.stderr
