"""Evaluate the network of a run on its test images, with every variant of routing."""

from dataclasses import replace
from pathlib import Path
from typing import Literal, Unpack

import torch

from fastcaps._files import check_output, json_bytes, write_atomically
from fastcaps._progress import progress_bar, say
from fastcaps.analysis.evaluation import evaluate as evaluate_network
from fastcaps.analysis.figures import confusion_figure, figure_bytes
from fastcaps.analysis.results import Evaluation, Other
from fastcaps.bundled import is_bundled
from fastcaps.data import DataSet, Split, batches
from fastcaps.distributed import current
from fastcaps.master import MasterCoefficients
from fastcaps.nn import CapsNet, FastCapsNet
from fastcaps.nn.pretrained import weights_hash
from fastcaps.reproduction import RunResult
from fastcaps.training.result import versions
from fastcaps.training.run import Run
from fastcaps.workflows._common import (
    Execution,
    ExecutionOptions,
    load_run,
    open_run,
    restores_threads,
    run_name,
    share,
    writing,
)

Part = Literal["test", "validation", "train"]


@restores_threads
def evaluate(
    run: str | Path | Run,
    out: str | Path | None = None,
    *,
    coefficients: str | Path | None = None,
    part: Part = "test",
    limit: int | None = None,
    compare: str | Path | Run | None = None,
    result_file: str | Path | None = None,
    **options: Unpack[ExecutionOptions],
) -> Evaluation:
    """Evaluate the network of a run with dynamic, fast and uniform routing.

    Args:
        run: a run, its folder, or the name of a bundled network.
        out: folder for ``evaluation.json`` and ``confusion.png``. By default they are written to the run folder if the
            whole test set is evaluated with the run's own images and coefficients; otherwise nothing is written.
        coefficients: a file of master coefficients, instead of the run's own.
        part: ``"test"``, ``"validation"`` or ``"train"``.
        limit: number of images to evaluate, from the first; all by default.
        compare: another run, whose network is evaluated on the same images.
        result_file: file for the run as one JSON: settings, epochs and this evaluation.
        options: see `ExecutionOptions`.
    """
    world, run, execution = current(), open_run(run), Execution(**options)
    if result_file is not None:
        check_output(result_file, ".json")
    if result_file is not None and not run.metrics_file.is_file():
        raise FileNotFoundError(
            f"{run.metrics_file} does not exist, and a result has the accuracy of every epoch: take a run that was "
            "trained here, or leave result_file= out"
        )
    is_own = part == "test" and limit is None and coefficients is None and compare is None
    own = run.folder if is_own and not is_bundled(run.folder) else None
    folder = own if out is None else Path(out)
    with writing(run, folder):
        other = None if compare is None else open_run(compare)
        evaluation = evaluate_part(run, run.master(coefficients), part, limit, other, execution)
        if out is None and evaluation.images_note is not None:
            folder = None
        if world.is_main:
            write_evaluation(evaluation, run, folder, result_file)
    return evaluation


def evaluate_part(
    run: Run, master: MasterCoefficients, part: Part, limit: int | None, compare: Run | None, execution: Execution
) -> Evaluation:
    """Evaluate the network of a run on a part of its images; write nothing."""
    world = current()
    other, about_other = (None, None) if compare is None else _other_network(compare, run, part, execution)
    model, data = load_run(run, execution, master=master, test_only=part == "test")
    images = _images(run, data, part).first(limit)
    with progress_bar("evaluating", len(images)) as observe:
        pairs = batches(share(images), execution.batch_size, view=data.augmentation.test_view)
        evaluation = evaluate_network(model, master, pairs, observe, world, other)
    return replace(
        evaluation,
        run=run_name(run),
        command=execution.command,
        data=data.name,
        generated=data.generated,
        images_note=run.images_note(data),
        part=part,
        batch_size=execution.batch_size,
        threads=torch.get_num_threads(),
        processes=world.size,
        versions=versions(),
        master=master.summary(),
        master_range=(float(master.values.min()), float(master.values.max())),
        other=about_other,
    )


def _other_network(other: Run, run: Run, part: Part, execution: Execution) -> tuple[CapsNet | FastCapsNet, Other]:
    """Return the network to compare with, with the routing it was trained with, and its description in the result."""
    other.check_comparable(run, part)
    fixed = other.about.fixed_coefficients
    network = FastCapsNet.from_pretrained(other.fast_folder) if fixed else other.model()
    about = Other(run_name(other), "fast" if fixed else "dynamic", weights_hash(network))
    current().check_same(other=about.weights)
    return network.to(execution.select_device()), about


def _images(run: Run, data: DataSet, part: Part) -> Split:
    if part == "validation" and run.images_note(data) is not None:
        raise ValueError(
            f"{run.images_note(data)}: which of them were held out for validation is not known, take part='test'"
        )
    parts = {"test": run.test_part, "train": run.training_part, "validation": run.validation_part}
    images = parts[part](data)
    if images is None:
        raise ValueError(
            f"{run.folder} held out no images for validation: train with validation images, or take part='test'"
        )
    return images


def write_evaluation(
    evaluation: Evaluation, run: Run, folder: Path | None, result_file: str | Path | None = None
) -> None:
    """Write the files of an evaluation into a folder, and the run as one result."""
    if folder is not None:
        confusions = {"dynamic": evaluation.dynamic.confusion, "fast": evaluation.fast.confusion}
        figure = figure_bytes(confusion_figure(confusions, evaluation.class_names))
        content = json_bytes(evaluation.to_dict())
        write_atomically({folder / "evaluation.json": content, folder / "confusion.png": figure})
        say(f"confusion matrices: {folder}/confusion.png; all numbers: {folder}/evaluation.json")
    if result_file is not None:
        write_atomically({Path(result_file): json_bytes(RunResult.of(run, evaluation).to_dict())})
