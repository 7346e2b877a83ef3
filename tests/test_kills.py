"""Every command that writes, killed at every step of every write: all its files are of before, or all are new."""

import dataclasses
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data import tiny
from tests.kills import Killed, check_every_kill, contents, killed_at, recorded
from tests.training.conftest import make_data, small_config

from fastcaps import CapsNet, FastCapsNet, workflows
from fastcaps._files import recover, write_atomically
from fastcaps.benchmark.measure import machine
from fastcaps.benchmark.results import Benchmark
from fastcaps.benchmark.settings import Settings
from fastcaps.compression import CompressSettings, RefitSettings
from fastcaps.data import catalog
from fastcaps.data.registry import SETS
from fastcaps.reproduction import Cell
from fastcaps.serving.site import write_site
from fastcaps.training import Run, Trainer, TrainSettings

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
DATA = make_data()
SETTINGS = TrainSettings(epochs=1, batch_size=16, validation=0.25, warmup=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    Trainer(CapsNet(small_config()), DATA, SETTINGS, folder, loggers=[]).fit()
    workflows.accumulate(folder, data=DATA)
    workflows.evaluate(folder, data=DATA)
    return folder


@pytest.fixture
def _nothing_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure and draw nothing: only files matter here."""
    empty: dict[str, Any] = dict.fromkeys(("engines", "disturbance", "growth", "skipped", "aims"), ())
    measured = Benchmark(machine=machine(), settings=Settings.quick(), multiply_adds_per_second=1.0, **empty)
    monkeypatch.setattr("fastcaps.benchmark.inference.bench", lambda settings, observe: measured)
    monkeypatch.setattr("fastcaps.workflows.benchmark.figure", lambda result: None)
    monkeypatch.setattr("fastcaps.workflows.compression.time_networks", lambda networks: ())
    for name in ("analysis", "ablation", "benchmark", "compression", "evaluation"):
        monkeypatch.setattr(f"fastcaps.workflows.{name}.figure_bytes", lambda figure: PNG)
    drawing = b'<svg width="9pt" height="9pt" viewBox="0 0 9 9"><defs></defs></svg>'
    monkeypatch.setattr("fastcaps.workflows.analysis.page_svg", lambda figure: drawing)


def read_run(folder: Path) -> None:
    """Whatever is there can be read, and belongs together."""
    if not (folder / "run.json").is_file():
        return
    run = Run.open(folder)
    if run.master_file.is_file() and run.fast_folder.is_dir():
        assert run.master().values_hash == FastCapsNet.from_pretrained(folder).provenance["coefficients_sha256"]
    if run.model_folder.is_dir():
        run.model()


def train(folder: Path) -> None:
    master = workflows.accumulate(folder / "run", folder / "master", data=DATA, iteration=1).coefficients
    Trainer(CapsNet(small_config()), DATA, SETTINGS, folder / "new", master=master, loggers=[]).fit()


def accumulate(folder: Path) -> None:
    workflows.accumulate(folder / "run", data=DATA, iteration=1)


def evaluate(folder: Path) -> None:
    workflows.evaluate(folder / "run", data=DATA)


def ablate(folder: Path) -> None:
    workflows.ablate(folder / "run", data=DATA, filters={"none": []}, methods=["pooled"], iterations=[2])


def analyze(folder: Path) -> None:
    workflows.analyze(folder / "run", data=DATA)


def export_and_page(folder: Path) -> None:
    workflows.export(folder / "run", folder / "model.onnx", data=DATA, threads=1)
    write_site(folder / "model.onnx", folder / "page")


def compress(folder: Path) -> None:
    settings = CompressSettings(max_drop=100, types=2, held_out=12, batch_size=16, refit=RefitSettings(epochs=1))
    workflows.compress(folder / "run", folder / "small", settings=settings, data=DATA)


def bench(folder: Path) -> None:
    workflows.bench(folder=folder / "bench")


def reproduce(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SETS, "mnist", tiny.write_idx_set(folder.parent / "data", train=20, test=10))
        small = dataclasses.replace(small_config(), height=28, width=28, classes=10, class_names=())
        for module in ("fastcaps.reproduction.cells", "fastcaps.workflows.reproduction"):
            patch.setattr(f"{module}.network", lambda cell: small)
        cell = Cell("mnist", "max_min", 0)
        options: dict[str, Any] = {"epochs": 1, "data_dir": folder.parent / "data"}
        assert not workflows.reproduce([cell], folder / "runs", folder / "results", **options).failed
        workflows.reproduction_report(folder / "results", folder / "report")


def generate(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTCAPS_CACHE", str(folder / "cache"))
        patch.setitem(SETS, "mnist", tiny.write_idx_set(folder.parent / "data", train=20, test=10))
        patch.setitem(SETS, "rotated_mnist", dataclasses.replace(SETS["rotated_mnist"], train=6, test=4))
        catalog.download("rotated_mnist", data_dir=folder.parent / "data")


@pytest.mark.slow
@pytest.mark.usefixtures("_nothing_slow")
@pytest.mark.parametrize(
    "command", [train, accumulate, evaluate, ablate, analyze, export_and_page, compress, bench, reproduce, generate]
)
def test_killed_at_every_write(
    command: Callable[[Path], None], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(run, folder / "run")
    monkeypatch.chdir(tmp_path)
    before = contents(folder)
    with recorded(folder) as transactions:
        command(folder)
    written = {name for _, new in transactions for name, content in new.items() if content is not None}
    after = contents(folder)
    assert {name for name in after if after[name] != before.get(name)} <= written, "written without a transaction"
    assert transactions
    for number, (old, new) in enumerate(transactions):
        tops = {name.split("/")[0] for name in new}
        part = {name: content for name, content in old.items() if name.split("/")[0] in tops}

        def read(place: Path, tops: set[str] = tops) -> None:
            for top in tops:
                read_run(place / top)

        check_every_kill(part, new, tmp_path / str(number), read)


def test_a_download_that_is_killed_has_no_name_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SETS["mnist"]

    def half(downloader: object, url: str, path: str, pooch: object) -> None:
        Path(path).write_bytes(b"half")
        raise Killed

    monkeypatch.setattr("pooch.downloaders.HTTPDownloader.__call__", half)
    monkeypatch.setenv("FASTCAPS_CACHE", str(tmp_path))
    monkeypatch.delenv("FASTCAPS_DATA", raising=False)
    with pytest.raises(Killed):
        catalog.download("mnist", data_dir=tmp_path)
    assert entry.files is not None
    assert not any((tmp_path / entry.files.folder / file.name).exists() for file in entry.files.files)


def test_files_are_removed_with_others_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("old", "both"):
        (tmp_path / name).write_bytes(b"1")
    write_atomically({tmp_path / "old": None, tmp_path / "missing": None, tmp_path / "both": b"2"})
    assert contents(tmp_path) == {"both": b"2"}
    with pytest.raises(OSError, match="a"):
        write_atomically({tmp_path / "both": None, tmp_path / "a": b"a folder is there"})
    assert contents(tmp_path) == {"both": b"2"}
    check_every_kill({"x": b"1", "y": b"1"}, {"x": None, "y": b"2"}, tmp_path / "kills", lambda place: None)


@pytest.mark.slow
def test_master_and_folded_network_of_different_runs_are_refused(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    other = workflows.accumulate(folder, tmp_path / "other.safetensors", data=DATA, iteration=1)
    shutil.copy(other.path, folder / "master.safetensors")
    for read in (Run.open(folder).master, lambda: FastCapsNet.from_pretrained(folder)):
        with pytest.raises(
            ValueError, match=r"fast was folded from other coefficients \(.*…\) than .*: accumulate aga"
        ):
            read()
    workflows.accumulate(folder, data=DATA)  # repairs it
    images = torch.rand(2, 1, 12, 12)
    assert torch.equal(
        FastCapsNet.from_pretrained(folder)(images).lengths, FastCapsNet.from_pretrained(run)(images).lengths
    )


@pytest.mark.slow
def test_a_second_command_that_writes_into_a_run_is_refused(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    before = contents(folder)
    commands: list[Callable[[], object]] = [
        *(lambda command=command: command(tmp_path) for command in (accumulate, evaluate, ablate, analyze)),
        lambda: Trainer(CapsNet(small_config()), DATA, SETTINGS, folder, loggers=[]).fit(resume=True),
    ]
    refusals = []

    def others() -> None:
        for command in commands:
            try:
                command()
            except ValueError as error:
                refusals.append(str(error))

    with Run.open(folder).locked():
        thread = threading.Thread(target=others)
        thread.start()
        thread.join()
        workflows.evaluate(folder, tmp_path / "elsewhere", data=DATA)  # writes nothing there
    assert len(refusals) == len(commands)
    assert {text.split(":")[0] for text in refusals} == {f"another process is writing into {folder}"}
    assert contents(folder) == before


@pytest.mark.slow
def test_a_command_removes_what_a_killed_one_left(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    with pytest.raises(Killed), killed_at(11):
        write_atomically({folder / "evaluation.json": b"new", folder / "confusion.png": b"new"})
    assert list(folder.glob(".fastcaps-*"))
    evaluate(tmp_path)
    assert not list(folder.glob(".fastcaps-*"))
    recover(folder)
