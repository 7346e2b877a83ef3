"""``fastcaps accumulate``: from the routing of a trained network to master coefficients and a folded network."""

from pathlib import Path
from typing import Annotated

import typer

from fastcaps._extras import require
from fastcaps._result import without_none
from fastcaps.cli import _variants as variants
from fastcaps.cli._common import (
    BatchSize,
    Data,
    DataDir,
    Device,
    Json,
    RunArgument,
    Threads,
    distributed_command,
    print_result,
    renamed_option,
    this_command,
)


@distributed_command
@renamed_option("--kept", "keep_fraction")
@renamed_option("--outlying", "max_outlier_fraction")
def accumulate(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="File to write (default: RUN/master.safetensors).")] = None,
    iteration: variants.Iteration = None,
    method: variants.Method = "per_class",
    filters: variants.Filters = None,
    confidence: variants.Confidence = None,
    measure: variants.Measure = None,
    keep_fraction: variants.KeepFraction = None,
    margin: variants.Margin = None,
    clusters: variants.Clusters = None,
    max_outlier_fraction: variants.MaxOutlierFraction = None,
    components: variants.Components = None,
    seed: variants.Seed = None,
    batch_size: BatchSize = 256,
    memory: Annotated[
        float | None, typer.Option(help="Gigabytes for the sums in each process (default: half of the free memory).")
    ] = None,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Accumulate routing coefficients over the training images, and fold them.

    One pass in the test view, without augmentation, and one before it when there are filters. Writes
    RUN/master.safetensors and the folded network RUN/fast; with --out only the coefficients. Several processes share
    the images (torchrun); where the sums of many classes don't fit into memory, classes are taken in groups.

    Example:  fastcaps accumulate runs/digits --filter correct --filter similarity --keep-fraction 0.9
    """
    require("fastcaps accumulate", "torch", "sklearn")
    from fastcaps import workflows

    options = without_none(confidence=confidence, measure=measure, keep_fraction=keep_fraction, margin=margin)
    options |= without_none(
        clusters=clusters, components=components, seed=seed, max_outlier_fraction=max_outlier_fraction
    )
    result = workflows.accumulate(
        run,
        out,
        iteration=None if iteration is None else variants.parse_iteration(iteration),
        method=variants.parse_method(method),
        filters=variants.parse_filters(filters or ["none"], options),
        memory=None if memory is None else round(memory * 1e9),
        batch_size=batch_size,
        data=data,
        data_dir=data_dir,
        device=device,
        threads=threads,
        command=this_command(),
    )
    print_result(result, as_json, next_command=f"fastcaps evaluate {run}{f' --coefficients {out}' if out else ''}")
