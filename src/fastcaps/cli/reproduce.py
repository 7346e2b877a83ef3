"""``fastcaps reproduce``: the paper's table of accuracies, run by run, and beside it what came out."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fastcaps._extras import require
from fastcaps._files import json_bytes, write_atomically
from fastcaps.cli._common import (
    DataDir,
    Device,
    Json,
    Threads,
    chosen,
    command,
    explained,
    print_json,
    print_table,
)
from fastcaps.reproduction import (
    TITLES,
    Cell,
    RunRecord,
    RunResult,
    accuracy_table,
    all_cells,
    finished,
    losses_table,
    report_page,
    rows,
    runs_table,
    shard,
    with_tables,
)
from fastcaps.reproduction.cells import check_run
from fastcaps.reproduction.paper import NORMALIZATIONS

_TABLE = "reproduction"


@command
def reproduce(
    data: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(TITLES)}; may be repeated; all by default.")
    ] = None,
    normalization: Annotated[
        list[str] | None, typer.Option(help="max_min or softmax; may be repeated; both by default.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="How many, from 0 on; or which, with commas: 0,2 or 2, for one. 1 when not given."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of every run; by data set when not given.")] = None,
    test_every: Annotated[
        int | None, typer.Option(min=1, help="Epochs between looks at the test set; each, of large sets every tenth.")
    ] = None,
    fast_every: Annotated[
        int | None,
        typer.Option(
            min=1, help="Epochs between accumulations to measure fast routing; only at the end when not given."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option("--shard", help="Only the K-th of N disjoint parts, for several machines.", metavar="K/N"),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of the run folders.")] = Path("runs/reproduce"),
    results: Annotated[Path, typer.Option(help="Folder of the JSON files, one a finished run.")] = Path("results"),
    list_only: Annotated[bool, typer.Option("--list", help="Show what is done and what is not, run nothing.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Write the table of all finished runs beside the paper's, run nothing.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for report.md and report.html; RUNS by default.")] = None,
    readme: Annotated[
        Path | None,
        typer.Option(help="A Markdown file with markers for the table; README.md if there is one that has them."),
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train, accumulate and evaluate for every accuracy of the paper's table.

    A run is one data set, one normalisation and one seed. Each is in a folder of its own, RUNS/DATA-NORMALIZATION-SEED,
    as train, accumulate and evaluate make it, and leaves RESULTS/DATA-NORMALIZATION-SEED.json. Stopped at any moment,
    the same command goes on where it was; what is finished isn't done again. With several machines give each its
    --shard, bring the JSON files together, and then --report.

    Example:  fastcaps reproduce --data mnist --data fashion_mnist --normalization max_min --seeds 3

    Example:  fastcaps reproduce --report
    """
    if report:
        given = chosen(data=data, normalization=normalization, seeds=seeds, epochs=epochs, test_every=test_every)
        given |= chosen(fast_every=fast_every, shard=part, list=list_only or None)
        for name in given:
            option = name.replace("_", "-")
            raise typer.BadParameter(f"--{option}: --report is of everything in --results, leave one of them out")
        _report(results, out or runs, readme, as_json)
        return
    for name in chosen(out=out, readme=readme):
        raise typer.BadParameter(f"--{name} is where --report writes, and it was not given: add it, or leave this out")
    wanted = all_cells(
        _chosen("--data", [name.replace("-", "_") for name in data or TITLES], list(TITLES)),
        _chosen("--normalization", normalization or list(NORMALIZATIONS), list(NORMALIZATIONS)),
        _seeds(seeds or "1"),
    )
    wanted = shard(wanted, *_part(part)) if part is not None else wanted
    done = finished(results)
    for cell in wanted:
        _check_asked(cell, done, runs, results, epochs, test_every, fast_every)
    if list_only:
        _list(wanted, done, runs, epochs, as_json)
        return
    require("fastcaps reproduce", "torch", "sklearn", "matplotlib")
    from fastcaps import workflows

    made, failed = {}, {}
    for number, cell in enumerate(wanted, 1):
        typer.echo(f"{cell.name}: run {number} of {len(wanted)}{', done before' if cell in done else ''}", err=True)
        if cell in done:
            continue
        try:
            made[cell] = workflows.reproduce(
                cell,
                runs / cell.name,
                epochs=epochs,
                test_every=test_every,
                fast_every=fast_every,
                data_dir=data_dir,
                device=device,
                threads=threads,
            )
            write_atomically({_file(results, cell): json_bytes(made[cell].to_dict())})
        except KeyboardInterrupt:
            typer.echo(f"{cell.name} is not finished; the same command goes on from here", err=True)
            raise
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            # One that can't be run is no reason to lose a night for the others.
            words = explained(error)
            if words is None:
                raise
            failed[cell.name] = words
            typer.echo(f"error: {cell.name}: {words}", err=True)
    entries = [_entry(cell, done.get(cell) or made[cell]) for cell in wanted if cell in done or cell in made]
    if as_json:
        print_json({"runs": entries, "failed": failed})
    else:
        columns = ["run", "epochs", "dynamic", "fast", "uniform"]
        print_table("Finished", columns, [[_word(entry[column]) for column in columns] for entry in entries])
        typer.echo("next: fastcaps reproduce --report", err=True)
    if failed:
        raise typer.Exit(1)


