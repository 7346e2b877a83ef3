"""Common parts of all subcommands: errors, printing, and options."""

import copy
import functools
import inspect
import json
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from fastcaps import distributed
from fastcaps._extras import require
from fastcaps._machine import out_of_memory_message, reuse_memory, usable_devices
from fastcaps._result import Result, Table
from fastcaps._text import printable
from fastcaps._version import __version__
from fastcaps.cli._options import in_words_of_options

# Group of options in the help.
_EXECUTION = "Execution"

RunArgument = Annotated[
    Path,
    typer.Argument(help="A run folder, a bundled network, or user/name on the Hub.", metavar="RUN"),
]
Coefficients = Annotated[
    Path | None, typer.Option(help="A file of master coefficients (default: RUN/master.safetensors).", metavar="FILE")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Images per batch.", rich_help_panel=_EXECUTION)]
Data = Annotated[
    str | None,
    typer.Option(
        help="Where the images of the run are now, or other images of its classes: a folder, or a data set's name.",
        metavar="PATH",
        rich_help_panel=_EXECUTION,
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data sets' files.", rich_help_panel=_EXECUTION)]
Device = Annotated[str, typer.Option(help=f"{', '.join(usable_devices())}.", rich_help_panel=_EXECUTION)]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all).", rich_help_panel=_EXECUTION)]
Rotation = Annotated[
    float | None,
    typer.Option(help="Largest random rotation of training images in degrees (default: that of the run or set)."),
]
Zoom = Annotated[
    float | None,
    typer.Option(
        help="Largest random change of height and width of training images, such as 0.1 (default: that of the run "
        "or set)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

P = ParamSpec("P")
R = TypeVar("R")


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function a subcommand that fails with one line: exit code 1, or 130 when interrupted.

    It works in one process and refuses to be started in several. With ``FASTCAPS_TRACEBACK=1`` in the environment the
    traceback is shown instead.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with _one_line(function):
            size = distributed.launched()[1]
            if size > 1:
                raise ValueError(
                    f"fastcaps {function.__name__} works in one process, {size} were started: leave torchrun out"
                )
            return function(*args, **kwargs)

    return wrapped


def distributed_command(function: Callable[P, R]) -> Callable[P, R]:
    """Do the same for a subcommand that several processes may share; an error that all have is printed once."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with _one_line(function):
            if distributed.launched()[1] == 1:
                return function(*args, **kwargs)
            require(f"fastcaps {function.__name__} in several processes", "torch")
            with distributed.init_distributed() as world, _one_line(function, world):
                world.check_same(command=sys.argv[1:], version=__version__)
                return function(*args, **kwargs)

    return wrapped


def prepare_training(purpose: str, *modules: str) -> None:
    """Raise if a module is not installed, and let the process keep its memory from step to step."""
    require(purpose, *modules)
    reuse_memory()


def renamed_option(old: str, parameter: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Accept the former name of an option for one release: hidden in the help, with a warning on stderr.

    Goes below `command`, once per renamed option.

    Args:
        old: the former option, such as ``"--kept"``.
        parameter: the parameter of the command that the option sets now, annotated with its `typer.Option`.
    """
    old_parameter = old.removeprefix("--").replace("-", "_")

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
        default = signature.parameters[parameter].default
        kind, option = get_args(hints[parameter])
        new = option.default if isinstance(option.default, str) else f"--{parameter.replace('_', '-')}"
        hidden = copy.copy(option)
        hidden.default, hidden.hidden = old, True
        annotation = Annotated[kind | None, hidden]  # type: ignore[valid-type]

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> R:
            value = kwargs.pop(old_parameter, None)
            if value is not None and value != []:
                if kwargs.get(parameter, default) != default:
                    raise typer.BadParameter(f"{old} is the former name of {new}, and both were given: leave {old} out")
                typer.echo(f"warning: {old} is deprecated, use {new}", err=True)
                kwargs[parameter] = value
            return function(*args, **kwargs)

        wrapped.__annotations__ = {**hints, old_parameter: annotation}
        former = inspect.Parameter(old_parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        parameters = [entry.replace(annotation=hints[name]) for name, entry in signature.parameters.items()]
        wrapped.__signature__ = signature.replace(parameters=[*parameters, former])  # type: ignore[attr-defined]
        return wrapped

    return decorate


def renamed_value(old: str, new: str) -> Callable[[typer.CallbackParam, Any], Any]:
    """Return a callback for an option that still accepts a former value, or a list of values, with a warning."""

    def replace(param: typer.CallbackParam, value: Any) -> Any:
        if isinstance(value, list):
            return [replace(param, entry) for entry in value]
        if value != old:
            return value
        typer.echo(f"warning: {param.opts[0]} {old} is deprecated, use {param.opts[0]} {new}", err=True)
        return new

    return replace


def quiet() -> None:
    """Silence all ranks but 0; `_one_line` prints errors that only other ranks have."""
    if distributed.launched()[0] > 0:
        # Open until the process ends.
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123


@contextmanager
def _one_line(function: Callable[..., Any], world: distributed.World = distributed.SINGLE) -> Iterator[None]:
    """Turn errors into one line, printed once, and an exit code."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except distributed.EndedElsewhereError as error:
        raise typer.Exit(error.code) from None
    except distributed.JoiningError as error:
        # Every process prints its own error: it can't know whether another one has printed it.
        typer.echo(f"error: {error}", file=sys.__stderr__)
        raise typer.Exit(1) from None
    except KeyboardInterrupt as interrupt:
        own = type(interrupt) is KeyboardInterrupt and str(interrupt)
        _say(in_words_of_options(own, option_names(function)) if own else "interrupted", world, 130)
        raise typer.Exit(130) from None
    except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
        words = explained(error, function, world)
        if words is None or os.environ.get("FASTCAPS_TRACEBACK") == "1":
            world.end(1)
            if not world.is_single:
                sys.stderr = sys.__stderr__
            raise
        _say(f"error: {words}", world, 1)
        raise typer.Exit(1) from None
    except typer.BadParameter:
        raise
    except Exception:
        # A bug; it must also be visible if it occurs on another rank than 0.
        world.end(1)
        if distributed.launched()[0] > 0:
            sys.stderr = sys.__stderr__
        raise


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print a warning in one line."""
    typer.echo(printable(f"warning: {message}", "\n"), err=True)


def _say(words: str, world: distributed.World, code: int) -> None:
    world.end(code)
    if world.is_single:
        typer.echo(printable(words, "\n"), err=True)
        wait_for_the_first()
    elif world.is_first_to_say(words):
        typer.echo(printable(words, "\n"), file=sys.__stderr__)


def wait_for_the_first() -> None:
    """On all ranks but 0, wait to be terminated.

    Rank 0 is about to print why it ends, and the launcher would stop it at once if another rank ended first.
    """
    if distributed.launched()[0] > 0:
        time.sleep(30)


def explained(
    error: Exception, function: Callable[..., Any], world: distributed.World = distributed.SINGLE
) -> str | None:
    """Return the message of an error for the user; None for a bug."""
    memory = out_of_memory_message(error)
    if memory is not None:
        return memory
    try:
        lost = world.lost_another(error)
    except distributed.EndedElsewhereError as ended:
        raise typer.Exit(ended.code) from None
    if lost:
        return (
            "another process of this job has died or doesn't answer any more: see above what it said, then start again "
            "(fastcaps train resumes from its checkpoint with --resume)"
        )
    if isinstance(error, RuntimeError):
        return None
    return in_words_of_options(str(error), option_names(function))


def option_names(function: Callable[..., Any]) -> dict[str, str]:
    """Return the option of each parameter of a command."""
    names = {}
    for name, hint in get_type_hints(function, include_extras=True).items():
        for option in get_args(hint)[1:]:
            if isinstance(option, OptionInfo):
                own = str(option.default)
                names[name] = own if own.startswith("--") else f"--{name.replace('_', '-')}"
    return names


def print_json(value: Any) -> None:
    """Print a result as JSON on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_result(result: Result, as_json: bool, *, next_command: str | None = None) -> None:
    """Print the result of a workflow: as JSON, or its tables and sentences, and on stderr the next command."""
    if as_json:
        print_json(result.to_dict())
        return
    for table in result.tables():
        print_table(table)
    for sentence in result.sentences():
        typer.echo(printable(sentence, "\n"))
    if next_command is not None:
        typer.echo(f"next: {next_command}", err=True)


def print_table(table: Table) -> None:
    """Print a table on standard output, as wide as the terminal."""
    typer.echo(table.to_text(None if sys.stdout.isatty() else 120))


def print_columns(table: Table) -> None:
    """Print a table without lines and title; texts are never truncated."""
    rows = [[printable(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def this_command() -> str:
    """Return the command line without the folder of the data, which differs between machines."""
    from fastcaps.training.result import without_data_dir

    return without_data_dir(shlex.join(["fastcaps", *sys.argv[1:]]))
