"""``fastcaps models`` and ``fastcaps bench`` with a network that comes with the package."""

import json
import subprocess
import sys

import pytest
from tests.cli.commands import invoke

from fastcaps import CapsNetConfig, bundled
from fastcaps.benchmark.agreement import COMPARED
from fastcaps.benchmark.measure import machine
from fastcaps.benchmark.results import Benchmark
from fastcaps.benchmark.settings import Settings
from fastcaps.training import Run


def test_models_lists_what_there_is():
    result = {entry["name"]: entry for entry in json.loads(invoke("models", "--json").stdout)}
    assert list(result) == bundled.names()
    for name, entry in result.items():
        about = Run.open(name).about
        assert entry["data"] == about.data.name
        assert entry["accuracy"] == about.evaluation
        assert entry["weights_sha256"] in (bundled.resolve(name) / "README.md").read_text()
        assert entry["bytes"] > 1e6
    said = invoke("models")
    assert f"{result['mnist']['accuracy']['fast']:.2%}" in said.stdout
    assert result["mnist"]["weights_sha256"][:12] in said.stdout
    assert f"mnist: {result['mnist']['card']}" in said.stderr


def test_models_names_an_exported_file(tmp_path, monkeypatch):
    for name in ("run.json", "model/config.json"):
        place = tmp_path / "mnist" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((bundled.resolve("mnist") / name).read_bytes())
    monkeypatch.setattr(bundled, "FOLDER", tmp_path)
    assert json.loads(invoke("models", "--json").stdout)[0]["onnx"] is None
    (tmp_path / "mnist" / bundled.ONNX).write_bytes(b"")
    assert str(tmp_path / "mnist" / bundled.ONNX) in invoke("models").stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["models"], ["reproduce", "--list"], ["reproduce", "--report"]])
def test_they_dont_import_torch(arguments, tmp_path):
    code = f"""
import sys
from fastcaps.cli import app
try:
    app({arguments!r})
except SystemExit as done:
    print(done.code, "torch" in sys.modules)
"""
    (tmp_path / "results").mkdir()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "0 False"


EMPTY = Benchmark(
    machine=machine(),
    settings=Settings.quick(),
    multiply_adds_per_second=1,
    engines=(),
    disturbance=(),
    growth=(),
    skipped=(),
    aims=(),
)


def test_bench_takes_a_networks_sizes(monkeypatch):
    asked = []

    def measure(settings, observe):
        asked.append(settings)
        return EMPTY

    monkeypatch.setattr("fastcaps.benchmark.inference.bench", measure)
    for arguments in (["mnist"], ["cifar10", "--batch", 2], []):
        invoke("bench", *arguments, "--json", "--threads", 1)
    mnist, cifar10, none = asked
    assert mnist.config == none.config == CapsNetConfig.mnist()
    assert cifar10.config == CapsNetConfig.cifar10()
    assert cifar10.batches == (2,)
    assert cifar10.growth["lower capsules"] == (1024, 4096, 16384)
    assert mnist.growth == none.growth
    refused = invoke("bench", "mnist", "--quick", code=2).stderr
    assert "--quick measures a tiny network of its own: leave mnist or --quick out" in " ".join(refused.split())
    assert "nowhere is no run: it has no run.json" in invoke("bench", "nowhere", code=1).stderr


@pytest.mark.slow
def test_bench_compares_answers(monkeypatch, tmp_path):
    monkeypatch.setattr("fastcaps.benchmark.inference.bench", lambda settings, observe: EMPTY)
    network = [f"--set={value}" for value in ("stem_channels=8", "capsule_types=2")]
    folder = tmp_path / "digits"
    invoke("train", "--data", "digits", "--out", folder, "--epochs", 1, "--threads", 1, *network)
    invoke("accumulate", folder, "--threads", 1)
    result = json.loads(invoke("bench", folder, "--check-images", 5, "--json", "--threads", 1).stdout)
    assert {row["engine"]: row["images"] for row in result["answers"]} == dict.fromkeys(COMPARED, 5)
    refused = invoke("bench", folder, "--compressed", "cifar10", code=1).stderr
    assert "has height 24, the whole one 28: expected a network that was compressed from it" in refused
    refused = invoke("bench", "--compare", 5, code=2).stderr
    assert "--compare is deprecated, use --check-images" in refused
    assert "--check-images needs a trained network: give a run, or a name such as mnist" in " ".join(refused.split())
