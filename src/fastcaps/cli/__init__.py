"""The command line: one module per subcommand, which parses options, calls a workflow and prints its result.

Exit codes: 0 done, 1 failed (one line says why and what to do), 2 wrong use, 130 interrupted.
"""

import typer

from fastcaps._version import __version__
from fastcaps.cli import (
    ablate,
    accumulate,
    analyze,
    bench,
    compress,
    data,
    demo,
    doctor,
    evaluate,
    export,
    lengths,
    models,
    page,
    predict,
    reproduce,
    serve,
    train,
)
from fastcaps.cli._common import quiet, wait_for_the_first
from fastcaps.cli._options import GroupedCommand

app = typer.Typer(
    name="fastcaps",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Capsule networks whose routing is one matrix multiply at inference.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fastcaps {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
    ),
) -> None:
    pass


app.command("demo")(demo.demo)
app.add_typer(data.app, name="data")
app.command("train", cls=GroupedCommand)(train.train)
app.command("accumulate", cls=GroupedCommand)(accumulate.accumulate)
app.command("ablate", cls=GroupedCommand)(ablate.ablate)
app.command("evaluate", cls=GroupedCommand)(evaluate.evaluate)
app.command("lengths", cls=GroupedCommand)(lengths.lengths)
app.command("analyze", cls=GroupedCommand)(analyze.analyze)
app.command("reproduce", cls=GroupedCommand)(reproduce.reproduce)
app.command("models")(models.models)
app.command("doctor")(doctor.doctor)
app.command("compress", cls=GroupedCommand)(compress.compress)
app.command("export", cls=GroupedCommand)(export.export)
app.command("predict")(predict.predict)
app.command("serve")(serve.serve)
app.command("page")(page.page)
app.command("bench", cls=GroupedCommand)(bench.bench)


def main() -> None:
    """Run the command line; in a distributed run only rank 0 prints."""
    quiet()
    try:
        app()
    except SystemExit as end:
        if end.code == 2:
            wait_for_the_first()
        raise
