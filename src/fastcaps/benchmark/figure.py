"""A benchmark as a figure."""

import math

from matplotlib.axes import Axes

from fastcaps._figure import Figure
from fastcaps.benchmark.results import Benchmark


def figure(result: Benchmark) -> Figure:
    """Draw the milliseconds per image of every engine by batch size, and of the routing layer as sizes grow."""
    axes = list(dict.fromkeys(row.axis for row in result.growth))
    drawing = Figure(figsize=(4.2 * max(2, len(axes)), 11), layout="constrained")
    grid = drawing.add_gridspec(2, max(1, len(axes)), height_ratios=[2, 1])
    _draw_engines(drawing.add_subplot(grid[0, :]), result)
    for number, axis in enumerate(axes):
        _draw_growth(drawing.add_subplot(grid[1, number]), result, axis)
    return drawing


def _draw_engines(panel: Axes, result: Benchmark) -> None:
    batches = list(dict.fromkeys(row.batch for row in result.engines))
    names = list(dict.fromkeys(row.engine for row in result.engines))
    width = 0.8 / len(batches)
    for number, batch in enumerate(batches):
        rows = [row for row in result.engines if row.batch == batch]
        values = [row.ms_per_image for row in rows]
        spread = [
            [row.ms_per_image - row.quartiles[0] for row in rows],
            [row.quartiles[1] - row.ms_per_image for row in rows],
        ]
        places = [n + number * width for n in range(len(rows))]
        # Points, not bars: on a logarithmic axis the length of a bar means nothing.
        panel.errorbar(values, places, xerr=spread, fmt="o", markersize=5, capsize=2, label=f"batch {batch}")
        for row, place in zip(rows, places, strict=True):
            right = max(row.ms_per_image, row.quartiles[1])
            words = f"{row.ms_per_image:.2f}"
            panel.annotate(words, (right, place), (6, 0), textcoords="offset points", va="center", fontsize=7)
    panel.set_yticks([n + 0.4 - width / 2 for n in range(len(names))], names)
    panel.invert_yaxis()
    panel.grid(axis="x", alpha=0.3)
    panel.set_xscale("log")
    panel.set_xlabel("ms per image (median, quartiles)")
    panel.legend(fontsize=8)
    panel.set_title(f"{result.machine['processor']}, {result.machine['threads']} threads", fontsize=10)


def _draw_growth(panel: Axes, result: Benchmark, axis: str) -> None:
    own = [row for row in result.growth if row.axis == axis]
    for name in dict.fromkeys(row.routing for row in own):
        rows = [row for row in own if row.routing == name]
        panel.plot([row.size for row in rows], [row.ms_per_image for row in rows], "o-", label=name)
    sizes = sorted({row.size for row in own})
    if len(sizes) > 1 and math.log10(sizes[-1] / sizes[0]) > 0.8:
        panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.set_xticks([], minor=True)
    panel.set_xlabel(axis)
    panel.set_ylabel("routing layer, ms per image")
    panel.legend(fontsize=7)
