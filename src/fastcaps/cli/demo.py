"""``fastcaps demo``: the bundled MNIST network in seconds, then the whole way on the digits of scikit-learn."""

from pathlib import Path
from typing import Annotated

import typer

from fastcaps._extras import require
from fastcaps.cli._common import Json, Threads, command, print_json, print_result


@command
def demo(
    out: Annotated[Path, typer.Option(help="The run folder; a run in it is resumed.")] = Path("runs/demo"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of epochs (default: 40).")] = None,
    images: Annotated[int, typer.Option(min=1, help="MNIST test images for the bundled network.")] = 512,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, order and augmentation.")] = 0,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Show what fastcaps does, in about three minutes and without a download.

    First the bundled MNIST network on its test images: with the routing loop, without it, and in int8. Then the whole
    way on 1,797 real digits, which come with scikit-learn: train, accumulate, fold, compare, and a report.

    Example:  fastcaps demo
    """
    require("fastcaps demo", "torch", "sklearn", "matplotlib")
    from fastcaps import workflows

    engines = workflows.compare_bundled(images, threads)
    if not as_json:
        print_result(engines, as_json)
    report = workflows.demonstrate(out, epochs=epochs, seed=seed, threads=threads)
    if as_json:
        print_json({"engines": engines.to_dict(), "evaluation": report.evaluation.to_dict()})
    else:
        print_result(report, as_json)
