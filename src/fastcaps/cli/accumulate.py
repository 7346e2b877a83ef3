"""``fastcaps accumulate``: from a trained network's routing to master coefficients, and to a folded network."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fastcaps._extras import require
from fastcaps.cli._common import (
    DataDir,
    Device,
    Json,
    RunArgument,
    Threads,
    check_not_bundled,
    chosen,
    distributed_command,
    print_json,
    print_table,
    this_command,
)

if TYPE_CHECKING:
    from fastcaps.master import Filter


@distributed_command
def accumulate(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="Where to write; RUN/master.safetensors by default.")] = None,
    iteration: Annotated[
        str | None, typer.Option(help="Of routing, from 1, or after: the update after the last; the last by default.")
    ] = None,
    method: Annotated[
        Literal["containers", "columns", "pooled"],
        typer.Option(help="The paper's; its variant with only the classes' own columns; the mean over all images."),
    ] = "containers",
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
    kept: Annotated[float | None, typer.Option(help="similarity: the part of each class that is most like it.")] = None,
    margin: Annotated[
        float | None, typer.Option(help="similarity: instead, by how much an image must be more like its own class.")
    ] = None,
    clusters: Annotated[int | None, typer.Option(help="kmeans, em: in each class.")] = None,
    outlying: Annotated[
        float | None, typer.Option(help="kmeans, em: the part of a class that outlying clusters may hold.")
    ] = None,
    components: Annotated[int | None, typer.Option(help="em: principal components.")] = None,
    seed: Annotated[int | None, typer.Option(help="kmeans, em: of finding clusters.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 256,
    memory: Annotated[
        float | None,
        typer.Option(help="Gigabytes that sums may take in each process; half of what is free by default."),
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

    Example:  fastcaps accumulate runs/digits --filter correct --filter similarity --kept 0.9
    """
    number = _iteration(iteration)
    options = chosen(
        confidence=confidence,
        measure=measure,
        kept=kept,
        margin=margin,
        clusters=clusters,
        outlying=outlying,
        components=components,
        seed=seed,
    )
    require("fastcaps accumulate", "torch", "sklearn")
    from fastcaps import workflows
    from fastcaps.training import Run

    wanted = _filters(filters or ["none"], options)
    opened = Run.open(run)
    if out is None:
        check_not_bundled(run, opened.folder)
    if out is None and opened.about.get("fixed_coefficients"):
        raise ValueError(
            f"{run} was trained with fixed coefficients, which {opened.master_file} holds: "
            "say where to write others with --out"
        )
    master = workflows.accumulate(
        opened,
        out,
        device=device,
        threads=threads,
        iteration=number,
        method=method,
        filters=wanted,
        batch_size=batch_size,
        memory=None if memory is None else round(memory * 1e9),
        data_dir=data_dir,
        command_line=this_command(),
    )
    path = out or opened.master_file
    if as_json:
        print_json({"master": str(path), **master.summary()})
    else:
        _print_filters(master.filters)
        words = f"iteration {master.iteration}" + (" (after the last)" if number == "after" else "")
        rule = master.normalization.name
        typer.echo(f"{path}: coefficients of {words} of {int(master.counts.sum())} images, {rule}, {method}")
        typer.echo(f"next: fastcaps evaluate {run}{f' --master {out}' if out else ''}", err=True)


def _iteration(text: str | None) -> int | Literal["after"] | None:
    if text is None:
        return None
    if text == "after":
        return "after"
    if not text.isdecimal():
        raise typer.BadParameter(f"--iteration {text}: expected a whole number from 1, or after")
    return int(text)


def _filters(names: Sequence[str], options: dict[str, Any]) -> list["Filter"]:
    """The filters of these names with those of the options that each has; an option that none has is refused."""
    from fastcaps.master import FILTERS

    for name in names:
        if name not in ("none", *FILTERS):
            raise typer.BadParameter(f"--filter {name}: expected one of none, {', '.join(FILTERS)}")
    if "none" in names and len(names) > 1:
        raise typer.BadParameter(f"--filter none together with {', '.join(n for n in names if n != 'none')}")
    known = {name: {field.name for field in dataclasses.fields(kind)} for name, kind in FILTERS.items()}
    for option in options:
        owners = [name for name in known if option in known[name]]
        if not set(owners) & set(names):
            words = " or ".join(f"--filter {name}" for name in owners)
            raise typer.BadParameter(f"--{option} is of no use without {words}")
    return [FILTERS[n](**{k: v for k, v in options.items() if k in known[n]}) for n in names if n != "none"]


def _print_filters(report: list[dict[str, Any]]) -> None:
    """How many images of each class each filter kept, and why the rest went."""
    if not report:
        return
    counts = [report[0]["seen"], *(entry["kept"] for entry in report)]
    rows = [[str(label), *map(str, row)] for label, row in enumerate(zip(*counts, strict=True))]
    rows.append(["all", *(str(sum(column)) for column in counts)])
    print_table("Images kept", ["class", "seen", *(entry["name"] for entry in report)], rows)
    for entry in report:
        typer.echo(f"{entry['name']}: {sum(entry['seen']) - sum(entry['kept'])} left out: {entry['reason']}")
