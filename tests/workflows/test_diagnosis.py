"""What is found on a machine, and what is missing."""

import json

from typer.testing import CliRunner

from fastcaps import bundled, workflows
from fastcaps.cli import app


def test_what_is_there(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTCAPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FASTCAPS_DATA", raising=False)
    diagnosis = workflows.doctor()
    assert diagnosis.cores >= 1
    assert "mnist" in diagnosis.networks
    assert diagnosis.data_sets["digits"]
    assert {package.name: package.version is not None for package in diagnosis.packages}["torch"]
    cache = next(folder for folder in diagnosis.folders if folder.purpose.startswith("downloads"))
    assert (cache.path, cache.writable) == (str(tmp_path / "cache"), True)
    assert not (tmp_path / "cache").exists()
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert json.loads(result.stdout)["networks"] == list(diagnosis.networks)


def test_what_is_missing_and_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTCAPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FASTCAPS_DATA", str(tmp_path / "nowhere"))
    (tmp_path / "cache").write_text("a file where the folder should be")
    monkeypatch.setattr("fastcaps.workflows.diagnosis.version", lambda name: {"torch": "2.13.0"}[name])
    monkeypatch.setattr("fastcaps.workflows.diagnosis.PackageNotFoundError", KeyError)
    file = bundled.ModelFile(bytes=1, sha256="")
    monkeypatch.setattr(bundled, "large_files", lambda name: {"lost": file} if name == "cifar10" else {})
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    for words in (
        "cache can't be written to: set FASTCAPS_CACHE to another folder",
        "nowhere, which is not a folder: create it, or unset the variable",
        "not installed: scikit-learn,",
        "networks not installed: cifar10; python -m pip install fastcaps-models",
        "python -m pip install scikit-learn matplotlib",
    ):
        assert words in " ".join(result.stdout.split()), words
