"""``fastcaps analyze``: the paper's figures for a trained run, as one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fastcaps._extras import require
from fastcaps.bundled import is_bundled
from fastcaps.cli._common import (
    DataDir,
    Device,
    Json,
    RunArgument,
    Threads,
    check_not_bundled,
    counted,
    distributed_command,
    print_json,
    run_and_data,
    set_up,
    share,
    this_command,
)
from fastcaps.cli.evaluate import evaluated

if TYPE_CHECKING:
    import torch

    from fastcaps.analysis.training_pass import TrainingPass
    from fastcaps.data import DataSet, Split
    from fastcaps.nn import CapsNet
    from fastcaps.training import Run


@distributed_command
def analyze(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="Folder for the report; RUN/report by default.")] = None,
    master: Annotated[Path | None, typer.Option(help="Other coefficients than RUN/master.safetensors.")] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Another run, whose coefficients are drawn beside.", metavar="RUN2")
    ] = None,
    sort_by_class: Annotated[
        bool, typer.Option("--sort-by-class", help="The first training images by class, not in their order.")
    ] = False,
    example: Annotated[
        list[int] | None, typer.Option(help="Number of a test image to show; may be repeated; the first five.")
    ] = None,
    figures: Annotated[
        Literal["png", "svg", "pdf"] | None, typer.Option(help="Write the figures as files, too.")
    ] = None,
    figures_to: Annotated[Path | None, typer.Option(help="Where to; OUT/figures by default.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many training and test images, to try it out.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 128,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Draw what routing does in a trained run, and write one page about it.

    Correlations of the coefficients of all training images, the master coefficients, lengths with dynamic and with fast
    routing, images that change class, what the numbers of a capsule mean. Writes index.html, which opens
    without a network connection, and analysis.json with all numbers. What was computed before is used again where
    weights, images and settings are the same. Several processes share the images (torchrun); the first draws.

    Example:  fastcaps analyze runs/digits
    """
    require("fastcaps analyze", "torch", "sklearn", "matplotlib")
    from fastcaps.training import Run

    opened = Run.open(run)
    if out is None:
        check_not_bundled(run, opened.folder)
    if out is None and (limit is not None or master is not None):
        raise ValueError("what is made with --limit or --master is not the run's own report: say where with --out")
    folder = out or opened.folder / "report"
    numbers = analyzed(
        opened,
        set_up(device, threads),
        folder,
        name=str(run),
        master=master,
        compare=compare,
        sort_by_class=sort_by_class,
        examples=example,
        figures=figures,
        figures_to=figures_to,
        limit=limit,
        batch_size=batch_size,
        data_dir=data_dir,
    )
    if not numbers:
        return
    if as_json:
        print_json(numbers)
        return
    from fastcaps.analysis.report import verdict

    typer.echo(verdict(numbers["evaluation"]))
    typer.echo(f"The report is {folder / 'index.html'}; all numbers are in {folder / 'analysis.json'}.")


