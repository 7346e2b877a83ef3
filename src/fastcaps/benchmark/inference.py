"""Measure inference: all engines at several batch sizes, then the routing layer as each of its sizes grows."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor

from fastcaps.benchmark import engines
from fastcaps.benchmark.aims import aims_of
from fastcaps.benchmark.engines import PLAIN, Engine, Networks, installed_engines
from fastcaps.benchmark.measure import (
    Measured,
    machine,
    matmul_peak,
    measured,
    measured_turns,
    peak_memories,
    timed_turn,
)
from fastcaps.benchmark.plain import plain_routing
from fastcaps.benchmark.processes import EngineProcess
from fastcaps.benchmark.results import Benchmark, Disturbance, EngineTime, RoutingTime, Skipped
from fastcaps.benchmark.settings import ROUTINGS, Settings
from fastcaps.functional import fold_weights, folded_routing, prediction_vectors, route_capsules
from fastcaps.nn import CapsNetConfig
from fastcaps.training.accumulation import available_memory

_AXES = {"lower capsules": "i", "classes": "j", "iterations": "r", "batch": "b"}

Observe = Callable[[int], None]
Turns = Mapping[str, Callable[[float], float]]


@torch.no_grad()
def bench(settings: Settings, observe: Observe = lambda turns: None) -> Benchmark:
    """Measure everything; all engines use the number of threads of PyTorch.

    Args:
        settings: what to measure.
        observe: called with the number of turns just taken.
    """
    threads = torch.get_num_threads()
    peak = matmul_peak(settings.square, settings.repetitions)
    alone = _first_alone(settings, threads, observe)
    rows = _engine_times(settings, threads, peak, observe)
    points = {(axis, size): _sizes(settings, axis, size) for axis, sizes in settings.growth.items() for size in sizes}
    skipped = tuple(
        Skipped(axis=axis, size=size)
        for (axis, size), sizes in points.items()
        if _needed_bytes(sizes) > available_memory()
    )
    for point in skipped:
        del points[point.axis, point.size]
    growth = _growth(settings, points, threads, observe)
    in_turns = {row.batch: row.ms_per_image for row in rows if row.engine == PLAIN}
    return Benchmark(
        machine=machine(),
        settings=settings,
        multiply_adds_per_second=peak,
        engines=rows,
        disturbance=tuple(
            Disturbance(engine=PLAIN, batch=b, alone_ms_per_image=ms, ms_per_image=in_turns[b])
            for b, ms in alone.items()
        ),
        growth=growth,
        skipped=skipped,
        # The targets only apply to this network on two threads.
        aims=aims_of(rows, growth) if settings.config == CapsNetConfig.mnist() and threads == 2 else (),
    )


def _first_alone(settings: Settings, threads: int, observe: Observe) -> dict[int, float]:
    """Return the milliseconds per image of the first engine by batch size, before any other engine is made."""
    times = {}
    with _turns(settings, threads, (PLAIN,)) as turns:
        for batch in settings.batches:
            seconds = measured_turns(turns(batch), settings.repetitions, settings.least, observe, settings.budget)
            times[batch] = 1e3 * seconds[PLAIN].median / batch
    return times


@contextmanager
def _turns(settings: Settings, threads: int, names: Sequence[str]) -> Iterator[Callable[[int], Turns]]:
    """Yield a function from a batch size to the turns of engines, in processes of their own or all in this one."""
    if settings.isolated:
        with ExitStack() as stack:
            processes = []
            for name in names:
                processes.append(EngineProcess(name, settings.networks, threads))
                stack.callback(processes[-1].close)
            yield lambda batch: {process.name: partial(process.turn, batch) for process in processes}
        return
    by_name = {name: engines.engine(name, settings.networks, threads) for name in names}

    def turns(batch: int) -> Turns:
        images = engines.some_images(settings.config, batch)
        return {name: partial(timed_turn, _bound(engine, images)) for name, engine in by_name.items()}

    yield turns


def _engine_times(settings: Settings, threads: int, peak: float, observe: Observe) -> tuple[EngineTime, ...]:
    networks, rows, names = settings.networks, [], installed_engines()
    memory = _engine_memory(settings, threads, observe) if settings.memory else {}
    with _turns(settings, threads, names) as turns:
        by_batch = {
            batch: measured_turns(turns(batch), settings.repetitions, settings.least, observe, settings.budget)
            for batch in settings.batches
        }
    by_name = {name: engines.engine(name, networks, threads) for name in names}
    for batch, seconds in by_batch.items():
        images = engines.some_images(settings.config, batch)
        for name, times in seconds.items():
            engine = by_name[name]
            rows.append(
                EngineTime(
                    engine=name,
                    batch=batch,
                    ms_per_image=1e3 * times.median / batch,
                    quartiles=_quartiles(times, batch),
                    images_per_second=batch / times.median,
                    times_faster=seconds[PLAIN].median / times.median,
                    peak_mb=memory.get((name, batch)),
                    size_mb=engine.size / 1e6,
                    shares=engine.shares(images) if engine.shares else None,
                    share_of_peak=engine.multiply_adds * batch / times.median / peak,
                )
            )
    return tuple(rows)


def _engine_memory(settings: Settings, threads: int, observe: Observe) -> dict[tuple[str, int], float | None]:
    """Return peak memory by engine and batch size, measured in one process per engine, in parallel on all cores."""
    tiny = Settings.quick()

    def peaks(name: str) -> list[float | None]:
        arguments = [(name, settings.networks, threads, batch) for batch in settings.batches]
        result = peak_memories(run_twice, arguments, small=(name, tiny.networks, threads, 1))
        observe(1)
        return result

    names = installed_engines()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        by_engine = dict(zip(names, pool.map(peaks, names), strict=True))
    return {
        (name, batch): peak
        for name, values in by_engine.items()
        for batch, peak in zip(settings.batches, values, strict=True)
    }


def run_twice(name: str, networks: Networks, threads: int, batch: int) -> Callable[[], object]:
    """Return a function that runs an engine on two batches; importable, for a process of its own."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(threads)
    run = engines.engine(name, networks, threads).run
    images = engines.some_images(networks.config, batch)
    return lambda: [run(images) for _ in range(2)]


