"""Time and memory, measured fairly: variants take turns, medians are compared, memory is a process of its own."""

import ctypes
import gc
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fastcaps._machine import processor_name
from fastcaps._version import __version__


class Measured(NamedTuple):
    """Seconds of one call: the median of all turns, and the quartiles that say how much they spread."""

    median: float
    low: float
    high: float


def machine() -> dict[str, Any]:
    """What this runs on: processor, threads, versions."""
    versions = {"fastcaps": __version__, "torch": torch.__version__, "Python": platform.python_version()}
    with suppress(PackageNotFoundError):
        versions["ONNX Runtime"] = version("onnxruntime")
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def print_machine() -> None:
    """The same in words."""
    found = machine()
    print(f"processor  {found['processor']}, {found['cores']} cores, {found['instructions']}")
    print(f"threads    {found['threads']}")
    print(f"versions   {', '.join(f'{name} {number}' for name, number in found['versions'].items())}")


def measured(
    variants: Mapping[str, Callable[[], object]],
    repetitions: int = 9,
    least: float = 0.0,
    observe: Callable[[int], None] = lambda turns: None,
) -> dict[str, Measured]:
    """Seconds of each variant; they take turns, so that a busy moment falls on all of them.

    Args:
        variants: what to call.
        repetitions: turns of each that count; the first two more don't, they warm up.
        least: seconds that a turn takes at least, by calling several times. Each turn then begins with a call that
            doesn't count: threads of the variant before may still be waiting for work, and caches are full of its data.
        observe: told how many turns were just taken.
    """
    found: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(repetitions + 2):
        for name, run in variants.items():
            if least:
                run()
            calls, elapsed, start = 0, 0.0, time.perf_counter()
            while not calls or elapsed < least:
                run()
                calls, elapsed = calls + 1, time.perf_counter() - start
            if number >= 2:
                found[name].append(elapsed / calls)
            observe(1)
    return {name: _summary(values) for name, values in found.items()}


def times(variants: Mapping[str, Callable[[], object]], repetitions: int = 9) -> dict[str, float]:
    """Median seconds of each variant."""
    return {name: seconds.median for name, seconds in measured(variants, repetitions).items()}


def matmul_peak(size: int = 2048, repetitions: int = 9) -> float:
    """Multiply-adds a second of a large square product in float32, the most that PyTorch gets out of this machine."""
    square = torch.randn(size, size)
    return size**3 / times({"square": lambda: square @ square}, repetitions)["square"]


def peak_memory(
    function: Callable[..., Callable[[], object]], *arguments: Any, small: tuple[Any, ...] | None = None
) -> float | None:
    """Megabytes by which a run exceeds what was there before it, in a process of its own; None when that one died.

    Args:
        function: makes everything that is needed and returns what is to be measured; importable by name.
        arguments: for the function.
        small: arguments for something small of the same kind, made and run first, so that libraries are loaded. What
            the function makes then counts, too: weights in whatever form they are kept.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_measure, args=(there, function, arguments, small))
    process.start()
    there.close()
    try:
        result: float | None = here.recv()
    except EOFError:
        result = None
    finally:
        process.join()
    return result


def can_measure_memory() -> bool:
    """Whether the system tells a process its own peak; Linux does."""
    return Path("/proc/self/clear_refs").exists()


def table(columns: list[str], rows: list[list[str]]) -> None:
    """A plain Markdown table."""
    widths = [max(len(row[k]) for row in [columns, *rows]) for k in range(len(columns))]
    for number, row in enumerate([columns, *rows]):
        print("| " + " | ".join(f"{cell:{widths[k]}}" for k, cell in enumerate(row)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|", flush=True)


def _summary(values: list[float]) -> Measured:
    if len(values) == 1:
        return Measured(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Measured(median, low, high)


def _measure(
    pipe: Any,
    function: Callable[..., Callable[[], object]],
    arguments: tuple[Any, ...],
    small: tuple[Any, ...] | None,
) -> None:
    if small is not None:
        function(*small)()
        before = _held()
    run = function(*arguments)
    held = _held()
    if small is None:
        before = held
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    run()
    pipe.send((_status("VmHWM") - before) / 1024)


def _held() -> int:
    """Kilobytes in use, what was freed given back to the system first, or it would hide what comes next."""
    gc.collect()
    with suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")
