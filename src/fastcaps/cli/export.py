"""``fastcaps export``: from a run to one ONNX file that needs no PyTorch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fastcaps._extras import require
from fastcaps._progress import progress_bar
from fastcaps.cli._common import DataDir, Json, RunArgument, Threads, command, print_json

if TYPE_CHECKING:
    from torch import Tensor

    from fastcaps.data import DataSet
    from fastcaps.training import Run

# Training images for the ranges of int8, at a time and in all.
BATCH, _CALIBRATION = 64, 512


@command
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(help="The file to write.", metavar="FILE")],
    routing: Annotated[Literal["fast", "dynamic"], typer.Option(help="Folded coefficients, or the loop.")] = "fast",
    precision: Annotated[Literal["float32", "int8"], typer.Option(help="Of weights and activations.")] = "float32",
    batch: Annotated[
        str, typer.Option(help="dynamic for any size, or the only number of images it takes.")
    ] = "dynamic",
    max_drop: Annotated[
        float, typer.Option(min=0, help="Points of accuracy that int8 may lose; three images always may be.")
    ] = 0.1,
    limit: Annotated[int | None, typer.Option(min=1, help="Compare on the first so many test images only.")] = None,
    master: Annotated[Path | None, typer.Option(help="Other coefficients than RUN/master.safetensors.")] = None,
    data_dir: DataDir = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Write a run's network as one ONNX file, for fastcaps predict and fastcaps.runtime.

    The file is compared with the PyTorch network on the test images first, and only written if it answers alike. int8
    is calibrated on training images.

    Example:  fastcaps export runs/mnist mnist.onnx --precision int8
    """
    require("fastcaps export", "torch", "sklearn", "onnx", "onnxscript", "onnxruntime")
    from fastcaps import fold
    from fastcaps.data import batches
    from fastcaps.exporting import export as write
    from fastcaps.training import Run

    size = _size(batch)
    if routing == "dynamic" and master is not None:
        raise typer.BadParameter(f"--master {master} has no meaning for dynamic routing: leave it out")
    opened = Run.open(run)
    from fastcaps.workflows._common import select_device

    select_device("cpu", threads)
    model = opened.model()
    network = model if routing == "dynamic" else fold(model, opened.master(master))
    data = opened.data(data_dir)
    training = calibration_images(opened, data)
    tests = data.test.first(limit)
    with progress_bar("comparing", len(tests)) as observe:
        about = write(
            network,
            out,
            tests=batches(tests, BATCH, view=data.augmentation.middle),
            precision=precision,
            calibration=training,
            batch=size,
            max_drop=max_drop,
            background=data.background,
            threads=threads,
            observe=observe,
        )
    found = about["accuracy"]
    if as_json:
        print_json({"file": str(out), "bytes": out.stat().st_size, **about})
        return
    typer.echo(f"{out}: {routing} routing, {precision}, {out.stat().st_size / 1e6:.1f} MB")
    typer.echo(
        f"accuracy {found['accuracy']:.2%}, original {found['original_accuracy']:.2%}, on {found['images']:,} test "
        f"images; {found['changed']} answers differ, lengths by at most {found['largest_difference']:.1e}"
    )
    typer.echo(f"next: fastcaps predict {out} IMAGE …", err=True)


def _size(batch: str) -> int | None:
    if batch == "dynamic":
        return None
    if not batch.isdecimal() or int(batch) < 1:
        raise typer.BadParameter(f"--batch {batch}: expected dynamic or a number of images")
    return int(batch)


def calibration_images(run: "Run", data: "DataSet") -> "list[Tensor]":
    """Batches of training images as bytes ``(b c h w)``, in the test view."""
    from fastcaps.data import batches

    some = run.training_part(data).first(_CALIBRATION)
    return [images for images, _ in batches(some, BATCH, view=data.augmentation.middle)]
