"""``fastcaps bench``: how fast, against everything a user could pick instead."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastcaps._extras import require
from fastcaps._progress import progress_bar
from fastcaps.cli._common import (
    DataDir,
    Json,
    Threads,
    chosen,
    command,
    print_json,
    print_table,
    this_command,
)

if TYPE_CHECKING:
    from fastcaps.training import Run


@command
def bench(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder, or a network that comes with fastcaps, whose sizes to measure; the paper's for MNIST.",
            metavar="[RUN]",
        ),
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Images at a time; may be repeated.")] = None,
    compare: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Also compare the engines' answers on so many test images of RUN; needs its training images, too.",
        ),
    ] = None,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Turns of each engine.")] = None,
    memory: Annotated[bool, typer.Option(help="Measure peaks of memory, each in a process of its own.")] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny network, one turn: shows that it works, not how fast.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json and bench.png.")] = None,
    data_dir: DataDir = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Measure inference: PyTorch and ONNX Runtime, dynamic and folded, beside plain code and a CNN.

    Engines take turns in one run; medians count, as ratios to plain dynamic routing. Then the routing layer alone, as
    the number of lower capsules, classes, iterations and images grows. Needs a quiet machine and some minutes.

    Example:  fastcaps bench mnist --threads 2 --out bench --compare 1000
    """
    require("fastcaps bench", "torch", "matplotlib", "onnx", "onnxruntime")
    import dataclasses

    from fastcaps._files import json_bytes, write_atomically
    from fastcaps.analysis.figures import figure_bytes
    from fastcaps.benchmark.inference import Settings, figure
    from fastcaps.benchmark.inference import bench as measure
    from fastcaps.benchmark.measure import can_measure_memory
    from fastcaps.nn.config import CapsNetConfig
    from fastcaps.nn.pretrained import weights_hash
    from fastcaps.training import Run

    if quick and model is not None:
        raise typer.BadParameter(f"--quick measures a tiny network of its own: leave {model} or --quick out")
    if compare is not None and model is None:
        raise typer.BadParameter("--compare needs a trained network: give a run, or a name such as mnist")
    run = None if model is None else Run.open(model)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # what can't be written to shall be known before the measuring
    from fastcaps.workflows._common import select_device

    select_device("cpu", threads)
    answers = None if run is None or compare is None else _compared(run, compare, data_dir)
    settings = Settings.quick() if quick else Settings()
    if run is not None:
        settings = Settings.for_network(CapsNetConfig.from_dict(run.about["config"]))
    changes = chosen(batches=tuple(batch) if batch else None, repetitions=repetitions)
    settings = dataclasses.replace(settings, memory=memory and can_measure_memory(), **changes)
    with progress_bar("measuring", settings.turns) as observe:
        found = {"command": this_command(), **measure(settings, observe), "answers": answers}
    if run is not None:
        found["network"] = {"run": str(model), "weights_sha256": weights_hash(run.model()), "data": run.about["data"]}
    if as_json:
        print_json(found)
    else:
        _print(found)
    if out is not None:
        write_atomically({out / "bench.json": json_bytes(found), out / "bench.png": figure_bytes(figure(found))})
        typer.echo(f"all numbers: {out}/bench.json; figure: {out}/bench.png", err=True)


def _compared(run: "Run", count: int, data_dir: Path | None) -> list[dict[str, Any]]:
    """How the engines' answers differ on the first so many test images of a run."""
    from fastcaps.benchmark.agreement import agreement
    from fastcaps.data import batches
    from fastcaps.workflows.exporting import calibration_images

    model, master, data = run.model(), run.master(), run.data(data_dir)
    tests = data.test.first(count)
    with progress_bar("comparing", len(tests)) as observe:
        images = batches(tests, 64, view=data.augmentation.middle)
        return agreement(model, master.values, images, calibration_images(run, data), observe)


def _print(found: dict[str, Any]) -> None:
    about = found["machine"]
    typer.echo(f"{about['processor']}, {about['cores']} cores, {about['instructions']}; {about['threads']} threads")
    typer.echo(", ".join(f"{name} {number}" for name, number in about["versions"].items()))
    typer.echo(f"a large square product: {found['multiply_adds_per_second'] / 1e9:.1f}·10⁹ multiply-adds a second\n")
    for batch in found["settings"]["batches"]:
        rows = [row for row in found["engines"] if row["batch"] == batch]
        print_table(
            f"Batch {batch}",
            ["engine", "ms/image", "quartiles", "images/s", "× plain", "peak MB", "size MB", "layers, %", "of peak"],
            [
                [
                    row["engine"],
                    f"{row['ms_per_image']:.3f}",
                    f"{row['quartiles'][0]:.2f}–{row['quartiles'][1]:.2f}",
                    f"{row['images_per_second']:,.0f}",
                    f"{row['times_faster']:.2f}",
                    _megabytes(row["peak_mb"]),
                    f"{row['size_mb']:.1f}",
                    "–" if row["shares"] is None else "/".join(f"{100 * s:.0f}" for s in row["shares"].values()),
                    f"{row['share_of_peak']:.0%}",
                ]
                for row in rows
            ],
        )
    typer.echo(
        "layers: stem / PrimaryCaps / routing. of peak: multiply-adds of ordinary convolution against that product;"
    )
    typer.echo("Winograd's method needs fewer, int8 does more at a time.\n")
    print_table(
        f"The routing layer alone, batch {found['settings']['growth_batch']} where it is not the batch that grows",
        ["growing", "size", "routing", "ms/image", "× plain", "peak MB"],
        [
            [
                row["axis"],
                f"{row['size']:,}",
                row["routing"],
                f"{row['ms_per_image']:.3f}",
                f"{row['times_faster']:.1f}",
                _megabytes(row["peak_mb"]),
            ]
            for row in found["growth"]
        ],
    )
    for point in found["skipped"]:
        typer.echo(f"{point['axis']}: {point['size']:,} was not measured: it needs more than half of the free memory")
    if found["answers"]:
        print_table(
            f"Answers on {found['answers'][0]['images']:,} test images, against ordinary convolution in float64",
            ["engine", "accuracy", "exact", "changed", "lengths differ by", "alone and in a batch"],
            [
                [
                    row["engine"],
                    f"{row['accuracy']:.2%}",
                    f"{row['reference_accuracy']:.2%}",
                    str(row["changed"]),
                    f"{row['largest_difference']:.1e}",
                    f"{row['alone']:.1e}",
                ]
                for row in found["answers"]
            ],
        )
    for aim in found["aims"]:
        verdict = "met" if aim["met"] else "not met"
        typer.echo(f"{aim['what']}: {aim['measured']:.1f}× plain dynamic routing, aim {aim['aim']:g}×: {verdict}")


def _megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"
