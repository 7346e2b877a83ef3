"""``fastcaps ablate``: every variant of the master matrix in one table, compared with no routing at all."""

from pathlib import Path
from typing import Annotated

import typer

from fastcaps._extras import require
from fastcaps.cli import _variants as variants
from fastcaps.cli._common import (
    BatchSize,
    Data,
    DataDir,
    Device,
    Json,
    RunArgument,
    Threads,
    command,
    print_result,
    this_command,
)


@command
def ablate(
    run: RunArgument,
    filters: variants.Chains = None,
    methods: variants.Methods = None,
    iterations: variants.Iterations = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of training images (default: all).")] = None,
    batch_size: BatchSize = 256,
    out: Annotated[Path | None, typer.Option(help="Folder for ablation.json and ablation.png (default: RUN).")] = None,
    result: Annotated[Path | None, typer.Option(help="File for the same JSON, such as results/NAME.json.")] = None,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Build the master matrix in every variant and compare: filter × method × iteration.

    Two passes over the training images give all of them. They are compared with the uniform matrix (all ones, no
    routing). With a run that held out validation images, the best is chosen on those; the test set is only reported.

    Example:  fastcaps ablate runs/digits --filter none --filter correct --filter correct+similarity
    """
    require("fastcaps ablate", "torch", "sklearn", "matplotlib")
    from fastcaps import workflows

    ablation = workflows.ablate(
        run,
        out,
        filters=None if not filters else variants.parse_chains(filters),
        methods=None if not methods else [variants.parse_method(text) for text in methods],
        iterations=None if not iterations else [variants.parse_iteration(text) for text in iterations],
        limit=limit,
        result_file=result,
        batch_size=batch_size,
        data=data,
        data_dir=data_dir,
        device=device,
        threads=threads,
        command=this_command(),
    )
    print_result(ablation, as_json)
