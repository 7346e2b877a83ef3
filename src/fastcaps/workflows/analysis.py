"""A report about the routing of a run's network."""

from pathlib import Path
from typing import Any

import torch

from fastcaps._files import json_bytes, write_atomically
from fastcaps._progress import progress_bar, say
from fastcaps.analysis.capsules import Lengths, output_lengths
from fastcaps.analysis.figures import figure_bytes
from fastcaps.analysis.report import report_page
from fastcaps.analysis.report_data import collect_report_data
from fastcaps.analysis.results import Evaluation
from fastcaps.analysis.training_pass import TrainingPass, cached, collect
from fastcaps.bundled import is_bundled
from fastcaps.data import DataSet, Split, batches
from fastcaps.distributed import current
from fastcaps.master import MasterCoefficients, fold
from fastcaps.nn import CapsNet
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training.run import Run
from fastcaps.workflows._common import load_run, open_run, select_device, share
from fastcaps.workflows.evaluation import evaluate


def analyze(
    run: str | Path | Run,
    folder: str | Path | None = None,
    *,
    name: str | None = None,
    coefficients: str | Path | None = None,
    compare: str | Path | Run | None = None,
    sort_by_class: bool = False,
    examples: list[int] | None = None,
    figures: str | None = None,
    figures_to: str | Path | None = None,
    limit: int | None = None,
    batch_size: int = 128,
    data_dir: str | Path | None = None,
    device: str | torch.device = "auto",
    threads: int | None = None,
    command_line: str | None = None,
) -> dict[str, Any]:
    """Analyze the routing of a run's network, and write ``index.html`` and ``analysis.json``.

    What was computed before is used again where weights, images and settings are the same. Of several processes only
    the first draws, writes and returns anything.

    Args:
        run: a run, its folder, or the name of a bundled network.
        folder: for the report; ``report/`` in the run folder by default.
        name: of the run in the report.
        coefficients: a file of master coefficients, instead of the run's own.
        compare: another run, whose histogram of coefficients is drawn beside this one's.
        sort_by_class: draw the correlations of the first training images by class.
        examples: numbers of test images whose lengths are drawn.
        figures: also write every figure in this format: ``"png"``, ``"pdf"`` or ``"svg"``.
        figures_to: folder for them; ``figures/`` in the report by default.
        limit: only the first so many images of each part.
        batch_size: images at a time.
        data_dir: folder of the data sets' files.
        device: ``"auto"``, or a device of PyTorch.
        threads: CPU threads; all by default.
        command_line: to be stored with the result.

    Returns:
        What ``analysis.json`` says.
    """
    run, target = open_run(run), select_device(device, threads)
    folder = run.folder / "report" if folder is None else Path(folder)
    world = current()
    master = run.master(coefficients)
    model, data = load_run(run, target, data_dir, master=master)
    fast = fold(model, master)
    test = _first(data.test, limit)
    view = data.augmentation.test_view
    key = {
        "weights": weights_hash(model),
        "master": master.values_hash,
        "data": data.fingerprint,
        "part": "test",
        "limit": limit,
    }

    def measure() -> dict[str, Any]:
        with progress_bar("test images", len(test)) as observe:
            shown = batches(share(test), batch_size, view=view)
            return output_lengths(model, fast, shown, observe, world)._asdict()

    training = _training_pass(run, model, data, [folder / "cache" / "training.safetensors"], limit, batch_size)
    place = folder / "cache" / "test.safetensors"
    lengths = Lengths(**cached([place], key, measure, _reusing("lengths of test images"), world))
    evaluation = _evaluation(run, folder, master, lengths, coefficients, limit, batch_size, data_dir, target)
    compared = None
    if compare is not None:
        other = open_run(compare)
        other_model, other_data = load_run(other, target, data_dir)
        places = [folder / "cache" / "compared.safetensors", other.folder / "report" / "cache" / "training.safetensors"]
        other_pass = _training_pass(other, other_model, other_data, places, limit, batch_size)
        compared = (str(compare.folder if isinstance(compare, Run) else compare), other_pass, other_model.config)
    if not world.is_main:
        return {}
    report = collect_report_data(
        model,
        master,
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
            "command": command_line,
            "limit": limit,
            "weights": key["weights"],
            "master": key["master"],
            "data_fingerprint": data.fingerprint,
        },
        **report.numbers,
    }
    pictures = {title: figure_bytes(figure) for title, figure in report.figures.items()}
    page = report_page(numbers, pictures)
    files = {folder / "analysis.json": json_bytes(numbers), folder / "index.html": page.encode()}
    if figures is not None:
        where = Path(figures_to or folder / "figures")
        for title, figure in report.figures.items():
            files[where / f"{title}.{figures}"] = pictures[title] if figures == "png" else figure_bytes(figure, figures)
        say(f"figures: {where}")
    write_atomically(files)
    return numbers


def _training_pass(
    run: Run, model: CapsNet, data: DataSet, places: list[Path], limit: int | None, batch_size: int
) -> TrainingPass:
    """The pass over a run's training images, or what is left of an earlier one."""

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
        with progress_bar("training images", len(images)) as observe:
            shown = batches(share(images), batch_size, view=data.augmentation.test_view)
            return collect(model, shown, observe=observe, world=world).to_arrays()

    return TrainingPass.from_arrays(cached(places, key, make, _reusing("the pass over the training images"), world))


def _evaluation(
    run: Run,
    folder: Path,
    master: MasterCoefficients,
    lengths: Lengths,
    coefficients: str | Path | None,
    limit: int | None,
    batch_size: int,
    data_dir: str | Path | None,
    device: torch.device,
) -> Evaluation:
    """What `evaluate` gave, where it is of these weights, coefficients and images; otherwise evaluated now."""
    right = {way: int((getattr(lengths, way).argmax(1) == lengths.labels).sum()) for way in ("dynamic", "fast")}
    own = coefficients is None and limit is None and not is_bundled(run.folder)
    place = run.folder / "evaluation.json" if own else folder / "cache" / "evaluation.json"
    try:
        stored = Evaluation.load(place)
        fits = (
            stored.part == "test"
            and stored.images == len(lengths.labels)
            and stored.master == master.summary()
            and {name: stored.variants[name].correct for name in right} == right
        )
    except (OSError, ValueError):
        fits = False
    if current().all_min(int(fits)):
        _reusing("accuracies and speeds")(place)
        return stored
    result = evaluate(
        run,
        run.folder if own else None,
        coefficients=coefficients,
        limit=limit,
        batch_size=batch_size,
        data_dir=data_dir,
        device=device,
    )
    if not own and current().is_main:
        write_atomically({place: json_bytes(result.to_dict())})
    return result


def _first(images: Split, limit: int | None) -> Split:

    return images if limit is None else images.subset(torch.arange(min(limit, len(images))))


def _reusing(what: str) -> Any:
    return lambda place: say(f"{what}: used again from {place} (same weights, images and settings)")
