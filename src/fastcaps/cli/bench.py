"""``fastcaps bench``: how fast, against everything a user could pick instead."""

from pathlib import Path
from typing import Annotated

import typer

from fastcaps._extras import require
from fastcaps._result import without_none
from fastcaps.cli._common import Data, DataDir, Json, Threads, command, print_result, renamed_option, this_command

_Memory = Annotated[
    bool | None,
    typer.Option("--memory/--no-memory", help="Peaks of memory, in processes of their own; takes some minutes more."),
]

_Isolated = Annotated[
    bool | None,
    typer.Option("--isolated/--no-isolated", help="A process of its own for each engine (default), or one for all."),
]


@command
@renamed_option("--compare", "check_images")
def bench(
    model: Annotated[
        Path | None,
        typer.Argument(help="Run folder or bundled network whose sizes to measure.", metavar="[RUN]"),
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Images at a time; may be repeated.")] = None,
    compressed: Annotated[
        Path | None, typer.Option(help="Compressed network whose size to measure, too.", metavar="RUN")
    ] = None,
    check_images: Annotated[
        int | None, typer.Option(min=1, help="Number of test images of RUN to compare the engines' answers on.")
    ] = None,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Turns of each engine (default: 7).")] = None,
    memory: _Memory = None,
    isolated: _Isolated = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny network, one turn: shows that it works, not how fast.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json and bench.png.")] = None,
    data: Data = None,
    data_dir: DataDir = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Measure inference: PyTorch and ONNX Runtime, dynamic, folded and compressed, beside other networks.

    Engines take turns in one run; medians count, as ratios to plain dynamic routing. Then the routing layer alone, as
    the number of lower capsules, classes, iterations and images grows. Needs a quiet machine and some minutes.

    Example:  fastcaps bench mnist --threads 2 --out bench --check-images 1000
    """
    require("fastcaps bench", "torch", "matplotlib", "onnx", "onnxscript", "onnxruntime")
    import dataclasses

    from fastcaps import workflows
    from fastcaps.benchmark.settings import Settings

    if quick and model is not None:
        raise typer.BadParameter(f"--quick measures a tiny network of its own: leave {model} or --quick out")
    if check_images is not None and model is None:
        raise typer.BadParameter("--check-images needs a trained network: give a run, or a name such as mnist")
    settings = Settings.quick() if quick else Settings()
    changes = without_none(
        batches=tuple(batch) if batch else None, repetitions=repetitions, memory=memory, isolated=isolated
    )
    result = workflows.bench(
        model,
        out,
        settings=dataclasses.replace(settings, **changes),
        compressed=compressed,
        check_images=check_images,
        data=data,
        data_dir=data_dir,
        threads=threads,
        command=this_command(),
    )
    print_result(result, as_json)
    if out is not None:
        typer.echo(f"all numbers: {out}/bench.json; figure: {out}/bench.png", err=True)
