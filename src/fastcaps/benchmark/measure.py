"""Measure time and memory: variants take turns and medians are compared; memory is measured in separate processes."""

import ctypes
import gc
import math
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from fastcaps._machine import processor_name
from fastcaps._version import __version__
from fastcaps.benchmark.results import BenchmarkMachine

Name = TypeVar("Name")


class Measured(NamedTuple):
    """Seconds of one call: the median of all turns, and their quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Measured":
        """Return the median and the quartiles of all turns."""
        if len(seconds) == 1:
            return cls(*3 * seconds)
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high)


def machine() -> BenchmarkMachine:
    """Return a description of this machine."""
    versions = {"fastcaps": __version__, "torch": torch.__version__, "Python": platform.python_version()}
    with suppress(PackageNotFoundError):
        versions["ONNX Runtime"] = version("onnxruntime")
    with suppress(PackageNotFoundError):
        versions["OpenVINO"] = version("openvino")
    return BenchmarkMachine(
        processor=processor_name(),
        cores=os.cpu_count(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        versions=versions,
    )


def measured(
    variants: Mapping[Name, Callable[[], object]],
    repetitions: int = 9,
    least: float = 0.0,
    observe: Callable[[int], None] = lambda turns: None,
    budget: float = math.inf,
) -> dict[Name, Measured]:
    """Return the seconds per call of each variant; they take turns, so that other load affects all of them.

    Args:
        variants: functions to call, by name.
        repetitions: counted turns of each variant, after a warmup turn.
        least: minimum duration of a turn in seconds, reached by several calls.
        observe: called with the number of turns just taken.
        budget: seconds after which a variant takes no more turns, after at least three counted ones.
    """
    turns = {name: partial(timed_turn, run) for name, run in variants.items()}
    return measured_turns(turns, repetitions, least, observe, budget)


def measured_turns(
    turns: Mapping[Name, Callable[[float], float]],
    repetitions: int = 9,
    least: float = 0.0,
    observe: Callable[[int], None] = lambda turns: None,
    budget: float = math.inf,
) -> dict[Name, Measured]:
    """Do as `measured` does, with functions that take a turn of at least so many seconds, such as `timed_turn`."""
    seconds: dict[Name, list[float]] = {name: [] for name in turns}
    spent = dict.fromkeys(turns, 0.0)
    for number in range(repetitions + 1):
        for name, turn in turns.items():
            if number <= 3 or spent[name] < budget:
                begun = time.perf_counter()
                per_call = turn(least)
                if number:
                    seconds[name].append(per_call)
                spent[name] += time.perf_counter() - begun
            observe(1)
    return {name: Measured.of(values) for name, values in seconds.items()}


def timed_turn(run: Callable[[], object], least: float) -> float:
    """Return the seconds per call, over as many calls as take ``least`` seconds.

    The turn begins with a call that isn't counted, because the caches contain the data of the previous variant.
    """
    run()
    calls, elapsed, start = 0, 0.0, time.perf_counter()
    while not calls or elapsed < least:
        run()
        calls, elapsed = calls + 1, time.perf_counter() - start
    return elapsed / calls


def times(variants: Mapping[str, Callable[[], object]], repetitions: int = 9) -> dict[str, float]:
    """Return the median seconds of each variant."""
    return {name: seconds.median for name, seconds in measured(variants, repetitions).items()}


def matmul_peak(size: int = 2048, repetitions: int = 9) -> float:
    """Return the multiply-adds per second of a large square product in float32: the peak of PyTorch on this machine."""
    square = torch.randn(size, size)
    return size**3 / times({"square": lambda: square @ square}, repetitions)["square"]


def peak_memory(
    function: Callable[..., Callable[[], object]], *arguments: Any, small: tuple[Any, ...] | None = None
) -> float | None:
    """Return the peak memory of a run in megabytes, beyond what was in use before, measured in a separate process.

    Args:
        function: prepares the run and returns the function to measure; importable by name.
        arguments: arguments of ``function``.
        small: arguments for a small run, done first so that libraries are loaded. Then the memory that ``function``
            allocates is counted, too: weights in whatever form they are cached.

    Returns:
        The megabytes; None if the process died.
    """
    return peak_memories(function, [arguments], small)[0]


def peak_memories(
    function: Callable[..., Callable[[], object]],
    arguments: Sequence[tuple[Any, ...]],
    small: tuple[Any, ...] | None = None,
) -> list[float | None]:
    """Return `peak_memory` for several sets of arguments, one after the other in the same process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=_measure, args=(sender, function, arguments, small))
    process.start()
    sender.close()
    peaks: list[float | None] = []
    try:
        peaks.extend(receiver.recv() for _ in arguments)
    except EOFError:
        peaks += [None] * (len(arguments) - len(peaks))
    finally:
        process.join()
    return peaks


def can_measure_memory() -> bool:
    """Return whether the system reports the peak memory of a process, as Linux does."""
    return Path("/proc/self/clear_refs").exists()


def _measure(
    pipe: Any,
    function: Callable[..., Callable[[], object]],
    arguments: Sequence[tuple[Any, ...]],
    small: tuple[Any, ...] | None,
) -> None:
    if small is not None:
        function(*small)()
    for each in arguments:
        before = _resident_kilobytes()
        run = function(*each)
        if small is None:
            before = _resident_kilobytes()
        else:
            _resident_kilobytes()
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        run()
        pipe.send((_status("VmHWM") - before) / 1024)
        del run


def _resident_kilobytes() -> int:
    """Return the memory in use, after freed memory was returned to the system; it would hide later allocations."""
    gc.collect()
    with suppress(OSError, AttributeError):  # not every C library has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")
