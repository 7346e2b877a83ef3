"""``fastcaps demo``: the whole way on real digits that come with scikit-learn."""

from pathlib import Path
from typing import Annotated

import typer

from fastcaps._extras import require
from fastcaps.cli._common import Json, Threads, chosen, command, print_result


@command
def demo(
    out: Annotated[Path, typer.Option(help="The run folder; a run that is there is gone on with.")] = Path("runs/demo"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training images.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and augmentation.")] = 0,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train, accumulate, fold, compare and report on 1,797 real digits; takes a few minutes.

    The digits come with scikit-learn, so nothing is downloaded.

    Example:  fastcaps demo
    """
    require("fastcaps demo", "torch", "sklearn", "matplotlib")
    import torch

    from fastcaps import workflows
    from fastcaps.data import load
    from fastcaps.nn import CapsNet
    from fastcaps.training import ConsoleLogger, Trainer, TrainSettings
    from fastcaps.workflows._common import select_device

    select_device("cpu", threads)
    data = load("digits")
    settings = TrainSettings.for_data("digits", **chosen(epochs=epochs, seed=seed))
    torch.manual_seed(seed)
    trainer = Trainer(CapsNet(data.config()), data, settings, out, loggers=[ConsoleLogger("training")])
    trainer.fit(resume=trainer.run.checkpoint_file.exists())
    workflows.accumulate(trainer.run, device="cpu")
    evaluation = workflows.evaluate(trainer.run, device="cpu")
    report = workflows.analyze(trainer.run, device="cpu")
    print_result(evaluation if as_json else report, as_json)