def _check_asked(
    cell: Cell,
    done: dict[Cell, RunResult],
    runs: Path,
    results: Path,
    epochs: int | None,
    test_every: int | None,
    fast_every: int | None,
) -> None:
    """Refuse what is there already in another form than it is asked for, before anything is run."""
    from fastcaps.training.run import Run

    run = Run(runs / cell.name)
    if cell in done:
        where, settings = _file(results, cell), done[cell].all_settings
        unmeasured = [epoch.epoch for epoch in done[cell].metrics if epoch.fast_test_accuracy is None]
    elif run.about_file.is_file():
        where, settings = run.folder, run.about["settings"]
        unmeasured = [row.epoch for row in run.metrics() if "fast_test_accuracy" not in row.measures]
        check_run(RunRecord.from_dict(run.about), cell, where)
    else:
        return
    for name, asked in chosen(epochs=epochs, test_every=test_every).items():
        if settings[name] != asked:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{where} was made with {option} {settings[name]}, {asked} was asked for: leave {option} out "
                "to take it as it is, or say other folders with --runs and --results"
            )
    if fast_every and any(epoch % fast_every == 0 for epoch in unmeasured):
        raise ValueError(
            f"{where} was made without --fast-every {fast_every}: leave it out to take it as it is, or say other "
            "folders with --runs and --results"
        )


def _list(wanted: Sequence[Cell], done: dict[Cell, RunResult], runs: Path, epochs: int | None, as_json: bool) -> None:
    """What is done, what is begun, what is to do, and how long that takes where it is known."""
    from fastcaps.training.run import Run
    from fastcaps.training.settings import TrainSettings

    entries: list[dict[str, Any]] = []
    for cell in wanted:
        run = Run(runs / cell.name)
        behind, total, state = 0, TrainSettings.for_data(cell.data, **chosen(epochs=epochs)).epochs, "to do"
        if cell in done:
            behind = total = done[cell].settings.epochs
            state = "done"
        elif run.about_file.is_file():
            total = run.about["settings"]["epochs"]
            behind = len(run.metrics())
            state = "trained" if run.about.get("state") == "finished" else "begun"
        each = [(r.seconds or 0.0) / r.settings.epochs for c, r in done.items() if c.data == cell.data]
        left = total - behind
        seconds = 0.0 if not left else left * sum(each) / len(each) if each else None
        entries.append({"run": cell.name, "state": state, "epochs": behind, "of": total, "seconds_left": seconds})
    if as_json:
        print_json(entries)
        return
    print_table(
        "The paper's table",
        ["run", "state", "epochs", "training left"],
        [[e["run"], e["state"], f"{e['epochs']} of {e['of']}", _hours(e["seconds_left"])] for e in entries],
    )


def _report(results: Path, out: Path, readme: Path | None, as_json: bool) -> None:
    if not results.is_dir():
        raise FileNotFoundError(
            f"{results} does not exist: say with --results where the JSON files of finished runs are"
        )
    found = finished(results)
    table = rows(found)
    accuracies = accuracy_table(table)
    main = accuracies.to_markdown()
    sections = {
        "The paper's table, reproduced": main,
        "Every run": runs_table(found).to_markdown(),
        "What fast routing loses": losses_table(found).to_markdown(),
    }
    files = {
        out / "report.md": "\n".join(f"## {title}\n\n{part}" for title, part in sections.items()).encode(),
        out / "report.html": report_page(found).encode(),
    }
    page = readme or Path("README.md")
    if readme is not None or page.is_file():
        text = page.read_text()
        if f"<!-- table: {_TABLE} -->" in text:
            files[page] = with_tables(text, {_TABLE: lambda: main}).encode()
        elif readme is not None:
            raise ValueError(f"{page} has no place for the table: put <!-- table: {_TABLE} --> and <!-- end --> there")
    write_atomically(files)
    if as_json:
        print_json([row.to_dict() for row in table])
        return
    # As many columns as fit on a screen.
    print_table(accuracies.title, accuracies.columns[:7], [line[:7] for line in accuracies.rows])
    typer.echo(f"wrote {', '.join(map(str, files))}", err=True)


def _chosen(option: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    for name in given:
        if name not in known:
            raise typer.BadParameter(f"{option} {name}: expected one of {', '.join(known)}")
    return list(dict.fromkeys(given))


def _seeds(text: str) -> list[int]:
    numbers = text.removesuffix(",").split(",")
    if not all(number.isdecimal() for number in numbers) or ("," not in text and int(text) == 0):
        raise typer.BadParameter(f"--seeds {text}: expected how many, such as 3, or which, such as 0,2 or 2,")
    return list(range(int(text))) if "," not in text else list(dict.fromkeys(map(int, numbers)))


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise typer.BadParameter(f"--shard {text}: expected K/N with K from 1 to N, such as 1/3")
    return int(found[1]), int(found[2])


def _file(results: Path, cell: Cell) -> Path:
    return results / f"{cell.name}.json"


def _entry(cell: Cell, result: RunResult) -> dict[str, Any]:
    accuracies = {name: result.evaluation.variants[name].accuracy for name in ("dynamic", "fast", "uniform")}
    return {"run": cell.name, "epochs": result.settings.epochs, **accuracies}


def _word(value: Any) -> str:
    return f"{value:.2%}" if isinstance(value, float) else str(value)


def _hours(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds / 3600:.1f} h"
