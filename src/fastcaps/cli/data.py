"""``fastcaps data``: what data sets there are, bringing them, looking at them."""

import io
from pathlib import Path
from typing import Annotated, Any

import typer

from fastcaps._extras import require
from fastcaps._files import write_atomically
from fastcaps.cli._common import DataDir, Json, command, print_json, print_table

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="What data sets there are, bringing them, looking at them.",
)


@app.command("list")
@command
def list_sets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets: their sizes, whether and where they are at hand, where they can be had.

    Example:  fastcaps data list --data-dir ~/data
    """
    from fastcaps.data.catalog import available

    sets = available(data_dir)
    if as_json:
        print_json(sets)
        return
    _print_sets(sets)
    typer.echo("A folder with one sub-folder of images a class is a data set too: give its path instead of a name.")


@app.command()
@command
def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets to bring.")],
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder to look in first and to bring the files to, instead of the cache."),
    ] = None,
    original: Annotated[
        bool,
        typer.Option("--original", help="For variants of MNIST: download the files of 2007, make nothing."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Download data sets, or make the generated ones, and verify them.

    Example:  fastcaps data get mnist rotated-mnist
    """
    from fastcaps.data.catalog import get as get_set
    from fastcaps.data.registry import named

    for name in names:
        named(name)  # a wrong one is refused before anything is downloaded
    sets = [get_set(name, data_dir=data_dir, original=original) for name in names]
    if as_json:
        print_json(sets)
    else:
        _print_sets(sets)


@app.command()
@command
def preview(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set, or a folder of images.")],
    out: Annotated[Path | None, typer.Option(help="Picture to write; NAME.png when not given.")] = None,
    data_dir: DataDir = None,
    count: Annotated[int, typer.Option(min=1, help="Number of images.")] = 40,
    augmented: Annotated[bool, typer.Option("--augmented", help="As training sees them.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of what is generated and of the augmentation.")] = 0,
    photographs: Annotated[
        Path | None, typer.Option(help="Folder of photographs for background_mnist's backgrounds.")
    ] = None,
) -> None:
    """Write a picture of labelled images.

    Example:  fastcaps data preview cifar10 --augmented --out cifar10.png
    """
    require("fastcaps data preview", "torch")
    from fastcaps.data import load
    from fastcaps.data.preview import preview as draw

    data = load(name, data_dir=data_dir, seed=seed, photographs=photographs)
    path = out or Path(f"{data.name}.png")
    buffer = io.BytesIO()
    draw(data, count, augmented=augmented, seed=seed).save(buffer, "PNG")
    write_atomically({path: buffer.getvalue()})
    typer.echo(path)


def _print_sets(sets: list[dict[str, Any]]) -> None:
    rows = [
        [
            entry["name"],
            f"{entry['train']:,} / {entry['test']:,}",
            "×".join(map(str, entry["image_shape"])),
            f"{entry['bytes'] / 1e6:,.1f} MB" if entry["bytes"] else "",
            "yes" if entry["at_hand"] else "no",
        ]
        for entry in sets
    ]
    print_table("Data sets", ["name", "train / test", "image", "size", "at hand"], rows)
    # Paths and addresses are for copying: a table would cut them.
    for entry in sets:
        typer.echo(f"{entry['name']}: {entry['where'] or 'not at hand'}")
        typer.echo(f"    from {', '.join(entry['sources'])}")
