"""``fastcaps demo``: train, accumulate, evaluate and analyze on the digits of scikit-learn."""

from pathlib import Path
from typing import Annotated

import typer

from fastcaps._extras import require
from fastcaps._result import without_none
from fastcaps.cli._common import Json, Threads, command, print_result


@command
def demo(
    out: Annotated[Path, typer.Option(help="The run folder; a run in it is resumed.")] = Path("runs/demo"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of epochs (default: by data set).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, order and augmentation.")] = 0,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train, accumulate, fold, compare and report on 1,797 real digits; takes a few minutes.

    The digits come with scikit-learn, so nothing is downloaded.

    Example:  fastcaps demo
    """
    require("fastcaps demo", "torch", "sklearn", "matplotlib")
    from fastcaps import workflows
    from fastcaps.training import Run

    resume = Run(out).checkpoint_file.exists()
    workflows.train(
        "digits", out, resume=resume, device="cpu", **without_none(epochs=epochs, seed=seed, threads=threads)
    )
    workflows.accumulate(out, device="cpu", threads=threads)
    evaluation = workflows.evaluate(out, device="cpu", threads=threads)
    report = workflows.analyze(out, device="cpu", threads=threads)
    print_result(evaluation if as_json else report, as_json)
