import dataclasses
import json
import subprocess
import sys

import pytest
from PIL import Image
from tests.data import tiny
from typer.testing import CliRunner

from fastcaps.cli import app
from fastcaps.data.registry import SETS


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A data folder with a tiny MNIST, and an empty cache."""
    monkeypatch.setenv("FASTCAPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FASTCAPS_DATA", raising=False)
    monkeypatch.setitem(SETS, "mnist", tiny.write_idx_set(tmp_path / "data"))
    for name in ("rotated_mnist", "background_mnist"):
        monkeypatch.setitem(SETS, name, dataclasses.replace(SETS[name], train=30, test=40))
    return tmp_path / "data"


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def listed(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return {entry["name"]: entry for entry in json.loads(result.stdout)}


def test_list_says_what_is_available(folder):
    without = listed("list")
    assert list(without) == list(SETS)
    assert [name for name, entry in without.items() if entry["available"]] == ["digits"]
    sets = listed("list", "--data-dir", folder)
    assert [name for name, entry in sets.items() if entry["available"]] == [
        "mnist",
        "rotated_mnist",
        "background_mnist",
        "digits",
    ]
    assert sets["mnist"]["where"] == str(folder / "mnist")
    assert sets["mnist"]["bytes"] == sum(path.stat().st_size for path in (folder / "mnist").iterdir())
    assert sets["rotated_mnist"]["where"] == "generated from mnist"
    assert sets["cifar10"]["sources"] == ["https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"]
    assert sets["fashion_mnist"]["sources"][0].endswith(".amazonaws.com/")
    assert sets["cifar10"]["image_shape"] == [3, 32, 32]


def test_list_for_people(folder):
    result = run("list", "--data-dir", folder)
    assert result.exit_code == 0
    assert "50,000 / 10,000" in result.stdout
    assert f"mnist: {folder / 'mnist'}" in result.stdout
    assert "cifar10: missing" in result.stdout
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in result.stdout


@pytest.mark.slow
def test_list_needs_neither_torch_nor_scikit_learn(folder):
    script = (
        "import sys; from fastcaps.cli import app; app(['data', 'list', '--json'], standalone_mode=False); "
        "print([name for name in ('torch', 'sklearn') if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


def test_download_verifies_files_and_generates_variants(folder, tmp_path):
    sets = listed("download", "mnist", "rotated-mnist", "digits", "--data-dir", folder)
    assert list(sets) == ["mnist", "rotated_mnist", "digits"]
    assert sets["rotated_mnist"]["bytes"] > 70 * 784
    assert len(list((tmp_path / "cache" / "generated").iterdir())) == 2
    former = run("get", "mnist", "--data-dir", folder)
    assert former.exit_code == 0
    assert "warning: fastcaps data get is deprecated, use fastcaps data download" in former.stderr
    assert former.stdout == run("download", "mnist", "--data-dir", folder).stdout
    assert " get " not in run("--help").stdout


def test_download_writes_to_the_named_folder(folder, tmp_path, monkeypatch):
    from fastcaps.data import files

    asked = []
    monkeypatch.setattr(
        files, "download_file", lambda item, wanted, into, places, check: asked.append((item.name, into))
    )
    monkeypatch.setattr(files, "read", lambda items: [])
    assert run("download", "cifar10").exit_code == 0
    assert run("download", "cifar10", "--data-dir", tmp_path / "new").exit_code == 0
    assert asked == [("cifar-10-binary.tar.gz", tmp_path / place / "cifar10") for place in ("cache", "new")]


def test_download_original_variants(tmp_path, monkeypatch):
    from fastcaps.data import amat, files

    asked = []

    def download(item, wanted, into, places, check):
        asked.append(item.name)
        check([])

    monkeypatch.setattr(files, "download_file", download)
    monkeypatch.setattr(amat, "load", lambda entry, items: asked.append("verified"))
    assert run("download", "rotated_mnist", "--original").exit_code == 0
    assert asked == ["mnist_rotation_new.zip", "verified"]
    result = run("download", "mnist", "--original")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: mnist is never generated, so --original has no meaning for it: leave it out\n",
    )


def test_a_damaged_file_is_one_line(folder):
    path = folder / "mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(b"other")
    result = run("download", "mnist", "--data-dir", folder)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {path} has SHA-256 {tiny.sha256(b'other')}, expected ")
    assert result.stderr.count("\n") == 1


def test_a_wrong_name_is_refused_before_anything_is_downloaded(monkeypatch):
    result = run("download", "cifar10", "minst")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no data set 'minst'")


def test_preview_writes_a_picture(folder, tmp_path):
    out = tmp_path / "pictures" / "a.png"
    result = run("preview", "mnist", "--data-dir", folder, "--out", out, "--count", "12", "--augmented")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    with Image.open(out) as picture:
        assert picture.format == "PNG"
        assert picture.width > 900


def test_preview_of_a_folder(tmp_path, monkeypatch):
    for name in ("a", "b"):
        for k in range(3):
            tiny.save_image(tmp_path / "mine" / name / f"{k}.png", color=True)
    monkeypatch.chdir(tmp_path)
    assert run("preview", "mine").exit_code == 0
    assert (tmp_path / "mine.png").is_file()
    result = run("preview", "nothing")
    assert result.exit_code == 1
    assert "there is no data set 'nothing', and no folder of that name" in result.stderr
