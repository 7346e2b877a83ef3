"""``fastcaps predict``: classify pictures. With an exported file PyTorch isn't needed, and not imported."""

import io
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from fastcaps.cli._common import BatchSize, Json, Threads, command, print_columns, print_json


@command
def predict(
    model: Annotated[
        Path,
        typer.Argument(help="A file from fastcaps export, a run folder, a bundled network, or user/name on the Hub."),
    ],
    images: Annotated[list[str], typer.Argument(help="Image files, folders of them, or - for standard input.")],
    routing: Annotated[
        Literal["fast", "dynamic", "both"] | None,
        typer.Option(help="Routing of a run (default: fast); an exported file has only one."),
    ] = None,
    invert: Annotated[
        Literal["auto", "yes", "no"],
        typer.Option(help="Swap light and dark; auto does if the edge is unlike that of the gray training images."),
    ] = "auto",
    batch_size: BatchSize = 64,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Classify pictures: the class, its capsule's length, and the runner-up.

    Pictures of any size, gray or color, are brought to the network's input as its test images were. Those that can't
    be read are named at the end, and the exit code is 1 then.

    Example:  fastcaps predict mnist.onnx scans/ seven.png
    """
    from fastcaps import workflows

    sources = [_standard_input() if image == "-" else image for image in dict.fromkeys(images)]
    predictions = workflows.predict(
        model, sources, routing=routing, invert=invert, batch_size=batch_size, threads=threads
    )
    if as_json:
        print_json(predictions.to_dict())
    elif predictions.images:
        print_columns(*predictions.tables())
    inverted = sum(prediction.inverted for prediction in predictions.images)
    if inverted and not as_json:
        typer.echo(f"{inverted} of {len(predictions.images)} pictures were inverted ({_REASONS[invert]})", err=True)
    for failure in predictions.failed:
        typer.echo(f"error: {failure.error}", err=True)
    if predictions.failed:
        raise typer.Exit(1)


_REASONS = {
    "auto": "their edge is unlike the training images'; --invert no leaves them as they are",
    "yes": "--invert yes",
}


def _standard_input() -> io.BytesIO:
    content = io.BytesIO(sys.stdin.buffer.read())
    content.name = "standard input"
    return content
