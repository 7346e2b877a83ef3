"""The demonstration: a bundled network in seconds, then all steps from images to a report."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastcaps._progress import progress_bar
from fastcaps._result import without_none
from fastcaps.benchmark.engines import (
    DYNAMIC,
    FOLDED_AUTO,
    PLAIN,
    Engine,
    Networks,
    engine,
    module_engine,
    stored_engine,
)
from fastcaps.benchmark.side_by_side import SideBySide, side_by_side
from fastcaps.bundled import exported_file
from fastcaps.compression import multiply_adds
from fastcaps.data import batches, load
from fastcaps.nn import FastCapsNet
from fastcaps.training.run import Run
from fastcaps.workflows._common import restores_threads, select_device
from fastcaps.workflows.accumulation import accumulate
from fastcaps.workflows.analysis import AnalysisResult, analyze
from fastcaps.workflows.evaluation import evaluate
from fastcaps.workflows.training import train

_BATCH = 64
# A network for 1,437 blurred digits; the weight of the decoder and the number of steps suffice to learn to draw them.
DIGITS: dict[str, Any] = {
    "stem_channels": 32,
    "stem_stride": 2,
    "capsule_types": 8,
    "primary_kernel": 5,
    "primary_stride": 1,
    "decoder": (256, 512),
    "epochs": 40,
    "batch_size": 64,
    "final_rate": 0.1,
    "reconstruction_weight": 0.05,
}


@restores_threads
def compare_bundled(images: int = 512, threads: int | None = None) -> SideBySide:
    """Run the bundled MNIST network on its embedded test images: with and without the loop, in int8, and compressed.

    Args:
        images: number of test images.
        threads: CPU threads; all by default.
    """
    select_device("cpu", threads)
    run = Run.open("mnist")
    data = run.data(test_only=True)
    tests = data.test.first(images)
    with progress_bar("MNIST test images", len(tests)) as observe:
        pairs = batches(tests, _BATCH, view=data.augmentation.middle)
        return side_by_side("The MNIST network", _engines(run), pairs, observe)


def _engines(run: Run) -> dict[str, Engine]:
    """Return the engines of the bundled MNIST network; only those of PyTorch if ONNX Runtime is missing."""
    import torch

    threads = torch.get_num_threads()
    model = run.model().float()
    networks = Networks(model.config, trained=(model, run.master().values.float()))
    engines = {
        "plain dynamic routing": engine(PLAIN, networks, threads),
        "dynamic routing": engine(DYNAMIC, networks, threads),
        "fast routing": engine(FOLDED_AUTO, networks, threads),
    }
    compressed = FastCapsNet.from_pretrained("mnist-small")
    engines["compressed"] = module_engine(compressed, multiply_adds(compressed.config))
    if find_spec("onnxruntime") is not None:
        for title, name in {"fast routing, int8": "mnist", "compressed, int8": "mnist-small"}.items():
            engines[title] = stored_engine(exported_file(name), threads)
    return engines


@restores_threads
def demonstrate(
    out: str | Path = "runs/demo", *, epochs: int | None = None, seed: int = 0, threads: int | None = None
) -> AnalysisResult:
    """Train on the digits of scikit-learn, accumulate, evaluate and analyze; a run in the folder is resumed.

    Args:
        out: the run folder.
        epochs: passes over the training images; 40 by default.
        seed: seed of weights, order and augmentation.
        threads: CPU threads; all by default.
    """
    data = load("digits")
    changes = {**DIGITS, "seed": seed, **without_none(epochs=epochs, threads=threads)}
    train(data, out, resume=Run(Path(out)).checkpoint_file.exists(), device="cpu", **changes)
    for step in (accumulate, evaluate):
        step(out, data=data, device="cpu", threads=threads)
    return analyze(out, data=data, device="cpu", threads=threads, sort_by_class=True)
