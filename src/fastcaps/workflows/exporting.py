"""Export a run as one ONNX file that runs without PyTorch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from fastcaps._files import check_output
from fastcaps._images import image_files, no_bombs
from fastcaps._progress import progress_bar
from fastcaps.data import DataSet, batches
from fastcaps.exporting import ExportResult, Precision
from fastcaps.exporting import export as export_network
from fastcaps.master import fold
from fastcaps.nn import CapsNetConfig
from fastcaps.runtime.pictures import network_input
from fastcaps.training.run import Run
from fastcaps.workflows._common import Execution, ExecutionOptions, open_run, restores_threads

# Number of images to calibrate int8 with.
_CALIBRATION_IMAGES = 512
# Number of random inputs on which the file is compared with the network if there are no test images.
_RANDOM_INPUTS = 4


class ExportOptions(ExecutionOptions, total=False):
    """Keyword arguments of `export`, in addition to those of all workflows.

    Attributes:
        check: whether to compare the file with the network on the test images first, and write it only if both agree
            (default). Without it no test images are needed, and the accuracy of the file is not known.
        limit: number of test images to compare on, from the first; all by default.
        max_drop: points of accuracy that int8 may lose (default: 0.1); a loss of three images is always allowed.
        calibration: folder of pictures to calibrate int8 with, in place of the training images.
        force: overwrite an existing file.
    """

    check: bool
    limit: int | None
    max_drop: float
    calibration: str | Path | None
    force: bool


@dataclass(frozen=True)
class _ExportExecution(Execution):
    """`ExportOptions` with their defaults."""

    batch_size: int = 64
    device: str | torch.device = "cpu"
    check: bool = True
    limit: int | None = None
    max_drop: float = 0.1
    calibration: str | Path | None = None
    force: bool = False


@restores_threads
def export(
    run: str | Path | Run,
    out: str | Path,
    *,
    routing: Literal["fast", "dynamic"] = "fast",
    precision: Precision = "float32",
    batch: int | None = None,
    coefficients: str | Path | None = None,
    **options: Unpack[ExportOptions],
) -> ExportResult:
    """Write the network of a run as one ONNX file, for `predict` and `fastcaps.runtime`.

    The file is compared with the PyTorch network on the test images first, and only written if both agree. int8 is
    calibrated on training images, or on pictures of your own.

    Args:
        run: a run, its folder, or the name of a bundled network.
        out: the file to write, ``.onnx``.
        routing: ``"fast"`` for folded coefficients, ``"dynamic"`` for the routing loop.
        precision: precision of weights and activations: ``"float32"`` or ``"int8"``.
        batch: fixed batch size of the file; any when None.
        coefficients: a file of master coefficients, instead of the run's own.
        options: see `ExportOptions`; the device is ``"cpu"`` by default.
    """
    if routing == "dynamic" and coefficients is not None:
        raise ValueError(f"coefficients={coefficients}: dynamic routing uses none, leave it out")
    execution = _ExportExecution(**options)
    check_output(out, ".onnx", force=execution.force)
    run, device = open_run(run), execution.select_device()
    model = run.model().to(device)
    network = model if routing == "dynamic" else fold(model, run.master(coefficients))
    needs_training = precision == "int8" and execution.calibration is None
    data = execution.load_data(run) if execution.check or needs_training else None
    arguments: dict[str, Any] = {"example": _random_inputs(model.config)}
    if execution.check and data is not None:
        arguments = _tests(run, data, execution)
    if execution.calibration is not None:
        arguments["calibration"] = _pictures(Path(execution.calibration), model.config, execution.batch_size)
    elif data is not None:
        arguments["calibration"] = calibration_images(run, data, execution.batch_size)
    with progress_bar("comparing", arguments.pop("images", _RANDOM_INPUTS)) as observe:
        return export_network(
            network,
            out,
            precision=precision,
            batch=batch,
            max_drop=execution.max_drop,
            background=run.background,
            threads=execution.threads,
            observe=observe,
            check=execution.check,
            **arguments,
        )


def calibration_images(run: Run, data: DataSet, batch_size: int = 64) -> list[Tensor]:
    """Return batches of training images as bytes ``(b c h w)``, in the test view."""
    images = run.training_part(data).first(_CALIBRATION_IMAGES)
    return [batch for batch, _ in batches(images, batch_size, view=data.augmentation.middle)]


def _tests(run: Run, data: DataSet, execution: _ExportExecution) -> dict[str, Any]:
    tests = run.test_part(data).first(execution.limit)
    pairs = batches(tests, execution.batch_size, view=data.augmentation.middle)
    return {"tests": pairs, "images": len(tests), "images_note": run.images_note(data)}


def _random_inputs(config: CapsNetConfig) -> Tensor:
    shape = (_RANDOM_INPUTS, config.channels, config.height, config.width)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _pictures(folder: Path, config: CapsNetConfig, batch_size: int) -> list[Tensor]:
    """Return batches of the pictures in a folder and its subfolders as bytes ``(b c h w)``."""
    paths = image_files(folder)
    if not paths:
        raise ValueError(f"{folder} has no images in it: give a folder of pictures to calibrate with")
    with no_bombs():
        images = [torch.tensor(network_input(path, config)) for path in paths[:_CALIBRATION_IMAGES]]
    return list(torch.split(torch.stack(images), batch_size))
