"""``fastcaps evaluate``: compare dynamic routing with fast routing and with the baselines."""

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
@renamed_option("--against", "compare")
def evaluate(
    run: RunArgument,
    coefficients: Coefficients = None,
    compare: Annotated[
        Path | None,
        typer.Option(help="Another run with the same images, to compare with as it was trained.", metavar="RUN"),
    ] = None,
    part: Annotated[Literal["test", "train", "validation"], typer.Option(help="Part of the data set.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Number of images (default: all).")] = None,
    batch_size: BatchSize = 128,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for evaluation.json and confusion.png (default: RUN for the whole test set)."),
    ] = None,
    result_file: Annotated[
        Path | None,
        typer.Option("--result", help="File for the run as one JSON: command, settings, epochs, evaluation."),
    ] = None,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Classify the test images with dynamic routing, and without it.

    Prints accuracies with 95 % intervals, how many images change class and in which direction (McNemar's exact test),
    and speeds. "uniform" is the same network with equal coefficients, without any routing; "ceiling" routes each
    image with the container of its own class, which needs the label. Several processes share the images (torchrun);
    speeds are of all together. With --compare the network of another run is evaluated on the same images, too.

    Example:  fastcaps evaluate runs/digits

    Example:  fastcaps evaluate runs/refit --compare runs/digits
    """
    require("fastcaps evaluate", "torch", "sklearn", "matplotlib")
    from fastcaps import workflows

    evaluation = workflows.evaluate(
        run,
        out,
        coefficients=coefficients,
        part=part,
        limit=limit,
        compare=compare,
        result_file=result_file,
        batch_size=batch_size,
        data=data,
        data_dir=data_dir,
        device=device,
        threads=threads,
        command=this_command(),
    )
    print_result(evaluation, as_json)
