"""``fastcaps analyze``: the paper's figures for a trained run, as one page."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fastcaps._extras import require
from fastcaps.cli._common import (
    BatchSize,
    Coefficients,
    Data,
    DataDir,
    Device,
    Json,
    RunArgument,
    Threads,
    distributed_command,
    print_result,
    renamed_option,
    this_command,
)


@distributed_command
@renamed_option("--master", "coefficients")
def analyze(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="Folder of the report (default: RUN/report).")] = None,
    coefficients: Coefficients = None,
    compare: Annotated[
        Path | None, typer.Option(help="Another run to draw beside this one in the histogram.", metavar="RUN")
    ] = None,
    sort_by_class: Annotated[
        bool, typer.Option("--sort-by-class", help="Sort the first training images by class.")
    ] = False,
    examples: Annotated[
        list[int] | None,
        typer.Option("--example", help="Number of a test image to show; may be repeated (default: the first five)."),
    ] = None,
    figures: Annotated[
        Literal["png", "svg", "pdf"] | None, typer.Option(help="Write the figures as files, too.")
    ] = None,
    figures_to: Annotated[
        Path | None, typer.Option(help="Folder of the figures (default: OUT/figures); implies --figures png.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of images of each part (default: all).")] = None,
    batch_size: BatchSize = 128,
    data: Data = None,
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

    result = workflows.analyze(
        run,
        out,
        coefficients=coefficients,
        compare=compare,
        sort_by_class=sort_by_class,
        examples=examples,
        limit=limit,
        batch_size=batch_size,
        data=data,
        data_dir=data_dir,
        device=device,
        threads=threads,
        command=this_command(),
    )
    if figures is not None or figures_to is not None:
        result.save_figures(figures_to, figures or "png")
    print_result(result, as_json)
