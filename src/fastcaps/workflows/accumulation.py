"""From a run folder to its master coefficients and its folded network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from fastcaps._progress import progress_bar, say
from fastcaps.data import batches
from fastcaps.distributed import current
from fastcaps.master import Filter, MasterCoefficients, Method, Observations, apply_filters, fold
from fastcaps.training.accumulation import accumulate_split
from fastcaps.training.run import Run, training_provenance
from fastcaps.workflows._common import given, load_run, open_run, select_device, share


def accumulate(
    run: str | Path | Run,
    out: str | Path | None = None,
    *,
    iteration: int | Literal["after"] | None = None,
    method: Method = "containers",
    filters: Sequence[Filter] = (),
    batch_size: int = 256,
    memory: int | None = None,
    data_dir: str | Path | None = None,
    device: str | torch.device = "auto",
    threads: int | None = None,
    command_line: str | None = None,
) -> MasterCoefficients:
    """Accumulate the routing coefficients of a run's network over its training images, and fold them.

    Writes ``master.safetensors`` and the folded network ``fast/`` into the run folder; with ``out`` only the
    coefficients, into that file.

    Args:
        run: a run, its folder, or the name of a bundled network.
        out: file for the coefficients, instead of the run's own.
        iteration: as for `fastcaps.accumulate`.
        method: as for `fastcaps.accumulate`.
        filters: choose the images, in this order.
        batch_size: images at a time.
        memory: bytes that sums may take in each process; half of the free memory by default.
        data_dir: folder of the data sets' files.
        device: ``"auto"``, or a device of PyTorch.
        threads: CPU threads; all by default.
        command_line: to be stored with the coefficients.
    """
    world, run = current(), open_run(run)
    model, data = load_run(run, select_device(device, threads), data_dir)
    images = run.training_part(data)
    view = data.augmentation.test_view
    keep = None
    report: list[dict[str, Any]] = []
    if filters:
        with progress_bar("observing", len(images)) as observe:
            observations = Observations.collect(
                model,
                batches(share(images), batch_size, view=view),
                iteration=iteration,
                columns=any(one.uses_columns for one in filters),
                observe=observe,
                world=world,
            )
        keep, report = apply_filters(filters, observations, world)
        del observations  # and its temporary file
    with progress_bar("accumulating", len(images)) as observe:
        master = accumulate_split(
            model,
            images,
            view,
            batch_size,
            iteration=iteration,
            method=method,
            keep=keep,
            filters=report,
            observe=observe,
            announce=say,
            provenance={**training_provenance(data, run.about["settings"]), **given(command=command_line)},
            memory=memory,
            world=world,
        )
    if world.is_main:
        master.save(out or run.master_file)
        if out is None:
            fold(model, master).save_pretrained(run.fast_folder)
            # What was measured with the coefficients before is no more about this run.
            for path in run.evaluation_files:
                path.unlink(missing_ok=True)
    return master
