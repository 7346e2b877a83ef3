"""One run of the paper's table: train, accumulate, evaluate."""

from pathlib import Path

import torch

from fastcaps.analysis.results import Evaluation
from fastcaps.data import DataSet, batches, load
from fastcaps.master import accumulate as accumulate_network
from fastcaps.master import fold
from fastcaps.nn import CapsNet
from fastcaps.reproduction import Cell, RunResult, network
from fastcaps.reproduction.cells import check_result
from fastcaps.training import Trainer, TrainSettings
from fastcaps.training.accuracy import count_correct
from fastcaps.training.result import result_of
from fastcaps.training.run import Run
from fastcaps.workflows._common import given, select_device
from fastcaps.workflows.accumulation import accumulate
from fastcaps.workflows.evaluation import evaluate

# Test sets of this size are looked at every tenth epoch only: they take longer than the epoch.
_LARGE, _SELDOM = 50_000, 10
_CHECKPOINT_EVERY = 100


def reproduce(
    cell: Cell,
    folder: str | Path,
    *,
    epochs: int | None = None,
    test_every: int | None = None,
    fast_every: int | None = None,
    data_dir: str | Path | None = None,
    device: str | torch.device = "auto",
    threads: int | None = None,
) -> RunResult:
    """Train, accumulate and evaluate one run of the paper's table, from wherever its folder is.

    Args:
        cell: data set, normalization and seed.
        folder: of the run.
        epochs: of the run; by data set when None.
        test_every: epochs between looks at the test set; each by default, of large sets every tenth.
        fast_every: epochs between accumulations to measure fast routing; only at the end when None.
        data_dir: folder of the data sets' files.
        device: ``"auto"``, or a device of PyTorch.
        threads: CPU threads; all by default.

    Returns:
        What the JSON file of the run holds.
    """
    folder, target = Path(folder), select_device(device, threads)
    words = f"fastcaps reproduce --data {cell.data} --normalization {cell.normalization} --seeds {cell.seed},"
    for name, value in given(epochs=epochs, test_every=test_every, fast_every=fast_every).items():
        words += f" --{name.replace('_', '-')} {value}"
    run = Run(folder)
    if not run.about_file.is_file() or run.about.get("state") != "finished":
        _train(cell, run, target, epochs, test_every, fast_every, data_dir, words)
        run = Run(folder)
    if not run.master_file.is_file():
        accumulate(run, data_dir=data_dir, device=target, command=words)
    evaluation, _ = run.evaluation_files
    if evaluation.is_file():
        measured = Evaluation.load(evaluation)
    else:
        measured = evaluate(run, data_dir=data_dir, device=target, command=words)
    result = RunResult.from_dict(result_of(run, measured.to_dict()))
    check_result(result, cell, folder)
    return result


def _train(
    cell: Cell,
    run: Run,
    device: torch.device,
    epochs: int | None,
    test_every: int | None,
    fast_every: int | None,
    data_dir: str | Path | None,
    words: str,
) -> None:
    """Train, or go on with the settings the folder's run was begun with."""

    begun = run.about_file.is_file()
    fast_every = fast_every or (run.about.get("fast_every") if begun else None)
    images = run.data(data_dir) if begun else load(cell.data, data_dir=data_dir)
    if begun:
        settings = TrainSettings.from_dict(run.about["settings"])
    else:
        every = test_every or (_SELDOM if len(images.test) >= _LARGE else 1)
        settings = TrainSettings.for_data(
            cell.data, seed=cell.seed, **given(epochs=epochs), test_every=every, checkpoint_every=_CHECKPOINT_EVERY
        )
    torch.manual_seed(cell.seed)
    model = CapsNet(network(cell)).to(device)
    model.primary.convolution = run.about.get("convolution", "auto") if begun else "auto"

    def measure(model: CapsNet, epoch: int) -> dict[str, float]:
        if not fast_every or (epoch % fast_every and epoch < settings.epochs):
            return {}
        return {"fast_test_accuracy": _fast_accuracy(model, run, images)}

    about = {"command": words, **given(fast_every=fast_every)}
    trainer = Trainer(model, images, settings, run.folder, about=about, measure=measure)
    trainer.fit(resume=run.checkpoint_file.exists())


def _fast_accuracy(model: CapsNet, run: Run, images: DataSet) -> float:
    """Of a network in training, with coefficients accumulated from its present weights."""

    view = images.augmentation.test_view
    model.eval()
    master = accumulate_network(model, batches(run.training_part(images), 256, view=view))
    correct = count_correct(fold(model, master), images.test, view)
    model.train()
    return correct / len(images.test)
