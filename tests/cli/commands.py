"""Commands as a person would type them, with a tiny network."""

from typer.testing import CliRunner

from fastcaps.cli import app

SMALL = [
    *("--set", "stem_channels=8", "--set", "capsule_types=2", "--set", "decoder=[16]"),
    *("--epochs", "2", "--batch-size", "8", "--warmup", "2", "--threads", "1"),
]


def invoke(*arguments, code=0, stdin=None):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    assert result.exit_code == code, result.output
    return result
