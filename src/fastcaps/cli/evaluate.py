"""``fastcaps evaluate``: dynamic beside fast, with the baselines that keep us honest."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fastcaps._extras import require
from fastcaps.bundled import is_bundled
from fastcaps.cli._common import (
    DataDir,
    Device,
    Json,
    RunArgument,
    Threads,
    distributed_command,
    print_json,
    print_table,
    this_command,
)


@distributed_command
def evaluate(
    run: RunArgument,
    master: Annotated[Path | None, typer.Option(help="Other coefficients than RUN/master.safetensors.")] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Another run with the same images, to compare with as it was trained.", metavar="RUN"),
    ] = None,
    part: Annotated[Literal["test", "train", "validation"], typer.Option(help="Which images.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 128,
    out: Annotated[
        Path | None, typer.Option(help="Folder for evaluation.json and confusion.png; RUN for the whole test set.")
    ] = None,
    result: Annotated[
        Path | None, typer.Option(help="A file for the run as one JSON: command, settings, epochs, evaluation.")
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Classify the test images with dynamic routing, and without it.

    Prints accuracies with 95 % intervals, how many images change class and in which direction (McNemar's exact test),
    and speeds. "uniform" is the same network with all coefficients 1, without any routing; "ceiling" routes each
    image with its own class's container, which needs the answer. Several processes share the images (torchrun); speeds
    are of all together. With --against another run's network is asked about the same images, too: does what was trained
    on from it know as much?

    Example:  fastcaps evaluate runs/digits

    Example:  fastcaps evaluate runs/refit --against runs/digits
    """
    require("fastcaps evaluate", "torch", "sklearn", "matplotlib")
    from fastcaps import workflows
    from fastcaps._files import json_bytes, write_atomically
    from fastcaps.distributed import current
    from fastcaps.training import Run
    from fastcaps.training.result import result_of

    opened, other = Run.open(run), None if against is None else Run.open(against)
    if result is not None and not opened.metrics_file.is_file():
        raise FileNotFoundError(
            f"{opened.metrics_file} does not exist, and --result is a run with the accuracy of every epoch: take a run "
            "that fastcaps train made, or leave --result out (--json prints this evaluation)"
        )
    # What is in the run folder is the whole test set with the run's own coefficients, never a part or a trial.
    whole = part == "test" and limit is None and master is None and against is None and not is_bundled(opened.folder)
    folder = out or (opened.folder if whole else None)
    evaluation = workflows.evaluate(
        opened,
        folder,
        coefficients=master,
        part=part,
        limit=limit,
        batch_size=batch_size,
        compare=other,
        data_dir=data_dir,
        device=device,
        threads=threads,
        command_line=this_command(),
    )
    if result is not None and current().is_main:
        write_atomically({result: json_bytes(result_of(opened, evaluation.to_dict()))})
    if as_json:
        print_json(evaluation.to_dict())
        return
    for table in evaluation.tables():
        print_table(table.title, table.columns, table.rows)
    typer.echo(evaluation.verdict())
    if other is not None:
        typer.echo(evaluation.compare_with_other())
    if folder is not None:
        typer.echo(f"confusion matrices: {folder}/confusion.png; all numbers: {folder}/evaluation.json", err=True)
