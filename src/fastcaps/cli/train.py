"""``fastcaps train``: from images to a trained network in a run folder."""

import dataclasses
import json
import math
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fastcaps._extras import require
from fastcaps.cli._common import DataDir, Device, Json, Threads, chosen, command, print_json, set_up, training_progress
from fastcaps.nn.config import CapsNetConfig


@command
def train(
    data: Annotated[str, typer.Option(help="Name of a data set (fastcaps data list), or a folder of images.")],
    out: Annotated[Path, typer.Option(help="The run folder.")],
    data_dir: DataDir = None,
    normalization: Annotated[Literal["max_min", "softmax"], typer.Option(help="Of the coefficients.")] = "max_min",
    iterations: Annotated[int, typer.Option(help="Of dynamic routing.")] = 3,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images; by data set.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and augmentation.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of Adam, at its highest.")] = None,
    final_rate: Annotated[float | None, typer.Option(help="Part of it that is left at the end.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps over which it rises, at most a third of all.")] = None,
    reconstruction_weight: Annotated[float | None, typer.Option(help="Of the decoder's squared error.")] = None,
    positive_margin: Annotated[float | None, typer.Option(help="The label's capsule should be longer.")] = None,
    negative_margin: Annotated[float | None, typer.Option(help="The others should be shorter.")] = None,
    negative_weight: Annotated[float | None, typer.Option(help="Of the others in the margin loss.")] = None,
    validation: Annotated[
        float | None, typer.Option(help="Part of the training images to hold out, or their number; none by default.")
    ] = None,
    test_every: Annotated[int | None, typer.Option(help="Epochs between looks at the test set.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints in an epoch.")] = None,
    size: Annotated[str | None, typer.Option(help="Height×width for a folder's images, such as 40x32.")] = None,
    test_fraction: Annotated[float | None, typer.Option(help="Of a folder without train and test.")] = None,
    network: Annotated[
        list[str] | None,
        typer.Option("--network", help="A change of the network, such as stem_channels=64; may be repeated."),
    ] = None,
    convolution: Annotated[
        Literal["auto", "direct", "winograd"], typer.Option(help="Of PrimaryCaps; auto takes the faster.")
    ] = "auto",
    device: Device = "auto",
    threads: Threads = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run folder's run stopped.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write events to OUT/tensorboard.")] = False,
    as_json: Json = False,
) -> None:
    """Train a capsule network with dynamic routing.

    Stops at a checkpoint when interrupted (Ctrl-C); --resume then ends with the same weights as if it had not been.

    Example:  fastcaps train --data digits --out runs/digits
    """
    require("fastcaps train", "torch", "sklearn")
    import torch

    from fastcaps.data import load
    from fastcaps.nn import CapsNet
    from fastcaps.training import Trainer, TrainSettings

    target = set_up(device, threads)
    images = load(data, data_dir=data_dir, **chosen(size=_size(size), test_fraction=test_fraction))
    if validation is not None and 1 <= validation < math.inf:
        if validation != int(validation):
            raise typer.BadParameter(f"--validation {validation}: expected a part below 1, or a whole number of images")
        validation = int(validation)
    settings = TrainSettings.for_data(
        images.name,
        **chosen(
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
            learning_rate=learning_rate,
            final_rate=final_rate,
            warmup=warmup,
            reconstruction_weight=reconstruction_weight,
            positive_margin=positive_margin,
            negative_margin=negative_margin,
            negative_weight=negative_weight,
            validation=validation,
            test_every=test_every,
            checkpoint_every=checkpoint_every,
        ),
    )
    torch.manual_seed(settings.seed)
    changes = {"normalization": normalization, "iterations": iterations, **_changes(network or [])}
    model = CapsNet(images.config(**changes)).to(target)
    model.primary.convolution = convolution
    about = {"command": shlex.join(["fastcaps", *sys.argv[1:]])}
    with training_progress(out.name) as observe:
        trainer = Trainer(model, images, settings, out, about=about, observe=observe, tensorboard=tensorboard)
        history = trainer.fit(resume=resume)
    if as_json:
        print_json({"run": str(out), "history": history})
    else:
        kept = trainer.progress.best or history[-1]
        words = [f"loss {kept['loss']:.4f}", f"training accuracy {kept['accuracy']:.2%}"]
        words += [f"{part} accuracy {kept[f'{part}_accuracy']:.2%}" for part in _measured(kept)]
        typer.echo(f"{out}: epoch {kept['epoch']} of {len(history)}, {', '.join(words)}")
        typer.echo(f"next: fastcaps accumulate {out}", err=True)


# What the images decide.
_FROM_DATA = {"height", "width", "channels", "classes", "class_names"}


def _measured(row: dict[str, Any]) -> list[str]:
    return [part for part in ("validation", "test") if f"{part}_accuracy" in row]


def _changes(texts: list[str]) -> dict[str, Any]:
    """Entries of the configuration from texts such as ``decoder=[64,128]``."""
    known = {field.name for field in dataclasses.fields(CapsNetConfig)} - _FROM_DATA
    changes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise typer.BadParameter(f"--network {text}: expected name=value with one of {', '.join(sorted(known))}")
        try:
            changes[name] = json.loads(value)
        except json.JSONDecodeError:
            changes[name] = value
    return changes


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) != 2 or not all(side.isdigit() for side in sides):
        raise typer.BadParameter(f"--size {text}: expected height and width such as 40x32")
    return int(sides[0]), int(sides[1])
