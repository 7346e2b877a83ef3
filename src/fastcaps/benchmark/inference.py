"""Inference measured: all engines at several batches, then the routing layer as one size after the other grows."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from matplotlib.figure import Figure

from fastcaps.benchmark import engines
from fastcaps.benchmark.engines import ENGINES, FOLDED_AUTO, ONNX, ONNX_INT8, PLAIN
from fastcaps.benchmark.measure import machine, matmul_peak, measured, peak_memory
from fastcaps.benchmark.plain import plain_routing
from fastcaps.functional import fold_weights, folded_routing, prediction_vectors, route_capsules
from fastcaps.nn import CapsNetConfig
from fastcaps.training.accumulation import memory_at_hand

# Ways of the routing layer alone.
ROUTINGS = ("plain dynamic", "dynamic", "folded")
_AXES = {"lower capsules": "i", "classes": "j", "iterations": "r", "batch": "b"}

Observe = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is measured.

    Attributes:
        config: of the network.
        batches: sizes of a batch.
        repetitions: turns of each engine.
        least: seconds that a turn takes at least.
        memory: whether peaks of memory are measured, each in a process of its own.
        growth: for each of lower capsules, classes, iterations and batch the sizes to measure.
        growth_batch: images at a time where another size grows.
        cnn_channels: of the convolutional baseline.
        square: side of the product that is the machine's peak.
    """

    config: CapsNetConfig = field(default_factory=CapsNetConfig.mnist)
    batches: tuple[int, ...] = (1, 8, 32, 128)
    repetitions: int = 9
    least: float = 0.1
    memory: bool = True
    growth: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {
            "lower capsules": (1152, 4 * 1152, 16 * 1152),
            "classes": (10, 100, 1000),
            "iterations": (1, 2, 3, 4, 5),
            "batch": (1, 8, 32, 128),
        }
    )
    growth_batch: int = 8
    cnn_channels: tuple[int, int, int] = (256, 256, 128)
    square: int = 2048

    @classmethod
    def for_network(cls, config: CapsNetConfig) -> "Settings":
        """A network's own sizes, and the routing layer growing from them."""
        i, j = config.lower_capsules, config.classes
        growth = {"lower capsules": (i, 4 * i, 16 * i), "classes": tuple(sorted({j, 10, 100, 1000}))}
        return cls(config=config, growth={**cls().growth, **growth})

    @classmethod
    def quick(cls, *, memory: bool = False) -> "Settings":
        """A network so small that it only shows whether everything works."""
        return cls(
            config=CapsNetConfig.for_images(
                14, 14, 1, classes=3, stem_channels=8, stem_kernel=5, capsule_types=2, primary_kernel=5, decoder=(8,)
            ),
            batches=(1, 2),
            repetitions=1,
            least=0.0,
            memory=memory,
            growth={"lower capsules": (18, 36), "classes": (3, 6), "iterations": (1, 2), "batch": (1, 2)},
            growth_batch=2,
            cnn_channels=(4, 4, 2),
            square=64,
        )

    @property
    def turns(self) -> int:
        """How many turns there are in all, for whoever shows progress."""
        points = len(self.batches) * len(ENGINES) + sum(map(len, self.growth.values())) * len(ROUTINGS)
        return points * (self.repetitions + 2 + self.memory)


