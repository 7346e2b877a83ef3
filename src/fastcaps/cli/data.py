"""``fastcaps data``: list, download and look at data sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastcaps._extras import require
from fastcaps._result import plain, without_none
from fastcaps.cli._common import DataDir, Json, Rotation, Zoom, command, print_json, print_table

if TYPE_CHECKING:
    from fastcaps.data.catalog import Catalog

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, download and look at data sets.")

Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets.")]
Into = Annotated[
    Path | None, typer.Option(help="Folder to look in first, and to download to (default: the cache).", metavar="DIR")
]
Original = Annotated[
    bool, typer.Option("--original", help="For variants of MNIST: download the files of 2007, generate nothing.")
]


@app.command("list")
@command
def list_sets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets: their sizes, whether and where they are available, where they come from.

    Example:  fastcaps data list --data-dir ~/data
    """
    from fastcaps.data.catalog import available

    _print(available(data_dir), as_json)
    if not as_json:
        typer.echo("A folder with one subfolder of images per class is a data set, too: give its path as the name.")


@app.command()
@command
def download(names: Names, data_dir: Into = None, original: Original = False, as_json: Json = False) -> None:
    """Download data sets, or generate them, and verify them.

    Example:  fastcaps data download mnist rotated-mnist
    """
    from fastcaps.data import catalog

    _print(catalog.download(*names, data_dir=data_dir, original=original), as_json)


@app.command(hidden=True)
@command
def get(names: Names, data_dir: Into = None, original: Original = False, as_json: Json = False) -> None:
    """Former name of download."""
    typer.echo("warning: fastcaps data get is deprecated, use fastcaps data download", err=True)
    download(names, data_dir, original, as_json)


@app.command()
@command
def preview(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set, or folder of images.")],
    out: Annotated[Path | None, typer.Option(help="Picture to write (default: NAME.png).")] = None,
    data_dir: DataDir = None,
    count: Annotated[int, typer.Option(min=1, help="Number of images.")] = 40,
    augmented: Annotated[bool, typer.Option("--augmented", help="Show them as training sees them.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is generated and of the augmentation.")] = 0,
    photographs: Annotated[
        Path | None, typer.Option(help="Folder of photographs for the backgrounds of background_mnist.")
    ] = None,
    rotation: Rotation = None,
    zoom: Zoom = None,
) -> None:
    """Write a picture of labeled images.

    Example:  fastcaps data preview cifar10 --augmented --out cifar10.png
    """
    require("fastcaps data preview", "torch")
    from fastcaps import workflows

    options = without_none(data_dir=data_dir, photographs=photographs, rotation=rotation, zoom=zoom)
    typer.echo(workflows.preview(name, out, count=count, augmented=augmented, seed=seed, **options))


def _print(catalog: "Catalog", as_json: bool) -> None:
    if as_json:
        print_json(plain(catalog.sets))
        return
    for table in catalog.tables():
        print_table(table)
    # Paths and addresses are for copying: a table would cut them.
    for entry in catalog.sets:
        typer.echo(f"{entry.name}: {entry.where or 'missing'}")
        typer.echo(f"    from {', '.join(entry.sources)}")
