"""``fastcaps compress``: a smaller network that answers as well."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fastcaps._extras import require
from fastcaps._result import without_none
from fastcaps.cli._common import (
    Coefficients,
    Data,
    DataDir,
    Json,
    Rotation,
    RunArgument,
    Threads,
    Zoom,
    command,
    print_result,
    this_command,
)
from fastcaps.cli._options import number

_HeldOut = Annotated[
    float | None,
    typer.Option(
        parser=number,
        help="Training images to hold out, or their fraction (default: those of RUN, or 5000; of few a fifth).",
    ),
]

_Views = Annotated[
    int, typer.Option(min=1, help="Augmented versions of each training image; later epochs repeat them.")
]


@command
def compress(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="Run folder to write.")],
    max_drop: Annotated[
        float, typer.Option(min=0, max=100, help="Points of accuracy on held-out images that may be lost.")
    ] = 0.1,
    types: Annotated[int | None, typer.Option(min=1, help="Capsule types (default: searched).")] = None,
    maps: Annotated[int | None, typer.Option("--stem", min=1, help="Stem maps (default: searched).")] = None,
    speedup: Annotated[
        float | None, typer.Option(help="How many times fewer multiply-adds (default: searched).")
    ] = None,
    ranking: Annotated[
        Literal["energy", "magnitude", "random"], typer.Option(help="What decides which types and maps stay.")
    ] = "energy",
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training per size.")] = 6,
    learning_rate: Annotated[float, typer.Option("--learning-rate", "--lr", help="Highest learning rate.")] = 1e-3,
    views: _Views = 3,
    rotation: Rotation = None,
    zoom: Zoom = None,
    held_out: _HeldOut = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Seed of held-out images, order and augmentation.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Resume where an earlier call stopped.")] = False,
    coefficients: Coefficients = None,
    data: Data = None,
    data_dir: DataDir = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Remove capsule types and stem maps, and train what is left to answer as the original network does.

    Tries sizes from large to small, each from the one before, and takes the smallest that loses no more than --max-drop
    on held-out training images. The result is a run: evaluate, export, predict and analyze work on it.

    Example:  fastcaps compress mnist --out runs/mnist-small
    """
    require("fastcaps compress", "torch", "sklearn", "matplotlib")
    from fastcaps import workflows
    from fastcaps.compression import CompressSettings, RefitSettings

    if speedup is not None and (types is not None or maps is not None):
        raise typer.BadParameter("--speedup decides the numbers of types and maps: leave --types and --stem out")
    settings = CompressSettings(
        max_drop=max_drop,
        types=types,
        maps=maps,
        speedup=speedup,
        ranking=ranking,
        batch_size=batch_size,
        seed=seed,
        views=views,
        refit=RefitSettings(epochs=epochs, learning_rate=learning_rate),
        **without_none(held_out=held_out),
    )
    options = without_none(
        coefficients=coefficients, rotation=rotation, zoom=zoom, data=data, data_dir=data_dir, threads=threads
    )
    result = workflows.compress(run, out, settings=settings, resume=resume, command=this_command(), **options)
    print_result(result, as_json, next_command=f"fastcaps evaluate {out}; fastcaps export {out} {out}.onnx")
