"""What all subcommands share: how they fail, where they print, their tables."""

import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import typer

P = ParamSpec("P")
R = TypeVar("R")


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function a subcommand that fails with one line: exit code 1, or 130 when interrupted.

    With ``FASTCAPS_TRACEBACK=1`` in the environment the traceback is shown instead.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None
        except (ValueError, OSError, ImportError) as error:
            if os.environ.get("FASTCAPS_TRACEBACK") == "1":
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from None

    return wrapped


def print_json(value: Any) -> None:
    """A result for machines, on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A result for people, on standard output; all columns but the first are aligned right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 120
    Console(width=width).print(table)
