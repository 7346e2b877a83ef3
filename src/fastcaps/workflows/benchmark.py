"""Measure inference with every engine, on the paper's network or on that of a run."""

import dataclasses
from pathlib import Path
from typing import Unpack

from fastcaps._files import json_bytes, write_atomically
from fastcaps._progress import progress_bar
from fastcaps.analysis.figures import figure_bytes
from fastcaps.benchmark import inference
from fastcaps.benchmark.agreement import agreement
from fastcaps.benchmark.figure import figure
from fastcaps.benchmark.measure import can_measure_memory
from fastcaps.benchmark.results import Answers, Benchmark
from fastcaps.benchmark.settings import Settings
from fastcaps.compression import Size
from fastcaps.data import batches
from fastcaps.master import fold
from fastcaps.nn import CapsNetConfig
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training.run import Run
from fastcaps.workflows._common import Execution, ExecutionOptions, open_run, restores_threads
from fastcaps.workflows.exporting import calibration_images

# Images per batch when answers are compared.
_BATCH = 64
# What a compressed network has in common with the whole one.
_SHAPE = (
    "height", "width", "channels", "classes", "stem_layers", "stem_kernel", "stem_stride", "primary_kernel",
    "primary_stride", "lower_dimension", "class_dimension",
)  # fmt: skip


@restores_threads
def bench(
    run: str | Path | Run | None = None,
    folder: str | Path | None = None,
    *,
    settings: Settings | None = None,
    compressed: str | Path | Run | None = None,
    check_images: int | None = None,
    **options: Unpack[ExecutionOptions],
) -> Benchmark:
    """Measure every engine in one run, and optionally compare their answers.

    Args:
        run: a run, its folder, or the name of a bundled network, whose sizes are measured; the paper's network for
            MNIST when None.
        folder: folder for ``bench.json`` and ``bench.png``; nothing is written when None.
        settings: what to measure; the network's sizes are those of ``run``.
        compressed: a run written by `compress`, for the sizes of the compressed network.
        check_images: number of test images of ``run`` on which to compare the answers of the engines.
        options: see `ExecutionOptions`; the device is the CPU.
    """
    opened = None if run is None else open_run(run)
    if check_images is not None and opened is None:
        raise ValueError("check_images needs a trained network: give a run, or a name such as mnist")
    execution = dataclasses.replace(Execution(device="cpu"), **options)
    execution.select_device()
    settings = settings or Settings()
    if opened is not None:
        own = Settings.for_network(opened.about.config)
        settings = dataclasses.replace(settings, config=own.config, growth=own.growth)
    network = None if opened is None else {"run": str(run), "weights_sha256": weights_hash(opened.model())}
    small = None if compressed is None else open_run(compressed)
    if small is not None:
        settings = dataclasses.replace(settings, compressed=_size(small, settings.config))
        network = {**(network or {}), "compressed": str(compressed)}
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)  # raises before measuring if the folder can't be written to
    settings = dataclasses.replace(settings, memory=settings.memory and can_measure_memory())
    answers = None if opened is None or check_images is None else _answers(opened, small, check_images, execution)
    with progress_bar("measuring", settings.turns) as observe:
        measured = inference.bench(settings, observe)
    result = dataclasses.replace(measured, command=execution.command, answers=answers, network=network)
    if folder is not None:
        files = {"bench.json": json_bytes(result.to_dict()), "bench.png": figure_bytes(figure(result))}
        write_atomically({Path(folder) / name: content for name, content in files.items()})
    return result


def _size(run: Run, config: CapsNetConfig) -> Size:
    """Return the size of a compressed network; raise if it differs from the whole network in more than its size."""
    size = Size.of(run.about.config)
    expected = size.config(config)
    for name in _SHAPE:
        own, other = getattr(run.about.config, name), getattr(expected, name)
        if own != other:
            raise ValueError(
                f"the network of {run.folder} has {name} {own}, the whole one {other}: expected a network that was "
                "compressed from it"
            )
    return size


def _answers(run: Run, small: Run | None, count: int, execution: Execution) -> tuple[Answers, ...]:
    """Return how the answers of the engines differ on the first ``count`` test images of a run."""
    model, master, data = run.model(), run.master(), execution.load_data(run)
    middle, tests = data.augmentation.middle, data.test.first(count)
    with progress_bar("comparing", len(tests)) as observe:
        calibration = calibration_images(run, data)
        compressed = None if small is None else fold(small.model(), small.master())
        images = batches(tests, _BATCH, view=middle)
        return agreement(model, master.values, images, calibration, compressed, observe)
