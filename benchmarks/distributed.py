"""One and two processes on this machine: a training step, a pass of accumulation, the exchange alone; and a model.

Each measurement is a separate job, started by torchrun as a user does. The model predicts the time with more machines:
a step takes ``C / R + 2 (R − 1) / R · G / W``, with C the time of one process for the whole batch, G the bytes of the
gradient, W the bytes per second between two machines. It assumes that nothing overlaps, and that no process waits for
the slowest.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.printing import table
from benchmarks.training import SHAPES, B
from fastcaps import CapsNet
from fastcaps.data import Augmentation, DataSet, Split
from fastcaps.distributed import World, init_distributed
from fastcaps.training import CallbackLogger, Trainer, TrainSettings
from fastcaps.training.accumulation import accumulate_split

STEPS, TURNS = 8, 3
# Number of processes, and threads per process.
JOBS = [(1, 1), (1, 2), (2, 1)]
RANKS = [2, 4, 8, 16, 32]
# Bytes per second of a network, by its name.
NETWORKS = {"1 Gbit/s": 0.125e9, "10 Gbit/s": 1.25e9, "25 Gbit/s": 3.125e9}


def main() -> None:
    compute = {}
    for shape in SHAPES:
        # They take turns, so that other load affects all of them.
        turns = [{job: _run(shape, *job) for job in JOBS} for _ in range(TURNS)]
        medians = {
            job: {key: statistics.median(turn[job][key] for turn in turns) for key in turns[0][job]} for job in JOBS
        }
        print(f"{shape} network, {B} images per step by all processes together\n")
        table(
            [
                "processes × threads",
                "step, ms/image",
                "times faster",
                "accumulating, ms/image",
                "times faster",
                "MB each",
            ],
            [
                [
                    f"{processes} × {threads}",
                    f"{1e3 * one['step']:.2f}",
                    f"{medians[1, 1]['step'] / one['step']:.2f}",
                    f"{1e3 * one['accumulating']:.2f}",
                    f"{medians[1, 1]['accumulating'] / one['accumulating']:.2f}",
                    f"{one['memory'] / 1e6:.0f}",
                ]
                for (processes, threads), one in medians.items()
            ],
        )
        shared = medians[2, 1]
        print(
            f"\nBetween two processes here: the gradient ({shared['gradient'] / 1e6:.1f} MB) in "
            f"{1e3 * shared['exchange']:.0f} ms, once per step; the containers ({shared['containers'] / 1e6:.2f} MB) "
            "once per pass.\n"
        )
        compute[shape] = (medians[1, 2]["step"], shared["gradient"])
    for shape, (seconds, gradient) in compute.items():
        print(f"{shape} network, expected share of R times the speed, machines as this one with two threads\n")
        table(*expected(seconds * B, gradient))
        print()


def expected(seconds: float, gradient: float) -> tuple[list[str], list[list[str]]]:
    """Return the predictions of the model for several networks and numbers of processes, as head and rows of a table.

    Args:
        seconds: time of one process for ``B`` images.
        gradient: bytes of the gradient.
    """
    rows = []
    for name, bandwidth in NETWORKS.items():
        for words, growing in ((f"{B} in all", False), (f"{B} each", True)):
            shares = [efficiency(seconds * (ranks if growing else 1), gradient, ranks, bandwidth) for ranks in RANKS]
            rows.append([name, words, *(f"{share:.0%}" for share in shares)])
    return ["network between them", "images per step", *(f"R = {ranks}" for ranks in RANKS)], rows


def efficiency(compute: float, gradient: float, ranks: int, bandwidth: float) -> float:
    """Return the parallel efficiency that the model predicts: the speedup divided by ``ranks``.

    Args:
        compute: seconds of one process for the whole batch.
        gradient: bytes of the gradient.
        ranks: number of processes, each on a machine of its own.
        bandwidth: bytes per second between them.
    """
    exchange = 2 * (ranks - 1) / ranks * gradient / bandwidth
    return compute / ranks / (compute / ranks + exchange)


def _run(shape: str, processes: int, threads: int) -> dict[str, float]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    job = ["-m", "benchmarks.distributed", shape, str(threads)]
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, *launcher, *job], stdout=subprocess.PIPE, text=True, check=True, env=variables
    )
    measurements: dict[str, float] = json.loads(done.stdout)
    return measurements


def _measure(world: World, shape: str, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = SHAPES[shape](standardize=False)
    sides = (config.channels, config.height, config.width)
    pixels = torch.randint(0, 256, (STEPS * B, *sides), dtype=torch.uint8)
    split = Split(torch.arange(len(pixels)) % config.classes, pixels.__getitem__)
    data = DataSet(
        name="noise",
        class_names=config.class_names,
        image_shape=sides,
        train=split,
        test=split,
        provenance={"kind": "generated"},
        augmentation=Augmentation(shift=2),
    )
    model = CapsNet(config)
    ends: list[float] = []
    with TemporaryDirectory() as folder:
        settings = TrainSettings(epochs=1, batch_size=B)
        loggers = [CallbackLogger(lambda report: ends.append(time.perf_counter()))]
        Trainer(model, data, settings, folder, loggers=loggers).fit()
        world.barrier()
    steps = [after - before for before, after in pairwise(ends)]
    begun = time.perf_counter()
    master = accumulate_split(model, split, data.augmentation.test_view, B, world=world)
    accumulating = time.perf_counter() - begun
    gradient = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    exchanges = []
    for _ in range(5):
        begun = time.perf_counter()
        world.all_reduce_now(gradient)
        exchanges.append(time.perf_counter() - begun)
    assert master.containers is not None
    return {
        "step": statistics.median(steps[1:]) / B,
        "accumulating": accumulating / len(split),
        "exchange": statistics.median(exchanges),
        "gradient": 4 * gradient.numel(),
        "containers": 8 * master.containers.numel(),
        "memory": peak_bytes(),
    }


def peak_bytes() -> float:
    """Return the peak memory of this process; 0 if the system doesn't report it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024.0


if __name__ == "__main__":
    _shape, _threads = sys.argv[1:]
    with init_distributed() as _world:
        _measurements: dict[str, Any] = _measure(_world, _shape, int(_threads))
        if _world.is_main:
            print(json.dumps(_measurements))