def routing(name: str, sizes: dict[str, int], threads: int) -> Callable[[], object]:
    """Return the routing layer alone, one of `ROUTINGS`, from lower capsules; importable, for a process of its own."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    b, i, d, j, e, r = (sizes[key] for key in "bidjer")
    lower = torch.randn(b, i, d) * 0.2
    weight = torch.randn(i, d, j, e) * 0.003
    if name == "folded":
        folded = fold_weights(weight, torch.rand(i, j))
        return lambda: folded_routing(lower, folded, j, threads)
    if name == "dynamic":
        return lambda: route_capsules(lower, weight, r)
    return lambda: plain_routing(prediction_vectors(lower, weight), r)


def _growth(
    settings: Settings, points: dict[tuple[str, int], dict[str, int]], threads: int, observe: Observe
) -> tuple[RoutingTime, ...]:
    memory: dict[tuple[str, str, int], float | None] = {}
    for name in ROUTINGS if settings.memory and points else ():
        arguments = [(name, sizes, threads) for sizes in points.values()]
        peaks = peak_memories(routing, arguments, small=(name, dict.fromkeys("bidjer", 2), threads))
        memory |= {(name, *point): peak for point, peak in zip(points, peaks, strict=True)}
        observe(1)
    rows = []
    for (axis, size), sizes in points.items():
        runs = {name: routing(name, sizes, threads) for name in ROUTINGS}
        seconds = measured(runs, settings.repetitions, settings.least / 4, observe, settings.budget / 4)
        for name, times in seconds.items():
            rows.append(
                RoutingTime(
                    axis=axis,
                    size=size,
                    routing=name,
                    ms_per_image=1e3 * times.median / sizes["b"],
                    quartiles=_quartiles(times, sizes["b"]),
                    times_faster=seconds["plain dynamic"].median / times.median,
                    peak_mb=memory.get((name, axis, size)),
                )
            )
    return tuple(rows)


def _quartiles(times: Measured, batch: int) -> tuple[float, float]:
    return 1e3 * times.low / batch, 1e3 * times.high / batch


def _bound(engine: Engine, images: Tensor) -> Callable[[], object]:
    return lambda: engine.run(images)


def _sizes(settings: Settings, axis: str, size: int) -> dict[str, int]:
    config = settings.config
    sizes = {"b": settings.growth_batch, "i": config.lower_capsules, "d": config.lower_dimension}
    return sizes | {"j": config.classes, "e": config.class_dimension, "r": config.iterations, _AXES[axis]: size}


def _needed_bytes(sizes: dict[str, int]) -> int:
    """Return the memory of the weights of three variants, and of three copies of all votes."""
    b, i, d, j, e = (sizes[key] for key in "bidje")
    return int(4 * 3 * (i * d * j * e + b * i * j * e))
