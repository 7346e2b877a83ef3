"""A benchmark as a figure."""

import math
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from fastcaps._figure import Figure
from fastcaps.benchmark.results import Benchmark

# In inches; the figure is shown 1200 pixels wide.
_WIDTH = 12
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#c8c8c8",
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
}
# Colors of the batch sizes, from the smallest.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")


def figure(result: Benchmark) -> Figure:
    """Draw the milliseconds per image of every engine by batch size, and of the routing layer as sizes grow.

    The headline gives the speedup of the fastest engine of the same network over plain dynamic routing.
    """
    axes = list(dict.fromkeys(row.axis for row in result.growth))
    engines, batches = len({row.engine for row in result.engines}), len({row.batch for row in result.engines})
    upper = engines * (0.25 + 0.16 * batches) + 1.2
    with mpl.rc_context(_STYLE):
        drawing = Figure(figsize=(_WIDTH, upper + (3.6 if axes else 0) + 1), layout="constrained")
        grid = drawing.add_gridspec(2 if axes else 1, max(1, len(axes)), height_ratios=[upper, 3.6] if axes else None)
        drawing.suptitle(headline(result), fontsize=18, fontweight="bold", x=0.01, ha="left")
        _draw_engines(drawing.add_subplot(grid[0, :]), result)
        for number, axis in enumerate(axes):
            panel = drawing.add_subplot(grid[1, number])
            _draw_growth(panel, result, axis)
            if number == 0:
                panel.set_ylabel("routing layer, ms per image")
                drawing.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return drawing


def headline(result: Benchmark) -> str:
    """Return how many times as fast as plain dynamic routing the folded network is, and at which batch size."""
    folded = [row for row in result.engines if "folded" in row.engine]  # the same network, not a smaller one
    best = max(folded, key=lambda row: row.times_faster)
    return f"{best.engine}: {best.times_faster:.1f} times as fast as plain dynamic routing (batch {best.batch})"


def _draw_engines(panel: Axes, result: Benchmark) -> None:
    batches = list(dict.fromkeys(row.batch for row in result.engines))
    names = list(dict.fromkeys(row.engine for row in result.engines))
    width = 0.7 / len(batches)
    for number, batch in enumerate(batches):
        rows = [row for row in result.engines if row.batch == batch]
        places = [names.index(row.engine) + (number - (len(batches) - 1) / 2) * width for row in rows]
        spread = [
            [row.ms_per_image - row.quartiles[0] for row in rows],
            [row.quartiles[1] - row.ms_per_image for row in rows],
        ]
        # Points, not bars: on a logarithmic axis the length of a bar means nothing.
        panel.errorbar(
            [row.ms_per_image for row in rows],
            places,
            xerr=spread,
            fmt="o",
            markersize=7,
            capsize=3,
            color=_COLORS[number % len(_COLORS)],
            label=f"batch {batch}",
        )
        for row, place in zip(rows, places, strict=True):
            right = max(row.ms_per_image, row.quartiles[1])
            words = f"{row.ms_per_image:.2f}"
            panel.annotate(words, (right, place), (8, 0), textcoords="offset points", va="center", fontsize=10)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x")
    panel.set_axisbelow(True)
    panel.set_xscale("log")
    panel.margins(x=0.08)
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("ms per image: median and quartiles; further left is faster")
    panel.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(batches))
    threads = result.machine.threads
    panel.set_title(
        f"{result.machine.processor}, {threads} {'thread' if threads == 1 else 'threads'}", fontweight="normal"
    )


def _draw_growth(panel: Axes, result: Benchmark, axis: str) -> None:
    own = [row for row in result.growth if row.axis == axis]
    for number, name in enumerate(dict.fromkeys(row.routing for row in own)):
        rows = [row for row in own if row.routing == name]
        color = _COLORS[number % len(_COLORS)]
        panel.plot([row.size for row in rows], [row.ms_per_image for row in rows], "o-", color=color, label=name)
    sizes = sorted({row.size for row in own})
    if len(sizes) > 1 and math.log10(sizes[-1] / sizes[0]) > 0.8:
        panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.set_xticks([], minor=True)
    panel.grid(axis="y")
    panel.set_axisbelow(True)
    panel.set_xlabel(axis)
