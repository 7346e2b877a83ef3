"""``fastcaps reproduce`` with a tiny MNIST and tiny networks: stopped, gone on with, shared out, reported."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import invoke
from tests.data import tiny
from tests.pages import needs_browser, opened
from tests.reproduction.conftest import values
from typer.testing import CliRunner

from fastcaps import CapsNet, CapsNetConfig, MasterCoefficients
from fastcaps.cli import app
from fastcaps.data.registry import SETS
from fastcaps.reproduction import Cell, all_cells, finished, losses_table, pooled_table
from fastcaps.training import ConsoleLogger, Trainer
from fastcaps.workflows import reproduction

ROOT = Path(__file__).parent.parent.parent
SMALL: dict[str, Any] = {"stem_channels": 8, "capsule_types": 2, "decoder": (8,)}


def network(cell: Cell) -> CapsNetConfig:
    return CapsNetConfig.mnist(normalization=cell.normalization, **SMALL)


@pytest.fixture
def small(tmp_path, monkeypatch, unrendered):
    """MNIST of 110 images, variants made from it, networks of a few capsules; in a folder of its own."""
    monkeypatch.setitem(SETS, "mnist", tiny.write_idx_set(tmp_path / "data", train=80, test=30))
    variant = dataclasses.replace(SETS["rotated_mnist"], train=60, test=25)
    monkeypatch.setitem(SETS, "rotated_mnist", variant)
    for module in ("fastcaps.reproduction.cells", "fastcaps.workflows.reproduction"):
        monkeypatch.setattr(f"{module}.network", network)
    monkeypatch.setattr(reproduction, "LARGE_TEST_SET", 25)
    monkeypatch.setenv("FASTCAPS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FASTCAPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


MNIST = ["reproduce", "--data", "mnist", "--normalization", "max_min", "--threads", 1]


def weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_run_leaves_its_file_and_is_not_done_again(small, monkeypatch):
    first = invoke(*MNIST, "--epochs", 2, "--test-every", 1, "--fast-every", 1)
    assert "mnist-max_min-0: run 1 of 1\n" in first.stderr
    assert "next: fastcaps reproduce --report" in first.stderr
    file = small / "results" / "mnist-max_min-0.json"
    result = json.loads(file.read_text())
    assert result["settings"]["epochs"] == 2
    assert result["command"] == (
        "fastcaps reproduce --data mnist --normalization max_min --seeds 0, --epochs 2 --test-every 1 --fast-every 1"
    )
    assert result["evaluation"]["command"] == result["command"]
    assert result["data"]["provenance"]["kind"] == "original"
    assert set(result["evaluation"]["variants"]) == {"dynamic", "fast", "uniform", "ceiling"}
    assert {"seconds", "versions", "machine", "threads", "state"} <= set(result)
    # The last epoch's weights are the network's, so both must find the same.
    last = result["metrics"][-1]
    assert last["test_accuracy"] == result["evaluation"]["variants"]["dynamic"]["accuracy"]
    assert last["fast_test_accuracy"] == result["evaluation"]["variants"]["fast"]["accuracy"]
    assert ["fast_test_accuracy" in row for row in result["metrics"]] == [True, True]
    before = file.stat().st_mtime_ns
    monkeypatch.setattr(Trainer, "fit", lambda *_, **__: pytest.fail("it was trained again"))
    again = json.loads(invoke(*MNIST, "--json").stdout)
    assert again["runs"][0]["run"] == "mnist-max_min-0"
    assert again["runs"][0]["dynamic"] == last["test_accuracy"]
    assert again["failed"] == {}
    assert file.stat().st_mtime_ns == before
    assert "mnist-max_min-0: run 1 of 1, done before" in invoke(*MNIST).stderr


@pytest.mark.slow
def test_interrupted_it_resumes_and_ends_the_same(small, monkeypatch):
    def impatient(logger, report):
        if report.epoch == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ConsoleLogger, "step", impatient)
        stopped = invoke(*MNIST, "--epochs", 3, "--fast-every", 2, code=130)
    assert "mnist-max_min-0 is not finished; the same call resumes it\ninterrupted\n" in stopped.stderr
    assert not (small / "results").exists()
    listed = json.loads(invoke(*MNIST, "--epochs", 3, "--list", "--json").stdout)
    assert listed == [
        {"run": "mnist-max_min-0", "state": "begun", "epochs": 1, "of": 3, "seconds_left": None},
    ]
    # Without --epochs and --fast-every the run resumes as it was begun, not with the defaults.
    invoke(*MNIST)
    invoke(*MNIST, "--epochs", 3, "--runs", "others", "--results", "others")
    name = "mnist-max_min-0"
    assert weights(small / "runs" / "reproduce" / name) == weights(small / "others" / name)
    results = finished(small / "results")[Cell("mnist", "max_min", 0)]
    assert results.about.settings.epochs == 3
    assert ["fast_test_accuracy" in epoch.measures for epoch in results.metrics] == [False, True, True]


@pytest.mark.slow
def test_what_train_made_is_gone_on_with(small, monkeypatch):
    changes = [word for name, value in SMALL.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    run = small / "runs" / "reproduce" / "mnist-softmax-2"
    options = ["--normalization", "softmax", "--seed", 2, "--epochs", 2, "--test-every", 1, "--threads", 1]
    invoke("train", "--data", "mnist", *options, *changes, "--out", run)
    softmax = ["reproduce", "--data", "mnist", "--normalization", "softmax", "--seeds", "2,", "--threads", 1]
    assert json.loads(invoke(*softmax, "--list", "--json").stdout) == [
        {"run": "mnist-softmax-2", "state": "trained", "epochs": 2, "of": 2, "seconds_left": 0.0}
    ]
    invoke(*softmax, "--epochs", 2, "--runs", "afresh", "--results", "afresh")
    assert weights(run) == weights(small / "afresh" / "mnist-softmax-2")
    monkeypatch.setattr(Trainer, "fit", lambda *_, **__: pytest.fail("it was trained again"))
    invoke(*softmax)
    (cell,) = finished(small / "results")
    assert cell == Cell("mnist", "softmax", 2)
    assert MasterCoefficients.load(run / "master.safetensors").normalization.name == "softmax"
    # A folder with its evaluation needs nothing but its file.
    (small / "results" / "mnist-softmax-2.json").unlink()
    monkeypatch.setattr(reproduction, "evaluate", lambda *_, **__: pytest.fail("it was evaluated again"))
    invoke(*softmax)
    assert list(finished(small / "results")) == [cell]


@pytest.mark.slow
def test_shards_share_the_work_and_the_report_merges(small):
    options = ["reproduce", "--data", "mnist", "--data", "rotated-mnist", "--normalization", "max_min", "--epochs", 1]
    options += ["--threads", 1]
    for part in ("1/2", "2/2"):
        invoke(*options, "--shard", part, "--runs", f"runs-{part[0]}", "--results", f"results-{part[0]}")
    first, second = (set(finished(small / f"results-{k}")) for k in (1, 2))
    assert first | second == set(all_cells(["mnist", "rotated_mnist"], ["max_min"], [0]))
    assert not first & second
    for file in (small / "results-2").iterdir():
        file.rename(small / "results-1" / file.name)
    said = invoke("reproduce", "--report", "--results", "results-1", "--out", "page", "--json")
    rows = {(r["data"], r["normalization"], r["routing"]): r for r in json.loads(said.stdout)}
    assert rows["mnist", "max_min", "dynamic"]["images"] == ["original"]
    assert rows["rotated_mnist", "max_min", "fast"]["images"] == ["generated"]
    assert rows["rotated_mnist", "max_min", "fast"]["seeds"] == [0]
    assert rows["cifar10", "max_min", "fast"]["seeds"] == []
    text = (small / "page" / "report.md").read_text()
    assert text.count("| not run |") == 20
    assert text.count("| not run with both |") == 5
    assert "\n| rotated_mnist-max_min-0 | " in text


@pytest.mark.slow
def test_a_large_test_set_is_looked_at_seldom(small):
    assert SETS["rotated_mnist"].test == reproduction.LARGE_TEST_SET
    invoke("reproduce", "--data", "rotated_mnist", "--normalization", "max_min", "--epochs", 2, "--threads", 1)
    results = finished(small / "results")[Cell("rotated_mnist", "max_min", 0)]
    assert results.about.settings.test_every == 10
    assert [epoch.test_accuracy is not None for epoch in results.metrics] == [False, True]


def test_one_that_fails_is_named_and_the_others_run(small):
    (small / "data" / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"broken")
    write(small, Cell("mnist", "softmax", 0))
    done = invoke("reproduce", "--data", "mnist", "--epochs", 3, "--threads", 1, "--json", code=1)
    assert "error: mnist-max_min-0: " in done.stderr
    result = json.loads(done.stdout)
    assert list(result["failed"]) == ["mnist-max_min-0"]
    assert [entry["run"] for entry in result["runs"]] == ["mnist-softmax-0"]


def test_a_lack_of_memory_is_no_reason_to_lose_the_others(small, monkeypatch):
    def fails(cell, *_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] can't allocate memory" if cell.seed else "a fault of ours")

    monkeypatch.setattr(reproduction, "network", fails)
    done = invoke(*MNIST, "--seeds", "1,2", "--json", code=1)
    assert list(json.loads(done.stdout)["failed"]) == ["mnist-max_min-1", "mnist-max_min-2"]
    assert "error: mnist-max_min-2: this needs more memory than there is: choose a smaller network" in done.stderr
    with pytest.raises(RuntimeError, match="a fault of ours"):
        CliRunner().invoke(app, [str(word) for word in MNIST], catch_exceptions=False)


def write(folder, cell, **changes):
    file = folder / "results" / f"{cell.name}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**values(cell), "config": json.loads(network(cell).to_json()), **changes}))


def test_list_says_how_long(small):
    write(small, Cell("mnist", "max_min", 0))  # 3 epochs in 2 hours
    listed = json.loads(invoke("reproduce", "--data", "mnist", "--epochs", 3, "--list", "--json").stdout)
    assert listed == [
        {"run": "mnist-max_min-0", "state": "done", "epochs": 3, "of": 3, "seconds_left": 0.0},
        {"run": "mnist-softmax-0", "state": "to do", "epochs": 0, "of": 3, "seconds_left": 7200.0},
    ]
    table = invoke("reproduce", "--list", "--seeds", "0,4").stdout
    assert "cifar10-softmax-4" in table
    assert "6.7 h" in table  # 10 epochs of MNIST


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--data", "digits"],
            "--data digits: expected one of mnist, background_mnist, fashion_mnist, rotated_mnist, ci",
        ),
        (["--normalization", "maxmin"], "--normalization maxmin: expected one of max_min, softmax"),
        (["--seeds", "0"], "--seeds 0: expected how many, such as 3, or which, such as 0,2 or 2,"),
        (["--seeds", "00"], "--seeds 00: expected how many"),
        (["--seeds", "0-2"], "--seeds 0-2: expected how many"),
        (["--seeds", ","], "--seeds ,: expected how many"),
        (["--shard", "3/2"], "--shard 3/2: expected K/N with K from 1 to N, such as 1/3"),
        (["--shard", "half"], "--shard half: expected K/N"),
        (["--epochs", "0"], "--epochs"),
        (["--report", "--data", "mnist"], "--data: --report is of everything in --results, leave one of them out"),
        (["--report", "--list"], "--list: --report is of everything in --results"),
        (["--report", "--seeds", "2"], "--seeds: --report is of everything in --results"),
        (["--report", "--fast-every", "2"], "--fast-every: --report is of everything in --results"),
        (["--out", "page"], "--out: --report writes it, and was not given: add it, or leave this out"),
        (["--readme", "x.md"], "--readme: --report writes it, and was not given"),
    ],
)
def test_wrong_use(arguments, message, small):
    said = invoke("reproduce", *arguments, code=2).stderr
    assert message in " ".join(said.replace("│", " ").split())
    assert not (small / "runs").exists()


def test_other_epochs_than_what_is_there_are_refused_at_once(small):
    write(small, Cell("mnist", "softmax", 0))
    refused = invoke("reproduce", "--data", "mnist", "--epochs", 5, code=1).stderr
    assert refused == (
        "error: results/mnist-softmax-0.json has epochs 3, 5 was requested: leave --epochs out to take it "
        "as it is, or give other folders as --runs and --results\n"
    )
    seldom = invoke("reproduce", "--data", "mnist", "--fast-every", 3, code=1).stderr
    assert (
        "error: results/mnist-softmax-0.json was made without --fast-every 3: leave --fast-every out to take it as"
        in seldom
    )
    folder = small / "runs" / "reproduce" / "mnist-max_min-0"
    folder.mkdir(parents=True)
    about = values(Cell("mnist", "max_min", 7))
    del about["evaluation"], about["metrics"]
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "metrics.jsonl").write_text("")
    other = invoke(*MNIST, code=1).stderr
    assert "runs/reproduce/mnist-max_min-0 is no run for the paper's table (seed is 7, expected 0)" in other
    about["settings"]["seed"] = 0
    about["config"] = json.loads(network(Cell("mnist", "max_min", 0)).to_json())
    (folder / "run.json").write_text(json.dumps(about))
    epochs = invoke(*MNIST, "--epochs", 5, code=1).stderr
    assert "runs/reproduce/mnist-max_min-0 has epochs 3, 5 was requested" in epochs
    about["settings"]["test_every"] = 1
    (folder / "run.json").write_text(json.dumps(about))
    looks = invoke(*MNIST, "--test-every", 2, code=1).stderr
    assert "mnist-max_min-0 has --test-every 1, 2 was requested: leave --test-every out to take" in looks


@pytest.mark.slow
def test_coefficients_of_another_kind_are_refused(small):
    run = small / "runs" / "reproduce" / "mnist-max_min-0"
    invoke(*MNIST, "--epochs", 1)
    (small / "results" / "mnist-max_min-0.json").unlink()
    invoke("accumulate", run, "--iteration", 2, "--threads", 1)
    said = invoke(*MNIST, code=1).stderr
    assert "mnist-max_min-0 was evaluated with coefficients of iteration 2, per_class, 0 filters, expected the" in said
    assert not list((small / "results").iterdir())


def test_the_readmes_table_is_what_report_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = (ROOT / "README.md").read_text()
    old = shown.replace("99.55 → 99.43", "0.00 → 0.00")
    assert old != shown
    (tmp_path / "README.md").write_text(old)
    done = invoke("reproduce", "--report", "--results", ROOT / "results")
    assert (tmp_path / "README.md").read_text() == shown
    assert "wrote runs/reproduce/report.md, runs/reproduce/report.html, README.md" in done.stderr
    assert "Fashion-MNIST" in done.stdout


def test_a_place_for_the_table_must_be_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = invoke("reproduce", "--report", code=1).stderr
    assert missing == "error: results does not exist: give the folder of the JSON files of finished runs as --results\n"
    (tmp_path / "results").mkdir()
    (tmp_path / "README.md").write_text("nothing\n")
    assert "README" not in invoke("reproduce", "--report").stderr
    refused = invoke("reproduce", "--report", "--readme", "README.md", code=1).stderr
    assert refused == (
        "error: README.md has no place for the table: put <!-- table: reproduction --> and <!-- end --> there\n"
    )
    assert (tmp_path / "README.md").read_text() == "nothing\n"


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_in_a_real_browser(tmp_path, width, scheme):
    invoke("reproduce", "--report", "--results", ROOT / "results", "--out", tmp_path, "--readme", copied(tmp_path))
    results = finished(ROOT / "results")
    with opened(tmp_path / "report.html", width, scheme) as page:
        tables = page.eval_on_selector_all("table", "all => all.map(t => t.querySelectorAll('tbody tr').length)")
        names = page.eval_on_selector_all("dt", "all => all.map(d => d.textContent)")
    details = [len(table(results).rows) for table in (losses_table, pooled_table)]
    assert tables == [4, 4, 4, 4, 4, len(results), *details]
    assert names == sorted(cell.name for cell in results)


def copied(folder):
    (folder / "README.md").write_text((ROOT / "README.md").read_text())
    return folder / "README.md"


@pytest.mark.slow
def test_a_reproduced_network_opens_like_any_run(small):
    invoke(*MNIST, "--epochs", 1)
    assert CapsNet.from_pretrained(small / "runs" / "reproduce" / "mnist-max_min-0").config.stem_channels == 8
