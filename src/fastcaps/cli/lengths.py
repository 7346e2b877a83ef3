"""``fastcaps lengths``: what the lengths of class capsules say beyond the class."""

from pathlib import Path
from typing import Annotated

import typer

from fastcaps._extras import require
from fastcaps.cli._common import (
    BatchSize,
    Data,
    DataDir,
    Device,
    Json,
    RunArgument,
    Threads,
    command,
    print_result,
    this_command,
)


def _named(texts: list[str]) -> dict[str, str]:
    runs: dict[str, str] = {}
    for text in texts:
        name, _, run = text.partition("=")
        if not (name and run):
            raise typer.BadParameter(f"{text!r} is no NAME=RUN, such as distilled=runs/distilled")
        if name in runs:
            raise typer.BadParameter(f"--compare has two runs with the name {name!r}: expected different names")
        runs[name] = run
    return runs


@command
def lengths(
    run: RunArgument,
    outside: Annotated[str, typer.Option(help="Data set of images of no class: a name, or a folder.")] = (
        "fashion_mnist"
    ),
    compare: Annotated[
        list[str] | None,
        typer.Option(help="Another run, whose folded network gets a row; may be repeated.", metavar="NAME=RUN"),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of images of each data set (default: all).")] = None,
    result: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    batch_size: BatchSize = 128,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Compare the lengths of class capsules with and without dynamic routing, on images of the classes and on others.

    Prints accuracy, mean length of the own and of the other classes' capsules, agreement with dynamic routing, and how
    well the longest capsule tells images of the classes from others (AUROC).

    Example:  fastcaps lengths mnist --outside fashion_mnist --compare distilled=runs/distilled
    """
    require("fastcaps lengths", "torch", "scipy")
    from fastcaps import workflows

    comparison = workflows.compare_lengths(
        run,
        outside,
        runs=_named(compare or []),
        limit=limit,
        result_file=result,
        batch_size=batch_size,
        data=data,
        data_dir=data_dir,
        device=device,
        threads=threads,
        command=this_command(),
    )
    print_result(comparison, as_json)
