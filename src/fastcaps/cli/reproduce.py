"""``fastcaps reproduce``: the paper's table of accuracies, run by run, and the results beside it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fastcaps._result import without_none
from fastcaps.cli._common import DataDir, Device, Json, Threads, command, prepare_training, print_json, print_result
from fastcaps.reproduction import TITLES, Cell, all_cells, shard
from fastcaps.reproduction.paper import NORMALIZATIONS

_Data = Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(TITLES)}; may be repeated (default: all).")]
_Normalization = Annotated[list[str] | None, typer.Option(help="max_min or softmax; may be repeated (default: both).")]
_Seeds = Annotated[
    str | None, typer.Option(help="Number of seeds, from 0; or seeds with commas: 0,2 or 2, for one (default: 1).")
]
_Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs of every run (default: by data set).")]
_TestEvery = Annotated[
    int | None, typer.Option(min=1, help="Epochs between measurements on the test set (default: 1, large sets 10).")
]
_FastEvery = Annotated[
    int | None, typer.Option(min=1, help="Epochs between accumulations for fast routing (default: only at the end).")
]
_Shard = Annotated[
    str | None, typer.Option("--shard", help="Only the K-th of N disjoint parts, for several machines.", metavar="K/N")
]
_List = Annotated[bool, typer.Option("--list", help="Show what is done and what is not, run nothing.")]
_Report = Annotated[
    bool,
    typer.Option(
        "--report",
        help="Write the table of all finished runs beside the paper's, run nothing.",
        rich_help_panel="Report",
    ),
]
_Out = Annotated[
    Path | None,
    typer.Option(help="Folder for report.md and report.html (default: RUNS).", rich_help_panel="Report"),
]
_Readme = Annotated[
    Path | None,
    typer.Option(
        help="A Markdown file with markers for the table (default: README.md if it has them).",
        rich_help_panel="Report",
    ),
]


@command
def reproduce(
    data: _Data = None,
    normalization: _Normalization = None,
    seeds: _Seeds = None,
    epochs: _Epochs = None,
    test_every: _TestEvery = None,
    fast_every: _FastEvery = None,
    part: _Shard = None,
    runs: Annotated[Path, typer.Option(help="Folder of the run folders.")] = Path("runs/reproduce"),
    results: Annotated[Path, typer.Option(help="Folder of the JSON files, one per finished run.")] = Path("results"),
    list_only: _List = False,
    report: _Report = False,
    out: _Out = None,
    readme: _Readme = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train, accumulate and evaluate for every accuracy of the paper's table.

    A run is one data set, one normalization and one seed. Each is in a folder of its own, RUNS/DATA-NORMALIZATION-SEED,
    as train, accumulate and evaluate make it, and leaves RESULTS/DATA-NORMALIZATION-SEED.json. After an interruption,
    the same command resumes. Finished runs are not repeated. On several machines, give each its --shard, copy the JSON
    files into one folder, and run --report there.

    Example:  fastcaps reproduce --data mnist --data fashion_mnist --normalization max_min --seeds 3

    Example:  fastcaps reproduce --report
    """
    from fastcaps import workflows

    if report:
        choice = {"data": data, "normalization": normalization, "seeds": seeds, "shard": part, "epochs": epochs}
        choice |= {"test_every": test_every, "fast_every": fast_every, "list": list_only or None}
        _refuse("--report is of everything in --results, leave one of them out", **choice)
        written = workflows.reproduction_report(results, out or runs, readme=readme)
        print_json(written.to_dict()["rows"]) if as_json else print_result(written, as_json)
        return
    _refuse("--report writes it, and was not given: add it, or leave this out", out=out, readme=readme)
    cells = _cells(data, normalization, seeds, part)
    if list_only:
        status = workflows.reproduction_status(cells, runs, results, epochs=epochs)
        print_json(status.to_dict()["runs"]) if as_json else print_result(status, as_json)
        return
    prepare_training("fastcaps reproduce", "torch", "sklearn", "matplotlib")
    result = workflows.reproduce(
        cells,
        runs,
        results,
        epochs=epochs,
        test_every=test_every,
        fast_every=fast_every,
        data_dir=data_dir,
        device=device,
        threads=threads,
    )
    print_result(result, as_json, next_command="fastcaps reproduce --report")
    if result.failed:
        raise typer.Exit(1)


def _refuse(reason: str, **options: Any) -> None:
    for name in without_none(**options):
        raise typer.BadParameter(f"--{name.replace('_', '-')}: {reason}")


def _cells(data: list[str] | None, normalization: list[str] | None, seeds: str | None, part: str | None) -> list[Cell]:
    cells = all_cells(
        _known("--data", [name.replace("-", "_") for name in data or TITLES], list(TITLES)),
        _known("--normalization", normalization or list(NORMALIZATIONS), list(NORMALIZATIONS)),
        _seeds(seeds or "1"),
    )
    return cells if part is None else shard(cells, *_part(part))


def _known(option: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{option} {name}: expected one of {', '.join(known)}")
    return list(dict.fromkeys(names))


def _seeds(text: str) -> list[int]:
    numbers = text.removesuffix(",").split(",")
    if not all(number.isdecimal() for number in numbers) or ("," not in text and int(text) == 0):
        raise typer.BadParameter(f"--seeds {text}: expected how many, such as 3, or which, such as 0,2 or 2,")
    return list(range(int(text))) if "," not in text else list(dict.fromkeys(map(int, numbers)))


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"--shard {text}: expected K/N with K from 1 to N, such as 1/3")
    return int(match[1]), int(match[2])
