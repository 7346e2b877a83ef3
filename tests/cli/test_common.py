"""What the subcommands share: options under their former names."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fastcaps.cli._common import command, renamed_option, renamed_value


def app() -> typer.Typer:
    application = typer.Typer()

    @application.command()
    @command
    @renamed_option("--kept", "keep_fraction")
    @renamed_option("--network", "changes")
    @renamed_option("--afresh", "reinit")
    def show(
        keep_fraction: Annotated[float | None, typer.Option(min=0, help="Fraction.")] = None,
        changes: Annotated[list[str] | None, typer.Option("--set", help="Changes.")] = None,
        reinit: Annotated[bool, typer.Option("--reinit", help="New weights.")] = False,
        iteration: Annotated[str | None, typer.Option(callback=renamed_value("after", "final"))] = None,
    ) -> None:
        typer.echo(f"{keep_fraction} {changes} {reinit} {iteration}")

    return application


@pytest.mark.parametrize(
    ("arguments", "output", "warning"),
    [
        (["--keep-fraction", "0.5", "--set", "a=1", "--reinit"], "0.5 ['a=1'] True None", ""),
        (["--kept", "0.5"], "0.5 None False None", "warning: --kept is deprecated, use --keep-fraction\n"),
        (["--kept", "0"], "0.0 None False None", "warning: --kept is deprecated, use --keep-fraction\n"),
        (
            ["--network", "a=1", "--network", "b=2"],
            "None ['a=1', 'b=2'] False None",
            "warning: --network is deprecated, use --set\n",
        ),
        (["--afresh"], "None None True None", "warning: --afresh is deprecated, use --reinit\n"),
        (
            ["--iteration", "after"],
            "None None False final",
            "warning: --iteration after is deprecated, use --iteration final\n",
        ),
        (["--iteration", "2"], "None None False 2", ""),
    ],
)
def test_former_options_work_with_a_warning(arguments: list[str], output: str, warning: str) -> None:
    result = CliRunner().invoke(app(), arguments)
    assert (result.exit_code, result.stdout.strip(), result.stderr) == (0, output, warning)


def test_both_names_are_refused_and_the_former_is_checked_like_the_present_one() -> None:
    both = CliRunner().invoke(app(), ["--kept", "0.5", "--keep-fraction", "0.7"])
    assert both.exit_code == 2
    assert "--kept is the former name of --keep-fraction" in " ".join(both.stderr.split())
    assert CliRunner().invoke(app(), ["--kept", "-1"]).exit_code == 2


@pytest.mark.slow
def test_help_shows_only_present_names() -> None:
    text = CliRunner().invoke(app(), ["--help"]).stdout
    assert "--keep-fraction" in text
    assert not [name for name in ("--kept", "--afresh", "--network") if name in text]
