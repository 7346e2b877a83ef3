"""``fastcaps evaluate``: dynamic beside fast, with the baselines that keep us honest."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fastcaps._extras import require
from fastcaps.cli._common import (
    DataDir,
    Device,
    Json,
    RunArgument,
    Threads,
    command,
    counted,
    print_json,
    print_table,
    set_up,
)


@command
def evaluate(
    run: RunArgument,
    master: Annotated[Path | None, typer.Option(help="Other coefficients than RUN/master.safetensors.")] = None,
    part: Annotated[str, typer.Option(help="Which images: test or train.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 128,
    out: Annotated[Path | None, typer.Option(help="Folder for evaluation.json and confusion.png; RUN itself.")] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Classify the test images with dynamic routing, and without it.

    Prints accuracies with 95 % intervals, how many images change class and in which direction (McNemar's exact test), and
    speeds. "uniform" is the same network with all coefficients 1, without any routing; "ceiling" routes each
    image with its own class's container, which needs the answer.

    Example:  fastcaps evaluate runs/digits
    """
    require("fastcaps evaluate", "torch", "sklearn", "matplotlib")
    import torch

    from fastcaps._files import json_bytes, write_atomically
    from fastcaps.analysis import evaluate as evaluate_
    from fastcaps.analysis.figures import confusion_figure, png_bytes
    from fastcaps.data import batches
    from fastcaps.training import Run
    from fastcaps.training.trainer import versions

    if part not in ("test", "train"):
        raise ValueError(f"part is {part!r}, expected test or train")
    opened = Run.open(run)
    model = opened.model().to(set_up(device, threads))
    data = opened.data(data_dir)
    images = data.test if part == "test" else data.train
    if limit is not None:
        images = images.subset(torch.arange(min(limit, len(images))))
    coefficients = opened.master(master)
    with counted("evaluating", len(images)) as observe:
        result = evaluate_(model, coefficients, batches(images, batch_size, view=data.augmentation.test_view), observe)
    found: dict[str, Any] = {
        "run": str(run),
        "data": data.name,
        "generated": data.generated,
        "part": part,
        "batch_size": batch_size,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "master": coefficients.summary(),
        **result.to_dict(),
    }
    folder = out or opened.folder
    confusions = {name: result.variants[name].confusion for name in ("dynamic", "fast")}
    write_atomically(
        {
            folder / "evaluation.json": json_bytes(found),
            folder / "confusion.png": png_bytes(confusion_figure(confusions, result.class_names)),
        }
    )
    if as_json:
        print_json(found)
        return
    print_evaluation(found)
    typer.echo(f"confusion matrices: {folder / 'confusion.png'}; all numbers: {folder / 'evaluation.json'}")


def print_evaluation(found: dict[str, Any]) -> None:
    """The tables of an evaluation, from what its JSON says."""
    words = " (generated)" if found["generated"] else ""
    rows = []
    for name, variant in found["variants"].items():
        low, high = variant["interval"]
        against = variant["against_dynamic"]
        rows.append(
            [
                name,
                f"{variant['accuracy']:.2%}",
                f"{low:.2%} – {high:.2%}",
                str(variant["errors"]),
                *(
                    [str(against["changed"]), f"+{against['gained']} −{against['lost']}", f"{against['p_value']:.2g}"]
                    if against
                    else ["", "", ""]
                ),
                f"{variant['images_per_second']:,.0f}" if variant["images_per_second"] else "",
            ]
        )
    print_table(
        f"{found['data']}{words}: {found['images']:,} {found['part']} images",
        ["routing", "accuracy", "95 %", "errors", "changed", "gained, lost", "McNemar p", "images/s"],
        rows,
    )
    names = [name for name in ("dynamic", "fast") if name in found["variants"]]
    print_table(
        "Accuracy by class",
        ["class", *names],
        [
            [label, *(_share(found["variants"][name]["per_class"][number]) for name in names)]
            for number, label in enumerate(found["class_names"])
        ],
    )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"
