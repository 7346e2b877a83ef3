"""From a run folder to one ONNX file that needs no PyTorch."""

from dataclasses import replace
from pathlib import Path
from typing import Literal, Unpack

from torch import Tensor

from fastcaps._progress import progress_bar
from fastcaps.data import DataSet, batches
from fastcaps.exporting import ExportResult, Precision
from fastcaps.exporting import export as export_network
from fastcaps.master import fold
from fastcaps.training.run import Run
from fastcaps.workflows._common import Execution, ExecutionOptions, open_run

# Training images to calibrate int8 with.
_CALIBRATION_IMAGES = 512


def export(
    run: str | Path | Run,
    out: str | Path,
    *,
    routing: Literal["fast", "dynamic"] = "fast",
    precision: Precision = "float32",
    batch: int | None = None,
    max_drop: float = 0.1,
    limit: int | None = None,
    coefficients: str | Path | None = None,
    **options: Unpack[ExecutionOptions],
) -> ExportResult:
    """Write the network of a run as one ONNX file, for `predict` and `fastcaps.runtime`.

    The file is compared with the PyTorch network on the test images first, and only written if both agree. int8 is
    calibrated on training images.

    Args:
        run: a run, its folder, or the name of a bundled network.
        out: the file to write.
        routing: ``"fast"`` for folded coefficients, ``"dynamic"`` for the routing loop.
        precision: of weights and activations: ``"float32"`` or ``"int8"``.
        batch: the only size of a batch that the file takes; any when None.
        max_drop: points of accuracy that int8 may lose; a loss of three images is always allowed.
        limit: compare on the first so many test images only.
        coefficients: a file of master coefficients, instead of the run's own.
        options: see `ExecutionOptions`; the device is ``"cpu"`` by default.
    """
    if routing == "dynamic" and coefficients is not None:
        raise ValueError(f"coefficients are {coefficients}, dynamic routing uses none: leave them out")
    execution = replace(Execution(device="cpu", batch_size=64), **options)
    run, device = open_run(run), execution.select_device()
    model = run.model().to(device)
    network = model if routing == "dynamic" else fold(model, run.master(coefficients))
    data = execution.load_data(run)
    training = calibration_images(run, data, execution.batch_size)
    tests = data.test.first(limit)
    with progress_bar("comparing", len(tests)) as observe:
        return export_network(
            network,
            out,
            tests=batches(tests, execution.batch_size, view=data.augmentation.middle),
            precision=precision,
            calibration=training,
            batch=batch,
            max_drop=max_drop,
            background=data.background,
            threads=execution.threads,
            observe=observe,
        )


def calibration_images(run: Run, data: DataSet, batch_size: int = 64) -> list[Tensor]:
    """Return batches of training images as bytes ``(b c h w)``, in the test view."""
    images = run.training_part(data).first(_CALIBRATION_IMAGES)
    return [batch for batch, _ in batches(images, batch_size, view=data.augmentation.middle)]
