"""``fastcaps accumulate``: from a trained network's routing to master coefficients, and to a folded network."""

from pathlib import Path
from typing import Annotated

import typer

from fastcaps._extras import require
from fastcaps.cli._common import DataDir, Device, Json, RunArgument, Threads, command, counted, print_json, set_up


@command
def accumulate(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="Where to write; RUN/master.safetensors by default.")] = None,
    iteration: Annotated[int | None, typer.Option(help="Of routing, from 1; the last by default.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 256,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Accumulate routing coefficients over the training images, and fold them.

    One pass in the test view, without augmentation. Writes RUN/master.safetensors and the folded network RUN/fast; with
    --out only the coefficients.

    Example:  fastcaps accumulate runs/digits
    """
    require("fastcaps accumulate", "torch", "sklearn")
    import fastcaps
    from fastcaps.data import batches
    from fastcaps.training import Run

    opened = Run.open(run)
    model = opened.model().to(set_up(device, threads))
    data = opened.data(data_dir)
    with counted("accumulating", len(data.train)) as observe:
        master = fastcaps.accumulate(
            model,
            batches(data.train, batch_size, view=data.augmentation.test_view),
            iteration=iteration,
            observe=observe,
            provenance={"data": data.name, "data_fingerprint": data.fingerprint, "part": "train", "filter": "none"},
        )
    path = out or opened.master_file
    if out is None:
        fastcaps.fold(model, master).save_pretrained(opened.fast_folder)
    master.save(path)
    if as_json:
        print_json({"master": str(path), **master.summary()})
    else:
        counts = int(master.counts.sum())
        typer.echo(f"{path}: coefficients of iteration {master.iteration} of {counts} images, {master.normalization}")
        typer.echo(f"next: fastcaps evaluate {run}")
