"""``fastcaps train``: from images to a trained network in a run folder."""

import dataclasses
import json
import math
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fastcaps._extras import require
from fastcaps.cli._common import (
    DataDir,
    Device,
    Json,
    Threads,
    chosen,
    distributed_command,
    print_json,
)
from fastcaps.nn.config import CapsNetConfig


@distributed_command
def train(
    out: Annotated[Path, typer.Option(help="The run folder.")],
    data: Annotated[
        str | None, typer.Option(help="Name of a data set (fastcaps data list), or a folder of images.")
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="A run to go on from: its network and weights, its data, its held-out images.", metavar="RUN"
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="Coefficients to train with in place of routing: a file, or uniform.", metavar="FILE"),
    ] = None,
    dynamic_epochs: Annotated[
        int | None, typer.Option(help="Epochs of dynamic routing, then accumulate and train with that.")
    ] = None,
    dynamic_fraction: Annotated[
        float | None, typer.Option(help="Part of the training images for the dynamic epochs.")
    ] = None,
    afresh: Annotated[bool, typer.Option("--afresh", help="Start from new weights after the dynamic epochs.")] = False,
    refresh: Annotated[int | None, typer.Option(help="Epochs after which coefficients are accumulated again.")] = None,
    routing_only: Annotated[
        bool, typer.Option("--routing-only", help="Train the routing layer alone, the decoder's error left out.")
    ] = False,
    data_dir: DataDir = None,
    normalization: Annotated[
        str | None,
        typer.Option(help="Normalization of the coefficients: max_min (default), softmax or leaky_softmax."),
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Of dynamic routing; 3 by default.")] = None,
    stem: Annotated[
        Literal["paper", "strided"] | None,
        typer.Option(help="One convolution (default), or strided ones in front of it for large images."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images; by data set.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and augmentation.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of Adam, at its highest.")] = None,
    final_rate: Annotated[float | None, typer.Option(help="Part of it that is left at the end.")] = None,
    decay: Annotated[
        Literal["exponential", "cosine"] | None, typer.Option(help="How it gets there; exponential by default.")
    ] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps over which it rises, at most a third of all.")] = None,
    loss: Annotated[
        Literal["margin", "cross_entropy"] | None, typer.Option(help="Of the capsules' lengths; margin by default.")
    ] = None,
    sharpness: Annotated[float | None, typer.Option(help="What lengths are multiplied by in cross_entropy.")] = None,
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
    """Train a capsule network with dynamic routing, or with fixed master coefficients.

    Stops at a checkpoint when interrupted (Ctrl-C); --resume then ends with the same weights as if it had not been.
    With --master or --dynamic-epochs the run folder also gets the coefficients and the folded network.
    Several processes share each batch (torchrun).

    Example:  fastcaps train --data digits --out runs/digits

    Example:  fastcaps train --init runs/digits --master runs/digits/master.safetensors --out runs/digits-fixed

    Example:  fastcaps train --init runs/digits --master uniform --routing-only --loss cross_entropy --out runs/refit
    """
    require("fastcaps train", "torch", "sklearn")
    import torch

    from fastcaps.data import load
    from fastcaps.distributed import current
    from fastcaps.functional import get_normalization
    from fastcaps.master import MasterCoefficients, uniform_coefficients
    from fastcaps.nn import CapsNet
    from fastcaps.nn.pretrained import weights_hash
    from fastcaps.training import Run, Trainer, TrainSettings
    from fastcaps.training.run import check_not_held_out

    world = current()
    from fastcaps.workflows._common import select_device

    target = select_device(device, threads)
    start = None
    if init is not None:
        given = chosen(normalization=normalization, iterations=iterations, stem=stem, network=network)
        if given:
            raise typer.BadParameter(f"--{next(iter(given))}: with --init the network is {init}'s, leave it out")
        start = Run.open(init)
    elif routing_only:
        raise typer.BadParameter("--routing-only: a new network has nothing to keep, give --init with a trained run")
    if data is not None:
        found, options = data, chosen(size=_size(size), test_fraction=test_fraction)
        images = world.main_first(lambda: load(found, data_dir=data_dir, **options))
    elif start is not None:
        images = world.main_first(partial(start.data, data_dir))
    else:
        raise typer.BadParameter("give --data, or --init with a run whose data to use")
    if validation is not None and 1 <= validation < math.inf:
        if validation != int(validation):
            raise typer.BadParameter(f"--validation {validation}: expected a part below 1, or a whole number of images")
        validation = int(validation)
    options = chosen(
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        learning_rate=learning_rate,
        final_rate=final_rate,
        decay=decay,
        warmup=warmup,
        loss=loss,
        sharpness=sharpness,
        reconstruction_weight=reconstruction_weight,
        positive_margin=positive_margin,
        negative_margin=negative_margin,
        negative_weight=negative_weight,
        validation=validation,
        test_every=test_every,
        checkpoint_every=checkpoint_every,
        dynamic_epochs=dynamic_epochs,
        dynamic_fraction=dynamic_fraction,
        reinit=afresh or None,
        refresh_every=refresh,
        routing_only=routing_only or None,
    )
    about: dict[str, Any] = {"command": shlex.join(["fastcaps", *sys.argv[1:]])}
    if start is None:
        settings = TrainSettings.for_data(images.name, **options)
        torch.manual_seed(settings.seed)
        if normalization is not None:
            try:
                get_normalization(normalization)
            except ValueError as error:
                raise typer.BadParameter(f"--normalization {normalization}: {error}") from None
        changes = {**chosen(normalization=normalization, iterations=iterations, stem=stem), **_changes(network or [])}
        model = CapsNet(images.config(**changes)).to(target)
    else:
        if afresh:
            raise typer.BadParameter("--afresh: with --init the weights are a run's, leave one of them out")
        kept = TrainSettings.loss_settings(start.about["settings"])
        if routing_only:
            kept["reconstruction_weight"] = 0.0  # the decoder isn't trained
        settings = TrainSettings.finetune_defaults(**{**kept, **start.held_out(images), **options})
        start.check_held_out(images, settings)
        model = start.model().float().to(target)
        about["init"] = {"run": str(init), "weights": weights_hash(model)}
    useless = {
        "margin": chosen(sharpness=sharpness),
        "cross_entropy": chosen(
            positive_margin=positive_margin, negative_margin=negative_margin, negative_weight=negative_weight
        ),
    }[settings.loss]
    if useless:
        option = next(iter(useless)).replace("_", "-")
        raise typer.BadParameter(
            f"--{option} is of no use with the loss {settings.loss}: leave it out, or change --loss"
        )
    model.primary.convolution = convolution
    coefficients = None
    if master is not None:
        coefficients = uniform_coefficients(model.config) if master == "uniform" else MasterCoefficients.load(master)
        about["master"] = coefficients.summary()
        check_not_held_out(coefficients, images, settings)
        if start is None:
            model.routing.reset_parameters(coefficients.values)
    loggers = ["console", *(["tensorboard"] if tensorboard else [])]
    trainer = Trainer(model, images, settings, out, master=coefficients, about=about, loggers=loggers)
    history = trainer.fit(resume=resume or _restarted(out))
    if as_json:
        print_json({"run": str(out), "history": [metrics.to_dict() for metrics in history]})
    else:
        kept = trainer.progress.selected.to_dict()
        words = [f"loss {kept['loss']:.4f}", f"training accuracy {kept['accuracy']:.2%}"]
        words += [f"{part} accuracy {kept[f'{part}_accuracy']:.2%}" for part in _measured(kept)]
        typer.echo(f"{out}: epoch {kept['epoch']} of {len(history)}, {', '.join(words)}")
        ready = trainer.master is not None
        typer.echo(f"next: fastcaps {'evaluate' if ready else 'accumulate'} {out}", err=True)


# What the images decide.
_FROM_DATA = {"height", "width", "channels", "classes", "class_names"}


def _restarted(folder: Path) -> bool:
    """Whether ``torchrun --max-restarts`` has started a job again that left a checkpoint."""
    from fastcaps.training import Run

    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    return restarts > 0 and Run(folder).checkpoint_file.is_file()


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
