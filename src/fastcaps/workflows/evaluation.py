"""A run's network on its test images, with every way of routing."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from fastcaps._files import json_bytes, write_atomically
from fastcaps._progress import progress_bar
from fastcaps.analysis.evaluation import evaluate as evaluate_network
from fastcaps.analysis.figures import confusion_figure, figure_bytes
from fastcaps.analysis.results import Evaluation, Other
from fastcaps.bundled import is_bundled
from fastcaps.data import batches
from fastcaps.distributed import current
from fastcaps.nn import FastCapsNet
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training.result import versions
from fastcaps.training.run import Run
from fastcaps.workflows._common import load_run, open_run, select_device, share


def evaluate(
    run: str | Path | Run,
    folder: str | Path | None = None,
    *,
    coefficients: str | Path | None = None,
    part: Literal["test", "validation", "train"] = "test",
    limit: int | None = None,
    batch_size: int = 128,
    compare: str | Path | Run | None = None,
    data_dir: str | Path | None = None,
    device: str | torch.device = "auto",
    threads: int | None = None,
    command_line: str | None = None,
) -> Evaluation:
    """Evaluate a run's network with dynamic, fast and uniform routing.

    Args:
        run: a run, its folder, or the name of a bundled network.
        folder: where to write ``evaluation.json`` and ``confusion.png``; nowhere when None.
        coefficients: a file of master coefficients, instead of the run's own.
        part: of the data set.
        limit: only the first so many images.
        batch_size: images at a time.
        compare: another run, whose network is asked about the same images.
        data_dir: folder of the data sets' files.
        device: ``"auto"``, or a device of PyTorch.
        threads: CPU threads; all by default.
        command_line: to be stored with the result.

    Returns:
        What ``evaluation.json`` holds.
    """
    world, run, target = current(), open_run(run), select_device(device, threads)
    other, about_other = None, None
    if compare is not None:
        compared = open_run(compare)
        compared.check_comparable(run, part)
        fixed = compared.about.get("fixed_coefficients")
        other = (FastCapsNet.from_pretrained(compared.fast_folder) if fixed else compared.model()).to(target)
        name = compared.folder.name if is_bundled(compared.folder) else str(compared.folder)
        about_other = Other(name, "fast" if fixed else "dynamic", weights_hash(other))
        world.check_same(other=about_other.weights)
    master = run.master(coefficients)
    model, data = load_run(run, target, data_dir, master=master, test_only=part == "test")
    parts = {"train": run.training_part, "validation": run.validation_part}
    images = data.test if part == "test" else parts[part](data)
    if images is None:
        raise ValueError(
            f"{run.folder} held out no images for validation: train with validation images, or take another part"
        )
    images = images.first(limit)
    with progress_bar("evaluating", len(images)) as observe:
        shown = batches(share(images), batch_size, view=data.augmentation.test_view)
        result = evaluate_network(model, master, shown, observe, world, other)
    evaluation = replace(
        result,
        run=str(run.folder),
        command=command_line,
        data=data.name,
        generated=data.generated,
        part=part,
        batch_size=batch_size,
        threads=torch.get_num_threads(),
        processes=world.size,
        versions=versions(),
        master=master.summary(),
        master_range=(float(master.values.min()), float(master.values.max())),
        other=about_other,
    )
    if folder is not None and world.is_main:
        folder = Path(folder)
        confusions = {name: evaluation.variants[name].confusion for name in ("dynamic", "fast")}
        figure = confusion_figure(confusions, evaluation.class_names)
        files = {folder / "evaluation.json": json_bytes(evaluation.to_dict())}
        write_atomically({**files, folder / "confusion.png": figure_bytes(figure)})
    return evaluation
