"""Time and memory, measured fairly: variants take turns, medians are compared, memory is a process of its own."""

import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import fastcaps


def print_machine() -> None:
    """What this runs on: processor, threads, versions."""
    processor = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        names = [line.split(":", 1)[1].strip() for line in information.read_text().splitlines() if "model name" in line]
        processor = names[0] if names else processor
    instructions = torch.backends.cpu.get_cpu_capability()
    print(f"processor  {processor}, {os.cpu_count()} cores, {instructions}")
    print(f"threads    {torch.get_num_threads()}")
    print(f"versions   fastcaps {fastcaps.__version__}, torch {torch.__version__}, Python {platform.python_version()}")


def times(variants: Mapping[str, Callable[[], object]], repetitions: int = 9) -> dict[str, float]:
    """Median seconds of each variant; they take turns, so that a busy moment falls on all of them."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(repetitions + 2):
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            if number >= 2:  # the first two warm up
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in found.items()}


def peak_memory(function: Callable[..., Callable[[], object]], *arguments: Any) -> float:
    """Megabytes by which a run exceeds what was there before it, in a process of its own.

    Args:
        function: makes everything that is needed and returns what is to be measured; importable by name.
        arguments: for the function.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_measure, args=(there, function, arguments))
    process.start()
    there.close()
    try:
        result: float = here.recv()
    except EOFError:
        raise RuntimeError(f"measuring the memory of {function.__name__}{arguments} failed") from None
    finally:
        process.join()
    return result


def _measure(pipe: Any, function: Callable[..., Callable[[], object]], arguments: tuple[Any, ...]) -> None:
    run = function(*arguments)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    run()
    pipe.send((_status("VmHWM") - before) / 1024)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def table(columns: list[str], rows: list[list[str]]) -> None:
    """A plain Markdown table."""
    widths = [max(len(row[k]) for row in [columns, *rows]) for k in range(len(columns))]
    for number, row in enumerate([columns, *rows]):
        print("| " + " | ".join(f"{cell:{widths[k]}}" for k, cell in enumerate(row)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|", flush=True)