@torch.no_grad()
def bench(settings: Settings, observe: Observe = lambda turns: None) -> dict[str, Any]:
    """Everything, as plain values for JSON; PyTorch's number of threads is everybody's.

    Returns:
        ``machine``; ``settings``; ``multiply_adds_per_second``, the peak; ``engines``, an entry for each engine and
        batch; ``growth``, an entry for each axis, size and way of (Max-Min) routing; ``skipped``, what of it needs
        more than half of the memory that is free; ``aims``.
    """
    threads = torch.get_num_threads()
    peak = matmul_peak(settings.square, settings.repetitions)
    rows = _engines(settings, threads, peak, observe)
    growth, skipped = [], []
    for axis, sizes in settings.growth.items():
        for size in sizes:
            if _needed(_sizes(settings, axis, size)) > memory_at_hand():
                skipped.append({"axis": axis, "size": size})
            else:
                growth += _point(settings, axis, size, observe)
    return {
        "machine": machine(),
        "settings": {**dataclasses.asdict(settings), "config": settings.config.to_dict()},
        "multiply_adds_per_second": peak,
        "engines": rows,
        "growth": growth,
        "skipped": skipped,
        # They are about this network on two threads; of others they say nothing.
        "aims": _aims(rows, growth) if settings.config == CapsNetConfig.mnist() and threads == 2 else [],
    }


def _engines(settings: Settings, threads: int, peak: float, observe: Observe) -> list[dict[str, Any]]:
    config, rows = settings.config, []
    made = {name: engines.engine(name, config, threads, settings.cnn_channels) for name in ENGINES}
    for batch in settings.batches:
        images = engines.some_images(config, batch)
        runs = {name: _bound(made[name].run, images) for name in ENGINES}
        seconds = measured(runs, settings.repetitions, settings.least, observe)
        for name, found in seconds.items():
            engine, memory = made[name], None
            if settings.memory:
                arguments = (name, config.to_dict(), threads, batch, settings.cnn_channels)
                tiny = Settings.quick()
                small = (name, tiny.config.to_dict(), threads, 1, tiny.cnn_channels)
                memory = peak_memory(engines.once, *arguments, small=small)
                observe(1)
            rows.append(
                {
                    "engine": name,
                    "batch": batch,
                    "ms_per_image": 1e3 * found.median / batch,
                    "quartiles": [1e3 * found.low / batch, 1e3 * found.high / batch],
                    "images_per_second": batch / found.median,
                    "times_faster": seconds[PLAIN].median / found.median,
                    "peak_mb": memory,
                    "size_mb": engine.size / 1e6,
                    "shares": engine.shares(images) if engine.shares else None,
                    "share_of_peak": engine.multiplications * batch / found.median / peak,
                }
            )
    return rows


def _bound(run: Callable[[Any], object], images: Any) -> Callable[[], object]:
    return lambda: run(images)


def routing(name: str, sizes: dict[str, int], threads: int) -> Callable[[], object]:
    """The routing layer alone, from lower capsules, in one of `ROUTINGS`; importable, for a process of its own."""
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


def _sizes(settings: Settings, axis: str, size: int) -> dict[str, int]:
    config = settings.config
    sizes = {"b": settings.growth_batch, "i": config.lower_capsules, "d": config.lower_dimension}
    return sizes | {"j": config.classes, "e": config.class_dimension, "r": config.iterations, _AXES[axis]: size}


def _needed(sizes: dict[str, int]) -> int:
    """Bytes: weights for each of three ways, and all votes three times."""
    b, i, d, j, e = (sizes[key] for key in "bidje")
    return 4 * 3 * (i * d * j * e + b * i * j * e)


def _point(settings: Settings, axis: str, size: int, observe: Observe) -> list[dict[str, Any]]:
    threads, sizes = torch.get_num_threads(), _sizes(settings, axis, size)
    seconds = measured(
        {name: routing(name, sizes, threads) for name in ROUTINGS}, settings.repetitions, settings.least / 4, observe
    )
    rows = []
    for name, found in seconds.items():
        memory = None
        if settings.memory:
            memory = peak_memory(routing, name, sizes, threads, small=(name, dict.fromkeys(sizes, 2), threads))
            observe(1)
        rows.append(
            {
                "axis": axis,
                "size": size,
                "routing": name,
                "ms_per_image": 1e3 * found.median / sizes["b"],
                "quartiles": [1e3 * found.low / sizes["b"], 1e3 * found.high / sizes["b"]],
                "times_faster": seconds["plain dynamic"].median / found.median,
                "peak_mb": memory,
            }
        )
    return rows


