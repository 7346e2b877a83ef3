"""``fastcaps export``: from a run to one ONNX file that needs no PyTorch."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fastcaps._extras import require
from fastcaps.cli._common import (
    BatchSize,
    Coefficients,
    Data,
    DataDir,
    Json,
    RunArgument,
    Threads,
    command,
    print_result,
    renamed_option,
)

_Check = Annotated[
    bool, typer.Option("--check/--no-check", help="Compare with PyTorch on the test images; without, no data needed.")
]


@command
@renamed_option("--master", "coefficients")
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Argument(help="The file to write.", metavar="FILE")],
    routing: Annotated[Literal["fast", "dynamic"], typer.Option(help="Folded coefficients, or the loop.")] = "fast",
    precision: Annotated[Literal["float32", "int8"], typer.Option(help="Of weights and activations.")] = "float32",
    batch: Annotated[
        str, typer.Option(help="The only batch size that the file takes, or dynamic for any.")
    ] = "dynamic",
    max_drop: Annotated[
        float, typer.Option(min=0, help="Points of accuracy that int8 may lose; three images always may be.")
    ] = 0.1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of test images to compare on (default: all).")
    ] = None,
    coefficients: Coefficients = None,
    check: _Check = True,
    calibration: Annotated[
        Path | None, typer.Option(help="Folder of pictures to calibrate int8 with (default: training images).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    batch_size: BatchSize = 64,
    data: Data = None,
    data_dir: DataDir = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Write the network of a run as one ONNX file, for fastcaps predict and fastcaps.runtime.

    The file is compared with the PyTorch network on the test images first, and only written if both agree. int8
    is calibrated on training images.

    Example:  fastcaps export runs/mnist mnist.onnx --precision int8

    Example:  fastcaps export runs/pets pets.onnx --precision int8 --no-check --calibration some-photos
    """
    if batch != "dynamic" and (not batch.isdecimal() or int(batch) < 1):
        raise typer.BadParameter(f"--batch {batch}: expected dynamic or a number of images")
    require("fastcaps export", "torch", "sklearn", "onnx", "onnxscript", "onnxruntime")
    from fastcaps import workflows

    result = workflows.export(
        run,
        out,
        routing=routing,
        precision=precision,
        batch=None if batch == "dynamic" else int(batch),
        max_drop=max_drop,
        limit=limit,
        coefficients=coefficients,
        check=check,
        calibration=calibration,
        force=force,
        batch_size=batch_size,
        data=data,
        data_dir=data_dir,
        threads=threads,
    )
    print_result(result, as_json, next_command=f"fastcaps predict {out} IMAGE …")
