"""``fastcaps accumulate``: from the routing of a trained network to master coefficients and a folded network."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from fastcaps._extras import require
from fastcaps.cli._common import (
    BatchSize,
    DataDir,
    Device,
    Json,
    RunArgument,
    Threads,
    chosen,
    distributed_command,
    print_result,
    renamed_option,
    renamed_value,
    this_command,
)
from fastcaps.cli._variants import parse_filters, parse_iteration, parse_method


@distributed_command
@renamed_option("--kept", "keep_fraction")
@renamed_option("--outlying", "max_outlier_fraction")
def accumulate(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="File to write (default: RUN/master.safetensors).")] = None,
    iteration: Annotated[
        str | None,
        typer.Option(
            help="Iteration of routing, from 1, or final for the update after the last (default: the last).",
            callback=renamed_value("after", "final"),
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="[per_class|columns|pooled]",
            help="The paper's; its variant with only the classes' own columns; the mean over all images.",
            callback=renamed_value("containers", "per_class"),
        ),
    ] = "per_class",
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="[none|correct|similarity|kmeans|em]",
            help="Which images to take; may be repeated, each sees what those before it kept.",
        ),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="correct: by how much the label's capsule must be the longest.")
    ] = None,
    measure: Annotated[
        Literal["pearson", "dot", "cosine"] | None, typer.Option(help="similarity: how columns are compared.")
    ] = None,
    keep_fraction: Annotated[
        float | None, typer.Option(help="similarity: fraction of each class to keep, the most similar images.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="similarity: instead, by how much an image must be more like its own class.")
    ] = None,
    clusters: Annotated[int | None, typer.Option(help="kmeans, em: number of clusters per class.")] = None,
    max_outlier_fraction: Annotated[
        float | None, typer.Option(help="kmeans, em: largest fraction of a class in outlying clusters.")
    ] = None,
    components: Annotated[int | None, typer.Option(help="em: number of principal components.")] = None,
    seed: Annotated[int | None, typer.Option(help="kmeans, em: seed of the clustering.")] = None,
    batch_size: BatchSize = 256,
    memory: Annotated[
        float | None, typer.Option(help="Gigabytes for the sums in each process (default: half of the free memory).")
    ] = None,
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

    options = chosen(confidence=confidence, measure=measure, keep_fraction=keep_fraction, margin=margin)
    options |= chosen(clusters=clusters, components=components, seed=seed, max_outlier_fraction=max_outlier_fraction)
    result = workflows.accumulate(
        run,
        out,
        iteration=None if iteration is None else parse_iteration(iteration),
        method=parse_method(method),
        filters=parse_filters(filters or ["none"], options),
        memory=None if memory is None else round(memory * 1e9),
        batch_size=batch_size,
        data_dir=data_dir,
        device=device,
        threads=threads,
        command=this_command(),
    )
    print_result(result, as_json, next_command=f"fastcaps evaluate {run}{f' --coefficients {out}' if out else ''}")