def _aims(rows: list[dict[str, Any]], growth: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was aimed at, as times faster than plain dynamic routing, beside what was measured in this run."""
    network = {(row["engine"], row["batch"]): row["times_faster"] for row in rows}
    layer = {row["size"]: row["times_faster"] for row in growth if (row["axis"], row["routing"]) == ("batch", "folded")}
    wanted: list[tuple[str, float, float | None]] = [
        ("routing layer, folded, batch 128", 60, layer.get(128)),
        ("network, folded, batch 128", 4.5, network.get((FOLDED_AUTO, 128))),
        ("network, folded, batch 32", 4.5, network.get((FOLDED_AUTO, 32))),
        ("network, folded, batch 1", 2, network.get((FOLDED_AUTO, 1))),
        ("network, ONNX folded, batch 1", 2, network.get((ONNX, 1))),
        ("network, ONNX folded int8, batch 1", 4, network.get((ONNX_INT8, 1))),
    ]
    return [
        {"what": what, "aim": aim, "measured": found, "met": found >= aim}
        for what, aim, found in wanted
        if found is not None
    ]


def figure(found: dict[str, Any]) -> Figure:
    """Milliseconds an image of every engine by batch, and of the routing layer as one size after the other grows."""
    axes = list(dict.fromkeys(row["axis"] for row in found["growth"]))
    drawing = Figure(figsize=(4.2 * max(2, len(axes)), 9.5), layout="constrained")
    grid = drawing.add_gridspec(2, max(1, len(axes)), height_ratios=[1.5, 1])
    panel = drawing.add_subplot(grid[0, :])
    batches = list(dict.fromkeys(row["batch"] for row in found["engines"]))
    width = 0.8 / len(batches)
    for k, batch in enumerate(batches):
        rows = [row for row in found["engines"] if row["batch"] == batch]
        values = [row["ms_per_image"] for row in rows]
        spread = [
            [row["ms_per_image"] - row["quartiles"][0] for row in rows],
            [row["quartiles"][1] - row["ms_per_image"] for row in rows],
        ]
        places = [n + k * width for n in range(len(rows))]
        # Points, not bars: on a logarithmic axis the length of a bar means nothing.
        panel.errorbar(values, places, xerr=spread, fmt="o", markersize=5, capsize=2, label=f"batch {batch}")
        for row, place in zip(rows, places, strict=True):
            words, right = f"{row['ms_per_image']:.2f}", max(row["ms_per_image"], row["quartiles"][1])
            panel.annotate(words, (right, place), (6, 0), textcoords="offset points", va="center", fontsize=7)
    panel.set_yticks([n + 0.4 - width / 2 for n in range(len(ENGINES))], ENGINES)
    panel.invert_yaxis()
    panel.grid(axis="x", alpha=0.3)
    panel.set_xscale("log")
    panel.set_xlabel("ms an image (median, quartiles)")
    panel.legend(fontsize=8)
    about = found["machine"]
    panel.set_title(f"{about['processor']}, {about['threads']} threads", fontsize=10)
    for k, axis in enumerate(axes):
        panel = drawing.add_subplot(grid[1, k])
        for name in ROUTINGS:
            rows = [row for row in found["growth"] if (row["axis"], row["routing"]) == (axis, name)]
            panel.plot([row["size"] for row in rows], [row["ms_per_image"] for row in rows], "o-", label=name)
        sizes = sorted({row["size"] for row in found["growth"] if row["axis"] == axis})
        if len(sizes) > 1 and math.log10(sizes[-1] / sizes[0]) > 0.8:
            panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.set_xticks([], minor=True)
        panel.set_xlabel(axis)
        panel.set_ylabel("routing layer, ms an image")
        panel.legend(fontsize=7)
    return drawing
