"""Compare the lengths of class capsules with dynamic routing and without it, on images of the classes and on others.

``python -m tools.lengths mnist --outside fashion_mnist --run refitted=runs/refit --run distilled=runs/distilled
--result results/mnist-lengths.json``
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fastcaps import FastCapsNet, fold
from fastcaps._files import json_bytes, write_atomically
from fastcaps._progress import progress_bar
from fastcaps.analysis.rejection import LengthComparison, compare_lengths
from fastcaps.data import batches, load
from fastcaps.nn import CapsuleNetwork
from fastcaps.training import Run
from fastcaps.training.result import without_data_dir


def main(
    source: Annotated[str, typer.Argument(help="Run folder or bundled network.", metavar="RUN")],
    outside: Annotated[str, typer.Option(help="Data set of images of no class.")] = "fashion_mnist",
    run: Annotated[list[str] | None, typer.Option(help="Folded network of another run.", metavar="NAME=RUN")] = None,
    result: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of images of each data set (default: all).")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data sets' files.")] = None,
) -> None:
    """Compare dynamic, master and uniform coefficients of a run, and the folded networks of other runs."""
    opened = Run.open(source)
    model = opened.model()
    networks: dict[str, CapsuleNetwork] = {"dynamic": model, "master": fold(model, opened.master())}
    networks["uniform"] = fold(model, "uniform")
    for text in run or []:
        name, _, folder = text.partition("=")
        networks[name] = FastCapsNet.from_pretrained(folder)
    own, other = opened.data(data_dir, test_only=True), load(outside, data_dir=data_dir, test_only=True)
    tests, others = own.test.first(limit), other.test.first(limit)
    view = own.augmentation.test_view
    with progress_bar("images", len(networks) * (len(tests) + len(others))) as observe:
        rows = compare_lengths(
            networks,
            lambda: batches(tests, 128, view=view),
            lambda: batches(others, 128, view=view),
            observe,
        )
    comparison = LengthComparison(
        data=own.name, outside=other.name, images=len(tests), outside_images=len(others), rows=rows
    )
    command = without_data_dir(shlex.join(["python", "-m", "tools.lengths", *sys.argv[1:]]))
    if result is not None:
        write_atomically({result: json_bytes(replace(comparison, command=command).to_dict())})
    typer.echo(repr(comparison))


if __name__ == "__main__":
    typer.run(main)