def analyzed(
    run: "Run",
    device: "torch.device",
    folder: Path,
    *,
    name: str | None = None,
    master: Path | None = None,
    compare: Path | None = None,
    sort_by_class: bool = False,
    examples: list[int] | None = None,
    figures: str | None = None,
    figures_to: Path | None = None,
    limit: int | None = None,
    batch_size: int = 128,
    data_dir: Path | None = None,
) -> dict[str, Any]:
    """Analyse with progress, write ``index.html`` and ``analysis.json``, return what the latter says.

    Only the first of several processes draws, writes and returns anything.
    """
    from fastcaps._files import json_bytes, write_atomically
    from fastcaps.analysis.capsules import Lengths, output_lengths
    from fastcaps.analysis.figures import figure_bytes
    from fastcaps.analysis.report import report_page
    from fastcaps.analysis.report_data import collect_report_data
    from fastcaps.analysis.training_pass import cached
    from fastcaps.data import batches
    from fastcaps.distributed import current
    from fastcaps.master import fold
    from fastcaps.nn.pretrained import weights_hash
    from fastcaps.training import Run

    world = current()
    coefficients = run.master(master)
    model, data = run_and_data(run, device, data_dir, master=coefficients)
    fast = fold(model, coefficients)
    test = _first(data.test, limit)
    view = data.augmentation.test_view
    key = {
        "weights": weights_hash(model),
        "master": coefficients.values_hash,
        "data": data.fingerprint,
        "part": "test",
        "limit": limit,
    }

    def measure() -> dict[str, Any]:
        with counted("test images", len(test)) as observe:
            shown = batches(share(test), batch_size, view=view)
            return output_lengths(model, fast, shown, observe, world)._asdict()

    training = _training_pass(run, model, data, [folder / "cache" / "training.safetensors"], limit, batch_size)
    place = folder / "cache" / "test.safetensors"
    lengths = Lengths(**cached([place], key, measure, _reusing("lengths of test images"), world))
    evaluation = _evaluation(run, device, folder, coefficients.summary(), lengths, master, limit, batch_size, data_dir)
    compared = None
    if compare is not None:
        other = Run.open(compare)
        other_model, other_data = run_and_data(other, device, data_dir)
        places = [folder / "cache" / "compared.safetensors", other.folder / "report" / "cache" / "training.safetensors"]
        other_pass = _training_pass(other, other_model, other_data, places, limit, batch_size)
        compared = (str(compare), other_pass, other_model.config)
    if not world.is_main:
        return {}
    found = collect_report_data(
        model,
        coefficients,
        training,
        lengths,
        lambda numbers: view(test.images(numbers)),
        evaluation,
        examples=examples or list(range(min(5, len(test)))),
        sort_by_class=sort_by_class,
        compared=compared,
    )
    numbers = {
        "run": name or str(run.folder),
        "settings": {
            "command": this_command(),
            "limit": limit,
            "weights": key["weights"],
            "master": key["master"],
            "data_fingerprint": data.fingerprint,
        },
        **found.numbers,
    }
    pictures = {title: figure_bytes(figure) for title, figure in found.figures.items()}
    page = report_page(numbers, pictures)
    files = {folder / "analysis.json": json_bytes(numbers), folder / "index.html": page.encode()}
    if figures is not None:
        where = figures_to or folder / "figures"
        for title, figure in found.figures.items():
            files[where / f"{title}.{figures}"] = pictures[title] if figures == "png" else figure_bytes(figure, figures)
        typer.echo(f"figures: {where}", err=True)
    write_atomically(files)
    return numbers


def _training_pass(
    run: "Run", model: "CapsNet", data: "DataSet", places: list[Path], limit: int | None, batch_size: int
) -> "TrainingPass":
    """The pass over a run's training images, or what is left of an earlier one."""
    from fastcaps.analysis.training_pass import TrainingPass, cached, collect
    from fastcaps.data import batches
    from fastcaps.distributed import current
    from fastcaps.nn.pretrained import weights_hash

    world = current()
    images = _first(run.training_part(data), limit)
    settings = run.about["settings"]
    key = {
        "weights": weights_hash(model),
        "data": data.fingerprint,
        "part": "train",
        "held out": [settings["validation"], settings["seed"]] if settings["validation"] else None,
        "limit": limit,
        "iterations": model.config.iterations,
    }

    def make() -> dict[str, Any]:
        with counted("training images", len(images)) as observe:
            shown = batches(share(images), batch_size, view=data.augmentation.test_view)
            return collect(model, shown, observe=observe, world=world).to_arrays()

    return TrainingPass.from_arrays(cached(places, key, make, _reusing("the pass over the training images"), world))


def _evaluation(
    run: "Run",
    device: "torch.device",
    folder: Path,
    summary: dict[str, Any],
    lengths: Any,
    master: Path | None,
    limit: int | None,
    batch_size: int,
    data_dir: Path | None,
) -> dict[str, Any]:
    """What ``evaluate`` found, where it is of these weights, coefficients and images; otherwise found now."""
    import json

    from fastcaps._files import json_bytes, write_atomically
    from fastcaps.distributed import current

    right = {way: int((getattr(lengths, way).argmax(1) == lengths.labels).sum()) for way in ("dynamic", "fast")}
    own = master is None and limit is None and not is_bundled(run.folder)
    place = run.folder / "evaluation.json" if own else folder / "cache" / "evaluation.json"
    try:
        found: dict[str, Any] = json.loads(place.read_bytes())
        fits = (
            found["part"] == "test"
            and found["images"] == len(lengths.labels)
            and found["master"] == summary
            and {way: found["variants"][way]["correct"] for way in right} == right
        )
    except (OSError, ValueError, KeyError, TypeError):
        fits = False
    if current().all_min(int(fits)):
        _reusing("accuracies and speeds")(place)
        return found
    found = evaluated(run, device, run.folder if own else None, master, "test", limit, batch_size, data_dir)
    if not own and current().is_main:
        write_atomically({place: json_bytes(found)})
    return found


def _first(images: "Split", limit: int | None) -> "Split":
    import torch

    return images if limit is None else images.subset(torch.arange(min(limit, len(images))))


def _reusing(what: str) -> Any:
    return lambda place: typer.echo(f"{what}: used again from {place} (same weights, images and settings)", err=True)
