"""The runs of the paper's table: train, accumulate, evaluate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch

from fastcaps._files import json_bytes, write_atomically
from fastcaps._machine import out_of_memory_message
from fastcaps._progress import say
from fastcaps._result import Result, Table, without_none
from fastcaps.analysis.results import Evaluation
from fastcaps.data import DataSet, batches, load
from fastcaps.master import accumulate as accumulate_network
from fastcaps.master import fold
from fastcaps.nn import CapsNet
from fastcaps.reproduction import Cell, RunResult, finished, network
from fastcaps.reproduction.cells import check_result
from fastcaps.training import Trainer, TrainSettings
from fastcaps.training.accuracy import count_correct
from fastcaps.training.run import Run
from fastcaps.workflows._common import Execution, ExecutionOptions, restores_threads
from fastcaps.workflows.accumulation import accumulate
from fastcaps.workflows.evaluation import evaluate
from fastcaps.workflows.paper_table import check_request

# On a test set of this size the accuracy is only measured every tenth epoch: it takes longer than the epoch.
LARGE_TEST_SET, _SELDOM = 50_000, 10
_CHECKPOINT_EVERY = 100


@dataclass(frozen=True, repr=False, eq=False)
class ReproductionResult(Result):
    """Finished runs of the paper's table.

    Attributes:
        results: results of finished runs, by their cells.
        failed: error messages of failed runs, by their names.
    """

    results: Mapping[Cell, RunResult]
    failed: Mapping[str, str]

    def tables(self) -> list[Table]:
        """Return one row per finished run."""
        rows = [
            [cell.name, str(result.about.settings.epochs), *(f"{result.accuracy(name):.2%}" for name in _ROUTINGS)]
            for cell, result in self.results.items()
        ]
        return [Table("Finished", ["run", "epochs", *_ROUTINGS], rows)]

    def to_dict(self) -> dict[str, Any]:
        """Return epochs and accuracies of each run as plain values for JSON."""
        runs = [
            {
                "run": cell.name,
                "epochs": result.about.settings.epochs,
                **{name: result.accuracy(name) for name in _ROUTINGS},
            }
            for cell, result in self.results.items()
        ]
        return {"runs": runs, "failed": dict(self.failed)}


_ROUTINGS = ("dynamic", "fast", "uniform")


class _Request(NamedTuple):
    """How often to measure; None for the defaults of the data set."""

    epochs: int | None
    test_every: int | None
    fast_every: int | None


@restores_threads
def reproduce(
    cells: Sequence[Cell],
    runs: str | Path = "runs/reproduce",
    results: str | Path = "results",
    *,
    epochs: int | None = None,
    test_every: int | None = None,
    fast_every: int | None = None,
    **options: Unpack[ExecutionOptions],
) -> ReproductionResult:
    """Train, accumulate and evaluate runs of the paper's table; each run is resumed from its folder.

    Finished runs are not repeated. A run that fails doesn't stop the others.

    Args:
        cells: data sets, normalizations and seeds, such as `fastcaps.reproduction.all_cells` returns.
        runs: folder of the run folders.
        results: folder of the JSON files, one per finished run.
        epochs: number of epochs of every run; the default of its data set when None.
        test_every: epochs between measurements on the test set; 1 by default, 10 for large sets.
        fast_every: epochs between accumulations to measure fast routing; only at the end when None.
        options: see `ExecutionOptions`.
    """
    runs, results, execution = Path(runs), Path(results), Execution(**options)
    request, done = _Request(epochs, test_every, fast_every), finished(results)
    for cell in cells:
        check_request(cell, done, runs, results, request._asdict())
    finished_runs, failed = {}, {}
    for number, cell in enumerate(cells, 1):
        say(f"{cell.name}: run {number} of {len(cells)}{', done before' if cell in done else ''}")
        if cell in done:
            finished_runs[cell] = done[cell]
            continue
        try:
            finished_runs[cell] = _reproduce_cell(cell, Run(runs / cell.name), request, execution)
            write_atomically({results / f"{cell.name}.json": json_bytes(finished_runs[cell].to_dict())})
        except KeyboardInterrupt:
            say(f"{cell.name} is not finished; the same call resumes it")
            raise
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            message = out_of_memory_message(error)
            if message is None and isinstance(error, RuntimeError):
                raise
            failed[cell.name] = message or str(error)
            say(f"error: {cell.name}: {failed[cell.name]}")
    return ReproductionResult(finished_runs, failed)


def _reproduce_cell(cell: Cell, run: Run, request: _Request, execution: Execution) -> RunResult:
    device = execution.select_device()
    command = f"fastcaps reproduce --data {cell.data} --normalization {cell.normalization} --seeds {cell.seed},"
    for name, value in without_none(**request._asdict()).items():
        command += f" --{name.replace('_', '-')} {value}"
    if not run.about_file.is_file() or run.about.state != "finished":
        _train(cell, run, request, execution, command)
        run = Run(run.folder)
    options: ExecutionOptions = {"data_dir": execution.data_dir, "device": device, "command": command}
    if not run.master_file.is_file():
        accumulate(run, **options)
    file, _ = run.evaluation_files
    evaluation = Evaluation.load(file) if file.is_file() else evaluate(run, **options)
    result = RunResult.of(run, evaluation)
    check_result(result, cell, run.folder)
    return result


def _train(cell: Cell, run: Run, request: _Request, execution: Execution, command: str) -> None:
    """Train a run, or resume it with the settings it was started with."""
    begun = run.about_file.is_file()
    fast_every = request.fast_every or (run.about.fast_every if begun else None)
    data = run.data(execution.data_dir) if begun else load(cell.data, data_dir=execution.data_dir)
    if begun:
        settings = run.settings
    else:
        settings = TrainSettings.for_data(
            cell.data,
            seed=cell.seed,
            **without_none(epochs=request.epochs),
            test_every=request.test_every or (_SELDOM if len(data.test) >= LARGE_TEST_SET else 1),
            checkpoint_every=_CHECKPOINT_EVERY,
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell.seed)
        model = CapsNet(network(cell)).to(execution.select_device())
    model.primary.convolution = run.about.convolution if begun else "auto"

    def measure(model: CapsNet, epoch: int) -> dict[str, float]:
        if not fast_every or (epoch % fast_every and epoch < settings.epochs):
            return {}
        return {"fast_test_accuracy": _fast_accuracy(model, run, data)}

    about = {"command": command, **without_none(fast_every=fast_every)}
    trainer = Trainer(model, data, settings, run.folder, about=about, measure=measure)
    trainer.fit(resume=run.checkpoint_file.exists())


def _fast_accuracy(model: CapsNet, run: Run, data: DataSet) -> float:
    """Return the test accuracy of a network in training with fast routing, accumulated with its current weights."""
    view = data.augmentation.test_view
    model.eval()
    master = accumulate_network(model, batches(run.training_part(data), 256, view=view))
    correct = count_correct(fold(model, master), data.test, view)
    model.train()
    return correct / len(data.test)
