"""The figure of a compression: accuracy against milliseconds per image, one point per size."""

from typing import Any

from matplotlib.ticker import LogLocator

from fastcaps._figure import Figure
from fastcaps.benchmark.engines import EFFICIENT
from fastcaps.benchmark.sizes import INT8
from fastcaps.compression.results import CompressionResult, NetworkTime


def size_figure(result: CompressionResult) -> Figure:
    """Draw accuracy on the held-out images against milliseconds per image, one panel per batch size.

    The whole network and every size are points, one color per engine. Efficient-CapsNet is a triangle on the axis, as
    its accuracy is not measured.
    """
    batches = list(dict.fromkeys(time.batch for time in result.times))
    drawing = Figure(figsize=(6 * len(batches), 5), layout="constrained")
    steps = {"whole": result.whole_network} | {str(step.size): step for step in result.steps}
    accuracies = {name: 100 * step.accuracy for name, step in steps.items() if step is not None}
    for number, batch in enumerate(batches):
        panel = drawing.add_subplot(1, len(batches), number + 1)
        times = [time for time in result.times if time.batch == batch]
        for engine in dict.fromkeys(time.engine for time in times):
            _draw_engine(panel, engine, [time for time in times if time.engine == engine], accuracies)
        _label_points(panel, times, accuracies)
        panel.axhline(100 * result.reference - result.settings.max_drop, linestyle=":", color="gray", label="limit")
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter("")
        panel.margins(x=0.15)
        panel.set_xlabel(f"ms per image, batch {batch}")
        panel.set_ylabel(f"accuracy on {result.held_out:,} held-out images, %")
    if batches:
        drawing.legend(*drawing.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return drawing


def _draw_engine(panel: Any, engine: str, times: list[NetworkTime], accuracies: dict[str, float]) -> None:
    points = [(time.ms_per_image, accuracies[time.network]) for time in times if time.network in accuracies]
    name = f"{engine} (accuracy in float32)" if engine == INT8 else engine
    (line,) = panel.plot([x for x, _ in points], [y for _, y in points], "o-", linewidth=0.8, label=name)
    for time in times:
        if time.network == EFFICIENT:
            at = {"transform": panel.get_xaxis_transform(), "color": line.get_color(), "clip_on": False}
            panel.plot([time.ms_per_image], [0], "^", markersize=9, label=f"{EFFICIENT}, {engine}", **at)


def _label_points(panel: Any, times: list[NetworkTime], accuracies: dict[str, float]) -> None:
    """Write the name of each network once, beside its slowest point."""
    for network, accuracy in accuracies.items():
        own = [time.ms_per_image for time in times if time.network == network]
        if own:
            panel.annotate(network, (max(own), accuracy), (6, 0), textcoords="offset points", fontsize=7, va="center")
