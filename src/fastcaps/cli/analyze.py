"""``fastcaps analyze``: the paper's figures for a trained run, as one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fastcaps._extras import require
from fastcaps.cli._common import (
    DataDir,
    Device,
    Json,
    RunArgument,
    Threads,
    check_not_bundled,
    distributed_command,
    print_json,
    this_command,
)

if TYPE_CHECKING:
    pass


@distributed_command
def analyze(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="Folder for the report; RUN/report by default.")] = None,
    master: Annotated[Path | None, typer.Option(help="Other coefficients than RUN/master.safetensors.")] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Another run, whose coefficients are drawn beside.", metavar="RUN2")
    ] = None,
    sort_by_class: Annotated[
        bool, typer.Option("--sort-by-class", help="The first training images by class, not in their order.")
    ] = False,
    example: Annotated[
        list[int] | None, typer.Option(help="Number of a test image to show; may be repeated; the first five.")
    ] = None,
    figures: Annotated[
        Literal["png", "svg", "pdf"] | None, typer.Option(help="Write the figures as files, too.")
    ] = None,
    figures_to: Annotated[Path | None, typer.Option(help="Where to; OUT/figures by default.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many training and test images, to try it out.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 128,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Draw what routing does in a trained run, and write one page about it.

    Correlations of the coefficients of all training images, the master coefficients, lengths with dynamic and with fast
    routing, images that change class, what the numbers of a capsule mean. Writes index.html, which opens
    without a network connection, and analysis.json with all numbers. What was computed before is used again where
    weights, images and settings are the same. Several processes share the images (torchrun); the first draws.

    Example:  fastcaps analyze runs/digits
    """
    require("fastcaps analyze", "torch", "sklearn", "matplotlib")
    from fastcaps import workflows
    from fastcaps.analysis import Evaluation
    from fastcaps.training import Run

    opened = Run.open(run)
    if out is None:
        check_not_bundled(run, opened.folder)
    if out is None and (limit is not None or master is not None):
        raise ValueError("what is made with --limit or --master is not the run's own report: say where with --out")
    folder = out or opened.folder / "report"
    numbers = workflows.analyze(
        opened,
        folder,
        name=str(run),
        coefficients=master,
        compare=compare,
        sort_by_class=sort_by_class,
        examples=example,
        figures=figures,
        figures_to=figures_to,
        limit=limit,
        batch_size=batch_size,
        data_dir=data_dir,
        device=device,
        threads=threads,
        command_line=this_command(),
    )
    if not numbers:
        return
    if as_json:
        print_json(numbers)
        return
    typer.echo(Evaluation.from_dict(numbers["evaluation"]).verdict())
    typer.echo(f"The report is {folder / 'index.html'}; all numbers are in {folder / 'analysis.json'}.")
