"""``fastcaps accumulate``: from a trained network's routing to master coefficients, and to a folded network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastcaps._extras import require
from fastcaps.cli._common import DataDir, Device, Json, RunArgument, Threads, command, counted, print_json, set_up
from fastcaps.shipped import is_shipped

if TYPE_CHECKING:
    import torch

    from fastcaps.master import MasterCoefficients
    from fastcaps.training import Run


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
    from fastcaps.training import Run

    opened = Run.open(run)
    if out is None and is_shipped(opened.folder):
        raise ValueError(f"{run} comes with fastcaps and is not written to: say where with --out")
    master = accumulated(opened, set_up(device, threads), out, iteration, batch_size, data_dir)
    path = out or opened.master_file
    if as_json:
        print_json({"master": str(path), **master.summary()})
    else:
        counts = int(master.counts.sum())
        typer.echo(f"{path}: coefficients of iteration {master.iteration} of {counts} images, {master.normalization}")
        typer.echo(f"next: fastcaps evaluate {run}{f' --master {out}' if out else ''}", err=True)


def accumulated(
    run: "Run",
    device: "torch.device",
    out: Path | None = None,
    iteration: int | None = None,
    batch_size: int = 256,
    data_dir: Path | None = None,
) -> "MasterCoefficients":
    """Accumulate with progress, write the coefficients, and the folded network where they are the run's own."""
    import fastcaps
    from fastcaps.data import batches

    model = run.model().to(device)
    data = run.data(data_dir)
    images = run.training_part(data)
    with counted("accumulating", len(images)) as observe:
        master = fastcaps.accumulate(
            model,
            batches(images, batch_size, view=data.augmentation.test_view),
            iteration=iteration,
            observe=observe,
            provenance={
                "data": data.name,
                "data_fingerprint": data.fingerprint,
                "part": "train" if len(images) == len(data.train) else "train without validation",
                "filter": "none",
            },
        )
    if out is None:
        fastcaps.fold(model, master).save_pretrained(run.fast_folder)
    master.save(out or run.master_file)
    return master
