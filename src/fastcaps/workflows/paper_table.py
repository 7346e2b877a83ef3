"""Status and report of the runs of the paper's table. Does not import PyTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastcaps._files import write_atomically
from fastcaps._progress import say
from fastcaps._result import Result, Table, without_none
from fastcaps.reproduction import (
    Cell,
    Row,
    RunResult,
    accuracy_table,
    finished,
    losses_table,
    pooled_table,
    report_page,
    rows,
    runs_table,
    summary_table,
    with_tables,
)
from fastcaps.reproduction.cells import check_run
from fastcaps.training.run import Run
from fastcaps.training.settings import TrainSettings

_TABLE = "reproduction"


@dataclass(frozen=True)
class RunProgress:
    """Progress of one run of the table.

    Attributes:
        run: its name.
        state: ``"done"``, ``"trained"``, ``"begun"`` or ``"to do"``.
        epochs: number of finished epochs.
        of: total number of epochs.
        seconds_left: estimated remaining training time; None if no run of the same data set is done.
    """

    run: str
    state: Literal["done", "trained", "begun", "to do"]
    epochs: int
    of: int
    seconds_left: float | None


@dataclass(frozen=True, repr=False, eq=False)
class ReproductionStatus(Result):
    """Progress of the runs of the table."""

    runs: tuple[RunProgress, ...]

    def tables(self) -> list[Table]:
        """Return one row per run."""
        lines = [
            [
                entry.run,
                entry.state,
                f"{entry.epochs} of {entry.of}",
                "–" if entry.seconds_left is None else f"{entry.seconds_left / 3600:.1f} h",
            ]
            for entry in self.runs
        ]
        return [Table("The paper's table", ["run", "state", "epochs", "training left"], lines)]


@dataclass(frozen=True, repr=False, eq=False)
class ReproductionReport(Result):
    """The paper's table beside the results of all finished runs.

    Attributes:
        rows: one per number of the paper.
        files: files that were written.
    """

    rows: tuple[Row, ...]
    files: tuple[Path, ...]

    def tables(self) -> list[Table]:
        """Return the table, limited to the columns that fit on a screen."""
        table = accuracy_table(self.rows)
        return [Table(table.title, table.columns[:7], [line[:7] for line in table.rows])]


def reproduction_status(
    cells: Sequence[Cell],
    runs: str | Path = "runs/reproduce",
    results: str | Path = "results",
    *,
    epochs: int | None = None,
) -> ReproductionStatus:
    """Return the progress of the runs of the table.

    Args:
        cells: the runs.
        runs: folder of the run folders.
        results: folder of the JSON files of finished runs.
        epochs: number of epochs of runs that have not started; the defaults of their data sets when None.
    """
    done = finished(Path(results))
    return ReproductionStatus(tuple(_progress(cell, Run(Path(runs) / cell.name), done, epochs) for cell in cells))


def reproduction_report(
    results: str | Path = "results", out: str | Path = "runs/reproduce", *, readme: str | Path | None = None
) -> ReproductionReport:
    """Write the paper's table beside the results of all finished runs, as Markdown and as a page.

    Args:
        results: folder of the JSON files of finished runs.
        out: folder for ``report.md`` and ``report.html``.
        readme: a Markdown file with markers for the table; ``README.md`` by default if it exists and has them.
    """
    results, out = Path(results), Path(out)
    if not results.is_dir():
        raise FileNotFoundError(
            f"{results} does not exist: give the folder of the JSON files of finished runs as results="
        )
    done = finished(results)
    table = tuple(rows(done))
    sections = {
        "The paper's table, reproduced": accuracy_table(table),
        "Every run": runs_table(done),
        "What fast routing loses": losses_table(done),
        "Over all data sets": pooled_table(done),
    }
    text = "\n".join(f"## {title}\n\n{section.to_markdown()}" for title, section in sections.items())
    files = {out / "report.md": text.encode(), out / "report.html": report_page(done).encode()}
    page = _readme(summary_table(table).to_markdown(), readme)
    write_atomically(files)
    write_atomically(page)  # a transaction of its own: it may be on another disk
    files |= page
    say(f"wrote {', '.join(map(str, files))}")
    return ReproductionReport(table, tuple(files))


def check_request(
    cell: Cell, done: Mapping[Cell, RunResult], runs: Path, results: Path, requested: Mapping[str, int | None]
) -> None:
    """Raise if a run exists with other settings than requested.

    Args:
        cell: the run.
        done: results of finished runs.
        runs: folder of the run folders.
        results: folder of the JSON files of finished runs.
        requested: ``epochs``, ``test_every`` and ``fast_every``; None for any.
    """
    run = Run(runs / cell.name)
    if cell in done:
        place, settings = results / f"{cell.name}.json", done[cell].about.settings
        unmeasured = [epoch.epoch for epoch in done[cell].metrics if "fast_test_accuracy" not in epoch.measures]
    elif run.about_file.is_file():
        place, settings = run.folder, run.settings
        unmeasured = [row.epoch for row in run.metrics() if "fast_test_accuracy" not in row.measures]
        check_run(run.about, cell, place)
    else:
        return
    advice = "leave {}= out to take it as it is, or give other folders as runs= and results="
    for name in ("epochs", "test_every"):
        value = requested[name]
        if value is not None and getattr(settings, name) != value:
            raise ValueError(
                f"{place} has {name} {getattr(settings, name)}, {value} was requested: {advice.format(name)}"
            )
    fast_every = requested["fast_every"]
    if fast_every and any(epoch % fast_every == 0 for epoch in unmeasured):
        raise ValueError(f"{place} was made without fast_every {fast_every}: {advice.format('fast_every')}")


def _progress(cell: Cell, run: Run, done: Mapping[Cell, RunResult], epochs: int | None) -> RunProgress:
    state: Literal["done", "trained", "begun", "to do"] = "to do"
    behind, total = 0, TrainSettings.for_data(cell.data, **without_none(epochs=epochs)).epochs
    if cell in done:
        state, behind = "done", done[cell].about.settings.epochs
        total = behind
    elif run.about_file.is_file():
        state = "trained" if run.about.state == "finished" else "begun"
        behind, total = len(run.metrics()), run.settings.epochs
    per_epoch = [
        (result.about.seconds or 0.0) / result.about.settings.epochs
        for other, result in done.items()
        if other.data == cell.data
    ]
    left = total - behind
    seconds = 0.0 if not left else left * sum(per_epoch) / len(per_epoch) if per_epoch else None
    return RunProgress(cell.name, state, behind, total, seconds)


def _readme(table: str, readme: str | Path | None) -> dict[Path, bytes]:
    """Return the Markdown file with the table inserted, if there is such a file."""
    page = Path("README.md" if readme is None else readme)
    if readme is None and not page.is_file():
        return {}
    text = page.read_text()
    if f"<!-- table: {_TABLE} -->" in text:
        return {page: with_tables(text, {_TABLE: lambda: table}).encode()}
    if readme is None:
        return {}
    raise ValueError(f"{page} has no place for the table: put <!-- table: {_TABLE} --> and <!-- end --> there")
