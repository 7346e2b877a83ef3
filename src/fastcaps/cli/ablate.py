"""``fastcaps ablate``: every way of building the master matrix in one table, beside no routing at all."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from fastcaps._extras import require
from fastcaps.cli._common import (
    DataDir,
    Device,
    Json,
    RunArgument,
    Threads,
    check_not_bundled,
    command,
    print_json,
    print_table,
    this_command,
)

if TYPE_CHECKING:
    from fastcaps.master import Filter, Method


@command
def ablate(
    run: RunArgument,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", help="none, one of correct, similarity, kmeans, em, or a chain: correct+similarity."),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="Of building the matrix: containers, columns, pooled; all by default."),
    ] = None,
    iterations: Annotated[
        list[str] | None, typer.Option("--iteration", help="Of routing, or after; all but the first by default.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Accumulate only the first so many images.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 256,
    out: Annotated[Path | None, typer.Option(help="Folder for ablation.json and ablation.png; RUN by default.")] = None,
    result: Annotated[Path | None, typer.Option(help="A file for the same JSON, such as results/NAME.json.")] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Build the master matrix in every way and compare: filter × method × iteration.

    Two passes over the training images give all of them. Always beside the uniform matrix (all ones, no routing).
    With a run that held out validation images, the best is chosen on those; the test set is only reported.

    Example:  fastcaps ablate runs/digits --filter none --filter correct --filter correct+similarity
    """
    require("fastcaps ablate", "torch", "sklearn", "matplotlib")
    from fastcaps import workflows
    from fastcaps._files import json_bytes, write_atomically
    from fastcaps.analysis.ablation import ablation_figure
    from fastcaps.analysis.figures import figure_bytes
    from fastcaps.master import Method
    from fastcaps.training import Run
    from fastcaps.training.result import versions

    opened = Run.open(run)
    if out is None:
        check_not_bundled(run, opened.folder)
    chains = {name: _chain(name) for name in filters or ["none", "correct", "similarity", "kmeans", "em"]}
    last = opened.model().config.iterations
    wanted = dict.fromkeys(iterations or [*map(str, range(2, last + 1)), "after"])
    numbers = [_number(text, last) for text in wanted]
    variants = [_method(text) for text in dict.fromkeys(methods or get_args(Method))]
    trials = workflows.ablate(
        opened,
        chains,
        variants,
        numbers,
        limit=limit,
        batch_size=batch_size,
        data_dir=data_dir,
        device=device,
        threads=threads,
    )
    found: dict[str, Any] = {
        "run": str(run),
        "command": this_command(),
        "data": opened.about["data"]["name"],
        "iterations": last,
        "limit": limit,
        "versions": versions(),
        **trials.to_dict(),
    }
    folder = out or opened.folder
    figure = figure_bytes(ablation_figure(found, last))
    files = {folder / "ablation.json": json_bytes(found), folder / "ablation.png": figure}
    write_atomically(files if result is None else {**files, result: json_bytes(found)})
    if as_json:
        print_json(found)
        return
    _print(found, last)
    typer.echo(f"figure: {folder}/ablation.png; all numbers: {folder}/ablation.json", err=True)


def _chain(text: str) -> list["Filter"]:
    from fastcaps.master import FILTERS

    if text == "none":
        return []
    names = text.split("+")
    for name in names:
        if name not in FILTERS:
            words = f"none, {', '.join(FILTERS)}, or several of these joined by +"
            raise typer.BadParameter(f"--filter {text}: expected {words}")
    return [FILTERS[name]() for name in names]


def _method(text: str) -> "Method":
    from fastcaps.master import Method

    for method in get_args(Method):
        if text == method:
            return cast("Method", text)
    raise typer.BadParameter(f"--method {text}: expected one of {', '.join(get_args(Method))}")


def _number(text: str, last: int) -> int:
    if text == "after":
        return last + 1
    if not text.isdecimal() or not 1 <= int(text) <= last:
        raise typer.BadParameter(f"--iteration {text}: expected a whole number from 1 to {last}, or after")
    return int(text)


def _print(found: dict[str, Any], last: int) -> None:
    from fastcaps.analysis.ablation import iteration_words, trial_words

    held_out = found["best"] is not None
    rows = []
    for trial in (found["uniform"], *found["trials"]):
        test = trial["test"]
        low, high = test["interval"]
        dynamic, uniform = test["against_dynamic"], test["against_uniform"]
        rows.append(
            [
                trial["filter"],
                trial["method"],
                "" if not trial["images"] else iteration_words(trial["iteration"], last).removeprefix("iteration "),
                f"{trial['images']:,}" if trial["images"] else "",
                *([f"{trial['validation']['accuracy']:.2%}"] if held_out else []),
                f"{test['accuracy']:.2%}",
                f"{100 * low:.1f}–{100 * high:.1f}",
                str(dynamic["changed"]),
                f"+{uniform['gained']} −{uniform['lost']}" if trial["images"] else "",
                f"{uniform['p_value']:.2g}" if trial["images"] else "",
            ]
        )
    shares = ", ".join(f"{share:.2%} of {found['images'][part]:,} {part}" for part, share in found["dynamic"].items())
    print_table(
        f"{found['data']}: dynamic routing {shares} images",
        [
            "filter",
            "method",
            "iteration",
            "images",
            *(["validation"] if held_out else []),
            "test",
            "95 %",
            "changed",
            "uniform: +, −",
            "McNemar p",
        ],
        rows,
    )
    for line in found["skipped"]:
        typer.echo(f"skipped {line}")
    if not held_out:
        typer.echo("The run held out no images, so none of these is chosen: train with --validation to choose.")
        return
    best = found["best"]
    name = trial_words(best, last) if best["images"] else "uniform: all ones"
    against = best["test"]["against_uniform"]
    low, high = (100 * end for end in against["interval"])
    words = (
        ""
        if not best["images"]
        else (
            f", {100 * against['difference']:+.2f} points against uniform ({low:+.2f} to {high:+.2f}, "
            f"p = {against['p_value']:.2g})"
        )
    )
    typer.echo(
        f"Best on the held-out images: {name}, {best['validation']['accuracy']:.2%}; on the test images "
        f"{best['test']['accuracy']:.2%}{words}."
    )
