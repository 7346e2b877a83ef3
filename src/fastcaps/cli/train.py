"""``fastcaps train``: from images to a trained network in a run folder."""

import dataclasses
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fastcaps.cli._common import Json, distributed_command, prepare_training, print_json, renamed_option
from fastcaps.cli._options import errors_about_options, options_from
from fastcaps.training.config import ConfigError, DataOptions, NetworkOptions, RunOptions, TrainConfig, network_keys
from fastcaps.training.settings import TrainSettings

_GROUPS = (("Run", RunOptions), ("Data", DataOptions), ("Network", NetworkOptions), ("Training", TrainSettings))
# Options that are not called as their fields.
_FLAGS = {"name": ("--data",), "loggers": ("--logger",), "learning_rate": ("--learning-rate", "--lr")}
_NAMES = {
    field.name: _FLAGS.get(field.name, (f"--{field.name.replace('_', '-')}",))[0]
    for _, cls in _GROUPS
    for field in dataclasses.fields(cls)
} | {"data": "--data", "resume": "--resume", "config": "--config"}

_RunToResume = Annotated[
    Path | None,
    typer.Argument(help="With --resume: the run folder; needs no other option.", metavar="RUN", rich_help_panel="Run"),
]
_ConfigFile = Annotated[
    Path | None, typer.Option(help="TOML file that describes the run; options override it.", rich_help_panel="Run")
]
_Resume = Annotated[
    bool, typer.Option("--resume", help="Resume a run; with more --epochs, extend it.", rich_help_panel="Run")
]
_NetworkChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change of the network, such as stem_channels=64; may be repeated.",
        rich_help_panel="Network",
    ),
]


@distributed_command
@renamed_option("--afresh", "reinit")
@renamed_option("--refresh", "refresh_every")
@renamed_option("--master", "coefficients")
@renamed_option("--network", "network_changes")
@options_from(*_GROUPS, flags=_FLAGS)
def train(
    run: _RunToResume = None,
    config: _ConfigFile = None,
    resume: _Resume = False,
    network_changes: _NetworkChanges = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", hidden=True)] = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train a capsule network with dynamic routing, or with fixed master coefficients.

    Ctrl-C writes a checkpoint. --resume RUN continues and ends with the same weights as a run without a break.
    With --coefficients or --dynamic-epochs the run folder also gets the coefficients and the folded network.
    Its config.toml repeats the run with --config. Several processes share each batch (torchrun).

    Example:  fastcaps train --data digits --out runs/digits

    Example:  fastcaps train --init runs/digits --coefficients runs/digits/master.safetensors --out runs/digits-fixed

    Example:  fastcaps train --init runs/digits --coefficients uniform --routing-only --out runs/refit

    Example:  fastcaps train --init runs/digits --distill --routing-only --out runs/distilled

    Example:  fastcaps train --config runs/digits/config.toml --epochs 20 --out runs/longer

    Example:  fastcaps train --resume runs/digits --epochs 20
    """
    prepare_training("fastcaps train", "torch", "sklearn")
    from fastcaps import workflows

    if tensorboard:
        typer.echo("warning: --tensorboard is deprecated, use --logger tensorboard", err=True)
        options["loggers"] = [*options.get("loggers", []), "tensorboard"]
    if run is not None and not resume:
        raise typer.BadParameter(f"{run} was given without --resume: give the data as --data and the folder as --out")
    described = None if config is None else TrainConfig.load(config)
    with errors_about_options(_NAMES, ConfigError), _said_how_to_resume():
        result = workflows.train(
            options.pop("name", None),
            config=described,
            resume=run or resume,
            command=shlex.join(["fastcaps", *sys.argv[1:]]),
            **options,
            **_changes(network_changes or []),
        )
    if as_json:
        print_json(result.to_dict())
        return
    typer.echo(repr(result))
    typer.echo(f"next: fastcaps {result.next_step} {result.run}", err=True)


@contextmanager
def _said_how_to_resume() -> Iterator[None]:
    from fastcaps.training.interrupts import TrainingInterrupted

    try:
        yield
    except TrainingInterrupted as interrupted:
        folder = shlex.quote(str(interrupted.folder))
        raise KeyboardInterrupt(f"interrupted; resume with: fastcaps train --resume {folder}") from None


def _changes(texts: list[str]) -> dict[str, Any]:
    """Return entries of the network from texts such as ``decoder=[64,128]``."""
    changes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in network_keys():
            known = ", ".join(sorted(network_keys()))
            raise typer.BadParameter(f"--set {text}: expected name=value with one of {known}")
        try:
            changes[name] = json.loads(value)
        except json.JSONDecodeError:
            changes[name] = value
    return changes
