"""Compare every variant of building the master matrix of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, Unpack, get_args

from fastcaps._files import check_output, json_bytes, write_atomically
from fastcaps._progress import progress_bar, say
from fastcaps.analysis.ablation import Ablation, Score, Trial, ablation_figure, predictions, score
from fastcaps.analysis.figures import figure_bytes
from fastcaps.data import DataSet, Split, batches
from fastcaps.master import FILTERS, Filter, MasterCoefficients, Method, sweep, uniform_coefficients
from fastcaps.nn import CapsNet
from fastcaps.training.result import versions
from fastcaps.training.run import Run
from fastcaps.workflows._common import (
    Execution,
    ExecutionOptions,
    check_own_images,
    check_writable,
    load_run,
    open_run,
    restores_threads,
    run_name,
    writing,
)


@restores_threads
def ablate(
    run: str | Path | Run,
    out: str | Path | None = None,
    *,
    filters: Mapping[str, Sequence[Filter]] | None = None,
    methods: Sequence[Method] | None = None,
    iterations: Sequence[int | Literal["final"]] | None = None,
    limit: int | None = None,
    result_file: str | Path | None = None,
    **options: Unpack[ExecutionOptions],
) -> Ablation:
    """Build every variant of the master matrix, and score each on the held-out images and the test images.

    All variants take two passes over the training images. They are compared with the uniform matrix (all ones, no
    routing). If the run held out images, the best variant is chosen on those; the test set is only reported.

    Args:
        run: a run, its folder, or the name of a bundled network.
        out: folder for ``ablation.json`` and ``ablation.png``; the run folder by default.
        filters: chains of filters by name, an empty chain for all images; by default no filter and each filter alone.
        methods: methods of building the matrix; all by default.
        iterations: iterations of routing, from 1, or ``"final"`` for the update after the last; by default all but 1.
        limit: number of training images to accumulate, from the first; all by default.
        result_file: another file for the same JSON.
        options: see `ExecutionOptions`; 256 images per batch by default.
    """
    run, execution = open_run(run), replace(Execution(batch_size=256), **options)
    if result_file is not None:
        check_output(result_file, ".json")
    if out is None:
        check_writable(run)
    folder = run.folder if out is None else Path(out)
    with writing(run, folder):
        model, data = load_run(run, execution)
        if out is None:
            check_own_images(run, data)
        result = _ablate(model, data, run, filters, methods, iterations, limit, execution)
        figure, content = figure_bytes(ablation_figure(result)), json_bytes(result.to_dict())
        write_atomically({folder / "ablation.json": content, folder / "ablation.png": figure})
        if result_file is not None:  # not in the same transaction: it may be on another disk
            write_atomically({Path(result_file): content})
    say(f"figure: {folder}/ablation.png; all numbers: {folder}/ablation.json")
    return result


def _ablate(
    model: CapsNet,
    data: DataSet,
    run: Run,
    filters: Mapping[str, Sequence[Filter]] | None,
    methods: Sequence[Method] | None,
    iterations: Sequence[int | Literal["final"]] | None,
    limit: int | None,
    execution: Execution,
) -> Ablation:
    last = model.routing.routing.iterations
    filters = {"none": [], **{name: [kind()] for name, kind in FILTERS.items()}} if filters is None else filters
    numbers = [_iteration_number(entry, last) for entry in iterations or (*range(2, last + 1), "final")]
    variants = _Variants(filters, tuple(dict.fromkeys(methods or get_args(Method))), tuple(dict.fromkeys(numbers)))
    matrices, skipped = _matrices(variants, model, run.training_part(data).first(limit), data, execution)
    parts = {"validation": run.validation_part(data), "test": data.test}
    scores = {
        part: _scores(part, images, model, matrices, data, execution)
        for part, images in parts.items()
        if images is not None
    }
    return replace(
        _ablation(scores, matrices, skipped),
        run=run_name(run),
        command=execution.command,
        data=data.name,
        images_note=run.images_note(data),
        iterations=last,
        limit=limit,
        versions=versions(),
    )


class _Variants(NamedTuple):
    """The options that are combined."""

    filters: Mapping[str, Sequence[Filter]]
    methods: Sequence[Method]
    iterations: Sequence[int]


class _Matrix(NamedTuple):
    """One variant of the master matrix."""

    filter: str
    method: str
    iteration: int
    master: MasterCoefficients


class _Scores(NamedTuple):
    """Scores on one part of the images: of uniform coefficients, then of each matrix."""

    images: int
    dynamic: float
    uniform: Score
    matrices: list[Score]


def _iteration_number(iteration: int | Literal["final"], last: int) -> int:
    return last + 1 if iteration == "final" else iteration


def _matrices(
    variants: _Variants, model: CapsNet, images: Split, data: DataSet, execution: Execution
) -> tuple[list[_Matrix], tuple[str, ...]]:
    """Return every variant of the matrix, and the reasons for those that were skipped."""
    view = data.augmentation.test_view
    passes = 2 if any(variants.filters.values()) else 1
    with progress_bar("accumulating", passes * len(images)) as observe:
        swept = sweep(
            model,
            lambda: batches(images, execution.batch_size, view=view),
            variants.iterations,
            variants.filters,
            observe=observe,
        )
    matrices = [
        _Matrix(name, method, number, swept.sums[number, name].compute(method=method))
        for number in variants.iterations
        for name in variants.filters
        for method in variants.methods
        if (number, name) in swept.sums
    ]
    return matrices, tuple(f"{name}, iteration {number}: {why}" for (number, name), why in swept.skipped.items())


def _scores(
    part: str, images: Split, model: CapsNet, matrices: Sequence[_Matrix], data: DataSet, execution: Execution
) -> _Scores:
    values = [uniform_coefficients(model.config).values, *(matrix.master.values for matrix in matrices)]
    with progress_bar(f"comparing on {part} images", len(images)) as observe:
        pairs = batches(images, execution.batch_size, view=data.augmentation.test_view)
        labels, dynamic, fixed = predictions(model, values, pairs, observe)
    uniform, *others = (score(labels, dynamic, fixed[0], own) for own in fixed)
    return _Scores(len(labels), float((dynamic == labels).mean()), uniform, others)


def _ablation(scores: Mapping[str, _Scores], matrices: Sequence[_Matrix], skipped: tuple[str, ...]) -> Ablation:
    validation, test = scores.get("validation"), scores["test"]
    trials = tuple(
        Trial(
            matrix.filter,
            matrix.method,
            matrix.iteration,
            int(matrix.master.counts.sum()),
            None if validation is None else validation.matrices[k],
            test.matrices[k],
        )
        for k, matrix in enumerate(matrices)
    )
    return Ablation(
        dynamic={part: entry.dynamic for part, entry in scores.items()},
        images={part: entry.images for part, entry in scores.items()},
        uniform=Trial("uniform", "–", 1, 0, None if validation is None else validation.uniform, test.uniform),
        trials=trials,
        skipped=skipped,
    )
