"""From a run folder to its master coefficients and its folded network."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

from fastcaps._files import check_output, write_atomically
from fastcaps._progress import progress_bar, say
from fastcaps._result import Result, Table, without_none
from fastcaps.analysis.results import note_sentences
from fastcaps.data import DataSet, Split, batches
from fastcaps.distributed import current
from fastcaps.master import Filter, MasterCoefficients, Method, Observations, Selection, apply_filters, fold
from fastcaps.nn import CapsNet
from fastcaps.training.accumulation import accumulate_split
from fastcaps.training.run import Run, training_provenance
from fastcaps.workflows._common import (
    Execution,
    ExecutionOptions,
    check_own_images,
    check_writable,
    load_run,
    open_run,
    restores_threads,
    share,
    writing,
)


@dataclass(frozen=True, repr=False, eq=False)
class AccumulationResult(Result):
    """Master coefficients and the file that holds them.

    Attributes:
        path: the file.
        coefficients: the master coefficients, with the reports of the filters.
        after_last: whether they come from the update after the last iteration.
    """

    path: Path
    coefficients: MasterCoefficients
    after_last: bool

    def tables(self) -> list[Table]:
        """Return the number of images per class that each filter kept; nothing without filters."""
        reports = self.coefficients.filters
        if not reports:
            return []
        counts = [reports[0].seen, *(report.kept for report in reports)]
        rows = [[str(label), *map(str, row)] for label, row in enumerate(zip(*counts, strict=True))]
        rows.append(["all", *(str(sum(column)) for column in counts)])
        return [Table("Images kept", ["class", "seen", *(report.name for report in reports)], rows)]

    def sentences(self) -> list[str]:
        """Return why images were left out, and what the file contains."""
        master = self.coefficients
        reasons = [
            f"{report.name}: {sum(report.seen) - sum(report.kept)} left out: {report.reason}"
            for report in master.filters
        ]
        iteration = f"iteration {master.iteration}{' (after the last)' if self.after_last else ''}"
        count, rule = int(master.counts.sum()), master.normalization.name
        words = f"{self.path}: coefficients of {iteration} of {count:,} images, {rule}, {master.method}"
        return [*reasons, words, *note_sentences(master.provenance.get("images_note"))]

    def to_dict(self) -> dict[str, Any]:
        """Return the path and the summary of the coefficients as plain values for JSON."""
        return {"master": str(self.path), **self.coefficients.summary().to_dict()}


@restores_threads
def accumulate(
    run: str | Path | Run,
    out: str | Path | None = None,
    *,
    iteration: int | Literal["final"] | None = None,
    method: Method = "per_class",
    filters: Sequence[Filter] = (),
    memory: int | None = None,
    **options: Unpack[ExecutionOptions],
) -> AccumulationResult:
    """Accumulate the routing coefficients of a run's network over its training images, and fold them.

    Write ``master.safetensors`` and the folded network ``fast/`` into the run folder. With ``out``, write only the
    coefficients, to that file.

    Args:
        run: a run, its folder, or the name of a bundled network.
        out: file for the coefficients, instead of the run's own.
        iteration: as for `fastcaps.accumulate`.
        method: as for `fastcaps.accumulate`.
        filters: filters that select the images, in this order.
        memory: bytes that the sums may take in each process; half of the free memory by default.
        options: see `ExecutionOptions`; 256 images per batch by default.
    """
    world, run, execution = current(), open_run(run), replace(Execution(batch_size=256), **options)
    if out is None:
        check_writable(run)
        _check_not_fixed(run)
    else:
        check_output(out, ".safetensors")
    path = run.master_file if out is None else Path(out)
    with writing(run, path):
        model, data = load_run(run, execution)
        if out is None:
            check_own_images(run, data)
        images = run.training_part(data)
        selection = _apply_filters(model, data, images, filters, iteration, execution) if filters else None
        with progress_bar("accumulating", len(images)) as observe:
            master = accumulate_split(
                model,
                images,
                data.augmentation.test_view,
                execution.batch_size,
                iteration=iteration,
                method=method,
                selection=selection,
                observe=observe,
                announce=say,
                provenance={
                    **training_provenance(data, run.settings),
                    **without_none(images_note=run.images_note(data), command=execution.command),
                },
                memory=memory,
                world=world,
            )
        if world.is_main:
            write_atomically({path: master.to_bytes()} if out else _own_files(run, model, master))
    return AccumulationResult(path, master, iteration == "final")


def _own_files(run: Run, model: CapsNet, master: MasterCoefficients) -> dict[Path, bytes | None]:
    """Return the files to write into a run folder; evaluations of the previous coefficients are removed."""
    folded = fold(model, master).pretrained_files(run.fast_folder)
    return {run.master_file: master.to_bytes(), **folded, **dict.fromkeys(run.evaluation_files)}


def _check_not_fixed(run: Run) -> None:
    if run.about.fixed_coefficients:
        raise ValueError(
            f"{run.folder} was trained with fixed coefficients, which {run.master_file} holds: give another "
            "file as out="
        )


def _apply_filters(
    model: CapsNet,
    data: DataSet,
    images: Split,
    filters: Sequence[Filter],
    iteration: int | Literal["final"] | None,
    execution: Execution,
) -> Selection:
    """Return the images that the filters keep, and their reports."""
    world = current()
    with progress_bar("observing", len(images)) as observe:
        observations = Observations.collect(
            model,
            batches(share(images), execution.batch_size, view=data.augmentation.test_view),
            iteration=iteration,
            columns=any(entry.uses_columns for entry in filters),
            observe=observe,
            world=world,
        )
    return apply_filters(filters, observations, world)
