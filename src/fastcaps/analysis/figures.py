"""Matplotlib figures, drawn without a display: each function takes arrays and returns a figure.

All share one style: color maps that color-blind readers can read (cividis for positive values, red and blue around zero
for correlations), blue for dynamic and orange for fast routing, and the same scale for panels that are compared. A
figure of 7.6 inches is as wide as the report's page. Figures are drawn in the colors that are keys of `_DARK`; on a
dark page, `page_svg` replaces them by its values.
"""

import functools
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize, PowerNorm
from matplotlib.patches import ConnectionPatch, FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from fastcaps._figure import Figure
from fastcaps._text import figure_label
from fastcaps.analysis.capsules import Lengths
from fastcaps.functional import get_normalization
from fastcaps.nn.config import CapsNetConfig

Array = NDArray[np.floating]
P = ParamSpec("P")

WIDTH = 7.6
DYNAMIC, FAST = "#0072b2", "#d55e00"
_INK, _FAINT, _LINE, _GRID, _SHADE = "#222222", "#6b6f73", "#c8c8c8", "#e6e6e6", "#eeeeee"
# Colors of text on colored areas; they stay the same on a dark page.
_ON_COLOR, _ON_LIGHT = "#fefefe", "#202020"
# Replacement of each color on a dark page.
_DARK = {
    _INK: "#e8e8e6",
    _FAINT: "#a7adb3",
    _LINE: "#4a5057",
    _GRID: "#30353a",
    _SHADE: "#33383e",
    DYNAMIC: "#56aee2",
    FAST: "#f28e45",
    "#ffffff": "#1c1f23",
}
_PAGE_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_COEFFICIENTS = "cividis"
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 8,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "svg.hashsalt": "fastcaps",
}
# Metadata that removes the date, so that the same numbers give the same file.
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def _styled(make: Callable[P, Figure]) -> Callable[P, Figure]:
    @functools.wraps(make)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(_STYLE):
            return make(*map(_escaped, args), **{name: _escaped(value) for name, value in kwargs.items()})  # type: ignore[arg-type]

    return styled


def _escaped(value: object) -> object:
    """Return names of classes and runs as labels; other arguments unchanged."""
    if isinstance(value, str):
        return figure_label(value)
    if isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value):
        return [figure_label(entry) for entry in value]
    if isinstance(value, Mapping):
        return {_escaped(key): entry for key, entry in value.items()}
    return value


def page_svg(figure: Figure) -> bytes:
    """Return a figure as SVG for a page: without a background, in the fonts of the page, with colors for dark pages."""
    buffer = io.StringIO()
    with mpl.rc_context({**_STYLE, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", dpi=160, transparent=True, metadata=_UNDATED["svg"])
    text = buffer.getvalue()
    for color in _DARK:
        text = text.replace(color, f"var(--c{color[1:]})")
    text = re.sub(r"(font: [^;'\"]*|font-family: )'[^;\"]*", rf"\1{_PAGE_FONTS}", text)
    light, dark = (
        "".join(f"--c{color[1:]}:{value};" for color, value in colors.items())
        for colors in ({color: color for color in _DARK}, _DARK)
    )
    rules = f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return text.replace("<defs>", f"<style>{rules}</style><defs>", 1).encode()


def figure_bytes(figure: Figure, kind: str = "png") -> bytes:
    """Return a figure as a file: ``"png"`` at twice the usual resolution, ``"svg"`` or ``"pdf"``."""
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format=kind, dpi=200, metadata=_UNDATED.get(kind))
    return buffer.getvalue()


@_styled
def confusion_figure(confusions: Mapping[str, NDArray[np.int64]], class_names: Sequence[str]) -> Figure:
    """Draw confusion matrices side by side: shares of each true class on one color scale, errors as numbers.

    Args:
        confusions: by title, the number of images of a true class (row) predicted as a class (column) ``(j j)``.
        class_names: names of the classes, in their order.
    """
    figure, panels = _square_panels(len(confusions), len(class_names))
    image = None
    for panel, (title, confusion) in zip(panels, confusions.items(), strict=True):
        totals = np.maximum(confusion.sum(1, keepdims=True), 1)
        shares = confusion / totals
        image = panel.imshow(shares, cmap=_COEFFICIENTS, norm=PowerNorm(0.3, 0, 1))
        errors = int(confusion.sum() - confusion.trace())
        panel.set_title(f"{title}: {count_of(errors, 'error')} in {int(confusion.sum()):,}")
        panel.set_xlabel("predicted")
        panel.set_ylabel("true")
        _class_ticks(panel, class_names)
        texts = np.where(confusion > 0, confusion.astype(str), "")
        _write_cells(panel, texts, light=shares < 0.15, ink=_ON_LIGHT)
    if image is not None:
        _colorbar(figure, image, list(panels), "share of the class's images")
    return figure


@_styled
def image_correlations_figure(correlations: Array, labels: NDArray[np.int64], class_names: Sequence[str]) -> Figure:
    """Draw correlations of single images' columns, the lower triangle, with each image's class along the edges.

    Args:
        correlations: ``(n n)``.
        labels: labels of the images, in the order in which they are drawn ``(n)``.
        class_names: names of the classes, in their order.
    """
    n = len(labels)
    figure = Figure(figsize=(4.3, 4.9), layout="constrained")
    panel = figure.subplots()
    hidden = np.triu(np.ones((n, n), bool), 1)
    image = panel.imshow(_masked(correlations, hidden), cmap=_correlation_map(), vmin=-1, vmax=1)
    panel.spines[:].set_visible(False)
    panel.set_xlabel("training image, in this order")
    panel.set_ylabel("training image")
    shown = np.unique(np.linspace(0, n - 1, min(n, 6)).round().astype(int))
    panel.set_xticks(shown, [f"{k + 1}" for k in shown])
    panel.set_yticks(shown, [f"{k + 1}" for k in shown])
    edges = np.flatnonzero(np.diff(labels)) + 0.5
    in_order = bool((np.diff(labels) >= 0).all()) and n > 1
    if in_order:
        bounds = np.concatenate([[-0.5], edges, [n - 0.5]])
        middles = (bounds[:-1] + bounds[1:]) / 2
        names = [class_names[int(labels[int(np.ceil(start))])] for start in bounds[:-1]]
        panel.set_xticks(middles, names, rotation=_rotation(names))
        panel.set_yticks(middles, names)
        panel.tick_params(length=0)
        for edge in edges:
            panel.plot([-0.5, edge, edge], [edge, edge, n - 0.5], color="white", linewidth=1.2)
        panel.set_xlabel("training images, sorted by class")
        panel.set_ylabel("class")
    panel.set_xlim(-0.5, n - 0.5)
    panel.set_ylim(n - 0.5, -0.5)
    _colorbar(figure, image, [panel], "correlation of ground-truth columns")
    return figure


@_styled
def class_correlations_figure(
    correlations: Array, class_names: Sequence[str], *, symmetric: bool, labels: tuple[str, str] = ("class", "class")
) -> Figure:
    """Draw mean correlations between classes with their values; only the lower triangle if they are symmetric.

    Args:
        correlations: correlations of rows with columns ``(j j)``.
        class_names: names of the classes, in their order.
        symmetric: whether the matrix is symmetric.
        labels: labels of the rows and of the columns.
    """
    figure, panels = _square_panels(1, len(class_names))
    panel = panels[0]
    hidden = np.triu(np.ones(correlations.shape, bool), 1) if symmetric else np.zeros(correlations.shape, bool)
    image = panel.imshow(_masked(correlations, hidden), cmap=_correlation_map(), vmin=-1, vmax=1)
    panel.spines[:].set_visible(False)
    panel.set_ylabel(labels[0])
    panel.set_xlabel(labels[1])
    _class_ticks(panel, class_names)
    texts = np.array([["–" if np.isnan(value) else _short(value) for value in row] for row in correlations])
    _write_cells(panel, np.where(hidden, "", texts), light=np.abs(np.nan_to_num(correlations)) > 0.6)
    _colorbar(figure, image, [panel], "mean correlation")
    return figure


@_styled
def tuning_figure(dynamic: Array, fast: Array, class_names: Sequence[str]) -> Figure:
    """Draw class-averaged output lengths: one panel per true class, dynamic beside fast.

    Args:
        dynamic: mean length for true class (row) and class capsule (column) ``(j j)``.
        fast: likewise.
        class_names: names of the classes, in their order.
    """
    classes = len(class_names)
    columns = min(5, classes)
    rows = -(-classes // columns)
    long_names = max(map(len, class_names)) > 2
    figure = Figure(figsize=(WIDTH, rows * (1.9 if long_names else 1.6) + 0.45), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    where = np.arange(classes)
    for k, panel in enumerate(panels.flat):
        if k >= classes:
            panel.set_axis_off()
            continue
        panel.axvspan(k - 0.4, k + 0.4, color=_SHADE, linewidth=0)
        panel.plot(where, dynamic[k], color=DYNAMIC, marker="o", markersize=3.2, linewidth=1.2, label="dynamic")
        panel.plot(where, fast[k], color=FAST, marker="s", markersize=2.8, linewidth=1.2, linestyle="--", label="fast")
        panel.set_title(f"true: {class_names[k]}")
        panel.set_ylim(-0.03, 1.03)
        panel.grid(axis="y")
        panel.set_axisbelow(True)
        _thin_ticks(panel, class_names, max_ticks=10)
        panel.tick_params(labelbottom=k + columns >= classes)
    figure.supylabel("mean length", fontsize=8)
    figure.supxlabel("class capsule, the longest is predicted", fontsize=8)
    handles, names = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2)
    return figure


@_styled
def histogram_figure(histograms: Mapping[str, tuple[Array, Array]]) -> Figure:
    """Draw histograms of the coefficients in each iteration, one panel per run, on the same axes.

    Args:
        histograms: by title, the edges ``(bins + 1)`` and the fraction of coefficients in each bin ``(r bins)``.
    """
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    panels = figure.subplots(1, len(histograms), sharey=True, squeeze=False)[0]
    low = min(edges[0] for edges, _ in histograms.values())
    high = max(edges[-1] for edges, _ in histograms.values())
    for panel, (title, (edges, shares)) in zip(panels, histograms.items(), strict=True):
        iterations = len(shares)
        # The last iteration has the strongest color and the widest line.
        colors = [(DYNAMIC, alpha) for alpha in np.linspace(0.35, 1, iterations)]
        for k, share in enumerate(shares):
            words = ": the start" if k == 0 else ": accumulated" if k == iterations - 1 else ""
            width = 1.0 + 0.8 * (k == iterations - 1)
            floor = np.where(share > 0, share, np.nan)
            if np.count_nonzero(share) == 1:
                middle = (edges[:-1] + edges[1:])[np.argmax(share)] / 2
                panel.plot(
                    [middle], [1.0], color=colors[k], marker="D", linestyle="", label=f"iteration {k + 1}{words}"
                )
            else:
                panel.stairs(
                    floor, edges, baseline=None, color=colors[k], linewidth=width, label=f"iteration {k + 1}{words}"
                )
        panel.set_yscale("log")
        panel.set_xlim(low - 0.02, high + 0.02)
        panel.set_title(title)
        panel.set_xlabel("routing coefficient")
        panel.grid(axis="y")
        panel.set_axisbelow(True)
        panel.legend(loc="upper center")
    panels[0].set_ylabel(f"share of coefficients, bins of {np.diff(next(iter(histograms.values()))[0])[0]:.2g}")
    panels[0].set_ylim(top=3)
    return figure


@_styled
def master_matrix_figure(values: Array, class_names: Sequence[str]) -> Figure:
    """Draw the master matrix ``(i j)`` as an image, classes as rows, with the spread of its values."""
    classes = len(class_names)
    figure = Figure(figsize=(WIDTH, max(2.4, 0.2 * classes + 0.9)), layout="constrained")
    panel, spread = figure.subplots(1, 2, width_ratios=(5, 1.5))
    image = panel.imshow(
        values.T, aspect="auto", cmap=_COEFFICIENTS, norm=_coefficient_norm(values), interpolation="nearest"
    )
    panel.set_xlabel("lower capsule, by position and then by type")
    panel.set_ylabel("class")
    panel.set_yticks(range(classes), class_names)
    figure.colorbar(image, ax=panel, label="master coefficient", location="top", aspect=40, shrink=0.6)
    counts, edges = np.histogram(values, 40)
    spread.stairs(counts / values.size, edges, fill=True, color=_FAINT)
    spread.set_title("their spread")
    spread.set_xlabel("master coefficient")
    spread.set_ylabel("share, in 40 bins")
    return figure


@_styled
def position_figure(maps: Array, mean_images: Array, class_names: Sequence[str]) -> Figure:
    """Draw the mean image of a class, and beside it its master coefficients by position.

    Args:
        maps: coefficients for each class, capsule type and position ``(j types height width)``.
        mean_images: mean image of each class ``(j c h w)``.
        class_names: names of the classes, in their order.
    """
    classes = len(class_names)
    columns = min(5, classes)
    rows = -(-classes // columns)
    means = maps.mean(1)  # (j, height, width)
    figure = Figure(figsize=(WIDTH, rows * 1.15 + 0.75), layout="constrained")
    panels = figure.subplots(rows, 3 * columns, squeeze=False, width_ratios=(1, 1, 0.2) * columns)
    norm = Normalize(float(means.min()), float(means.max()))
    drawn = None
    for panel in panels.flat:
        panel.set_axis_off()
    for k in range(classes):
        left, right = panels[k // columns, 3 * (k % columns) : 3 * (k % columns) + 2]
        _draw(left, mean_images[k])
        left.set_title(str(class_names[k]), loc="left")
        drawn = right.imshow(means[k], cmap=_COEFFICIENTS, norm=norm)
    if drawn is not None:
        figure.colorbar(
            drawn,
            ax=list(panels.flat),
            label="master coefficient, mean over the capsule types",
            location="bottom",
            aspect=50,
            shrink=0.6,
        )
    return figure


@_styled
def types_figure(maps: Array, class_names: Sequence[str]) -> Figure:
    """Draw the master matrix by position: classes as rows, capsule types as columns, a map of positions in each cell.

    Args:
        maps: coefficients for each class, capsule type and position ``(j types height width)``.
        class_names: names of the classes, in their order.
    """
    classes, types, height, width = maps.shape
    padded = np.pad(maps, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    mosaic = padded.transpose(0, 2, 1, 3).reshape(classes * (height + 1), types * (width + 1))[:-1, :-1]
    across = min(WIDTH - 1.0, 0.45 * types)
    down = across * mosaic.shape[0] / mosaic.shape[1]
    # Wide enough for the text below, even with few types.
    whole = max(across + 1.0 + 0.06 * max(map(len, class_names)), 4.6)
    figure = Figure(figsize=(whole, down + 0.75), layout="constrained")
    panel = figure.subplots()
    colors = mpl.colormaps[_COEFFICIENTS].with_extremes(bad="none")
    image = panel.imshow(mosaic, cmap=colors, norm=_coefficient_norm(maps), interpolation="nearest")
    panel.set_yticks(np.arange(classes) * (height + 1) + (height - 1) / 2, class_names)
    shown = np.unique([0, *range(3 if types <= 40 else 7, types, 4 if types <= 40 else 8)])
    panel.set_xticks(shown * (width + 1) + (width - 1) / 2, [str(k + 1) for k in shown])
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.set_xlabel(f"capsule type; each cell is the {height}×{width} grid of positions")
    panel.set_ylabel("class")
    figure.colorbar(image, ax=panel, label="master coefficient", location="right", aspect=25, shrink=0.9, pad=0.01)
    return figure


@_styled
def procedure_figure(
    containers: Array, normalized: Array, values: Array, counts: NDArray[np.int64], class_names: Sequence[str]
) -> Figure:
    """Draw how the containers of a run become its master matrix: sum, normalize, reduce (paper, section 5).

    Args:
        containers: sums of each class's coefficients ``(j i j)``.
        normalized: the same, divided by the class's count, rows normalized ``(j i j)``.
        values: the master coefficients ``(i j)``.
        counts: number of images per class ``(j)``.
        class_names: names of the classes, in their order.
    """
    classes = len(class_names)
    chosen = [0, 1, classes - 1] if classes > 2 else list(range(classes))
    figure = Figure(figsize=(WIDTH, 5.6))
    norm = _coefficient_norm(values)
    height = 0.2
    bottoms = [0.675, 0.415, 0.115] if classes > 3 else [0.675, 0.395, 0.115]
    result = figure.add_axes((0.725, 0.27, 0.2, 0.44))
    # End points of the arrows, chosen so that none crosses text: the left edge, the column itself, the lower edge.
    ends = [(0.0, 0.85), (1.5 / classes, 0.5), ((classes - 0.5) / classes, 0.0)]
    added = drawn = None
    for row, k in enumerate(chosen):
        sums = figure.add_axes((0.085, bottoms[row], 0.2, height))
        rows = figure.add_axes((0.395, bottoms[row], 0.2, height))
        added = sums.imshow(
            containers[k], aspect="auto", cmap=_COEFFICIENTS, vmin=0, vmax=float(counts.max()), interpolation="nearest"
        )
        drawn = rows.imshow(normalized[k], aspect="auto", cmap=_COEFFICIENTS, norm=norm, interpolation="nearest")
        sums.set_ylabel(f"images of {class_names[k]}")
        sums.set_title(
            f"{int(counts[k]):,} {'matrix' if counts[k] == 1 else 'matrices'} added up",
            fontsize=7,
            fontweight="normal",
            pad=3,
        )
        for panel in (sums, rows):
            panel.set_xticks([])
            panel.set_yticks([])
        _outline(rows, k, len(values))
        figure.add_artist(_link(sums, (1.03, 0.5), rows, (-0.03, 0.5), _INK))
        figure.add_artist(_link(rows, ((k + 0.5) / classes, 0.5), result, ends[row], FAST))
        if row == 1 and classes > 3:
            for panel in (sums, rows):
                panel.text(0.5, -0.13, "⋮", transform=panel.transAxes, ha="center", va="center", fontsize=11)
    result.imshow(values, aspect="auto", cmap=_COEFFICIENTS, norm=norm, interpolation="nearest")
    _class_ticks(result, class_names, rows=False)
    result.xaxis.tick_top()
    result.set_yticks([])
    result.set_ylabel(f"{len(values):,} lower capsules")
    result.yaxis.set_label_position("right")
    for k in chosen:
        _outline(result, k, len(values))
    for x, number, word in ((0.185, 1, "sum"), (0.495, 2, "normalize"), (0.825, 3, "reduce")):
        figure.text(x, 0.95, f"{number} · {word}", ha="center", fontsize=9.5, fontweight="bold")
    for x, image, words in ((0.085, added, "sum of coefficients"), (0.395, drawn, "coefficient")):
        if image is not None:
            _colorbar_below(figure, image, x, words)
    return figure


def _colorbar_below(figure: Figure, image: Any, x: float, words: str) -> None:
    bar = figure.colorbar(image, cax=figure.add_axes((x, 0.075, 0.2, 0.014)), orientation="horizontal")
    bar.set_label(words, fontsize=7.5, labelpad=1)
    bar.ax.locator_params(nbins=4)
    bar.ax.tick_params(labelsize=7)


@_styled
def examples_figure(
    images: Array,
    reconstructions: Array | None,
    lengths: Lengths,
    class_names: Sequence[str],
) -> Figure:
    """Draw output lengths of single images, dynamic beside fast, with the image and both reconstructions.

    Args:
        images: ``(n c h w)``.
        reconstructions: from the longest capsule of dynamic and of fast routing ``(n 2 c h w)``; not drawn when None.
        lengths: lengths of these images.
        class_names: names of the classes, in their order.
    """
    n = len(images)
    figure = Figure(figsize=(WIDTH, 1.02 * n + 0.75), layout="constrained")
    titles = ("image", "from dynamic", "from fast")[: 1 if reconstructions is None else 3]
    panels = figure.subplots(n, len(titles) + 1, squeeze=False, width_ratios=(*[1] * len(titles), 5.2))
    for row in range(n):
        drawn = () if reconstructions is None else reconstructions[row]
        for panel, picture, title in zip(panels[row], (images[row], *drawn), titles, strict=False):
            _draw(panel, picture)
            if row == 0:
                panel.set_title(title)
        bars = panels[row, -1]
        _bars(bars, lengths, row, class_names)
        bars.tick_params(labelbottom=row == n - 1)
        bars.set_ylabel(f"true: {class_names[int(lengths.labels[row])]}")
    _length_legend(figure, panels[0, -1])
    return figure


@_styled
def disagreement_figure(images: Array, lengths: Lengths, class_names: Sequence[str]) -> Figure:
    """Draw images that change class, with both sets of lengths.

    Args:
        images: ``(n c h w)``.
        lengths: lengths of these images.
        class_names: names of the classes, in their order.
    """
    n = len(images)
    columns = min(2, n)
    rows = -(-n // columns)
    figure = Figure(figsize=(WIDTH, 1.12 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, 2 * columns, squeeze=False, width_ratios=(1, 3.2) * columns)
    for panel in panels.flat:
        panel.set_axis_off()
    for k in range(n):
        picture, bars = panels[k // columns, 2 * (k % columns)], panels[k // columns, 2 * (k % columns) + 1]
        _draw(picture, images[k])
        bars.set_axis_on()
        _bars(bars, lengths, k, class_names)
        bars.tick_params(labelbottom=k + columns >= n)
        label, before, after = (
            class_names[int(number)]
            for number in (lengths.labels[k], lengths.dynamic[k].argmax(), lengths.fast[k].argmax())
        )
        bars.set_title(f"true {label}: dynamic {before}, fast {after}", loc="left", fontweight="normal")
    _length_legend(figure, panels[0, 1])
    return figure


@_styled
def variation_figure(
    pictures: Array, row_names: Sequence[str], offsets: Sequence[float], row_label: str, marked: str = "0"
) -> Figure:
    """Draw rows of reconstructions that change along the row.

    Args:
        pictures: ``(rows s c h w)``.
        row_names: names of the rows.
        offsets: value added to the entry of the capsule in each column ``(s)``.
        row_label: label of the rows.
        marked: label of the unchanged column.
    """
    rows, steps, _, height, width = pictures.shape
    # One image with a transparent pixel between its parts is sharper and smaller than hundreds of axes.
    colors = np.broadcast_to(np.clip(pictures, 0, 1), (rows, steps, 3, height, width))
    opaque = np.concatenate([colors, np.ones((rows, steps, 1, height, width))], 2)
    padded = np.pad(opaque, ((0, 0), (0, 0), (0, 0), (0, 1), (0, 1)))
    mosaic = padded.transpose(0, 3, 1, 4, 2).reshape(rows * (height + 1), steps * (width + 1), 4)[:-1, :-1]
    inches = 0.5 * steps + 0.9
    figure = Figure(figsize=(inches, (inches - 0.9) * mosaic.shape[0] / mosaic.shape[1] + 0.65), layout="constrained")
    panel = figure.subplots()
    panel.imshow(mosaic, interpolation="nearest")
    names = [marked if offset == 0 else f"{offset:+.2f}".replace("-", "−") for offset in offsets]
    panel.set_xticks(np.arange(steps) * (width + 1) + (width - 1) / 2, names, fontsize=7)
    panel.set_yticks(np.arange(rows) * (height + 1) + (height - 1) / 2, row_names, fontsize=7)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    panel.set_xlabel("added to the number")
    panel.set_ylabel(row_label)
    return figure


@_styled
def architecture_figure(config: CapsNetConfig) -> Figure:
    """Draw the network from its configuration, with its real shapes (the paper's first figure)."""
    figure = Figure(figsize=(WIDTH, 3.5))
    panel = figure.add_axes((0, 0, 1, 1))
    panel.set_xlim(0, 100)
    panel.set_ylim(0, 46)
    panel.set_axis_off()
    stem, grid = config.stem_size, config.grid
    c, j, e, d = config.channels, config.classes, config.class_dimension, config.lower_dimension
    largest = max(config.height, config.width)
    middle = 29.0

    def slab(x: float, size: tuple[int, int], depth: float, color: str, cells: tuple[int, int] | None = None) -> float:
        """Draw a block of feature maps; return how far it extends to the right."""
        h, w = (14.0 * max(side / largest, 0.18) for side in size)
        _block(panel, x, middle - h / 2, w * 0.55, h, depth, color, cells)
        return x + w * 0.55 + depth

    def words(x: float, name: str, shape: str, more: str = "") -> None:
        panel.text(x, 43.2, name, ha="center", va="center", fontsize=9, fontweight="bold")
        panel.text(x, 15.2, shape, ha="center", va="center", fontsize=8)
        panel.text(x, 12.2, more, ha="center", va="center", fontsize=7, color=_FAINT)

    slab(3.2, (config.height, config.width), min(0.5 * c, 1.5), "#9a9a9a")
    words(8.2, "image", f"{config.height}×{config.width}×{c}")
    slab(23.5, stem, 7.0, "#56b4e9")
    words(29.5, "stem", f"{stem[0]}×{stem[1]}×{config.stem_channels}", "ReLU")
    slab(45.5, grid, 9.0, DYNAMIC, grid)
    total = f"{grid[0]}×{grid[1]}×{config.capsule_types} = {config.lower_capsules:,} capsules of {d}"
    words(52, "PrimaryCaps", total, "squash")
    _block(panel, 74.0, middle - 7.0, 7.5, 14.0, 0.0, FAST, (min(j, 12), min(e, 8)))
    words(77.8, "class capsules", f"{j}×{e}", "length = how sure")
    before = f"\nafter {len(config.stem_layers)} more" if config.stem_layers else ""
    for x, kernel, stride, more in (
        (15.3, config.stem_kernel, config.stem_stride, before),
        (39.0, config.primary_kernel, config.primary_stride, ""),
    ):
        panel.add_patch(_plain_arrow((x - 2.0, middle), (x + 4.0, middle)))
        panel.text(x + 0.8, middle + 2.0, f"{kernel}×{kernel}", ha="center", fontsize=7, color=_FAINT)
        panel.text(x + 0.8, middle - 2.4, f"stride {stride}{more}", ha="center", va="top", fontsize=7, color=_FAINT)
    # Both variants of routing from lower capsules to class capsules.
    panel.add_patch(_plain_arrow((61.0, middle + 4.4), (73.0, middle + 4.4), DYNAMIC))
    panel.add_patch(_plain_arrow((61.0, middle - 4.4), (73.0, middle - 4.4), FAST))
    rule = get_normalization(config.normalization).title
    panel.text(66.8, middle + 7.6, "dynamic", ha="center", fontsize=7.5, color=DYNAMIC, fontweight="bold")
    panel.text(66.8, middle + 5.4, f"{config.iterations} × {rule}", ha="center", fontsize=7, color=DYNAMIC)
    panel.text(66.8, middle - 7.4, "fast", ha="center", fontsize=7.5, color=FAST, fontweight="bold")
    panel.text(66.8, middle - 9.6, "one product", ha="center", fontsize=7, color=FAST)
    panel.add_patch(_plain_arrow((83.0, middle), (88.0, middle)))
    panel.text(89.0, middle, "class of\nthe longest", ha="left", va="center", fontsize=8)
    # The decoder is used in training only.
    layers = [f"{j}×{e} masked", *map(str, config.decoder), f"{config.height}×{config.width}×{c}"]
    shown = " → ".join(layers)
    panel.add_patch(
        FancyBboxPatch((30.0, 1.6), 66.0, 5.0, boxstyle="round,pad=0.2,rounding_size=0.8", fc=_SHADE, ec=_LINE)
    )
    panel.text(63.0, 4.1, f"decoder, in training only: {shown}", ha="center", va="center", fontsize=7.5)
    panel.add_patch(_plain_arrow((77.8, 10.4), (77.8, 7.4), _FAINT))
    return figure


def _block(
    panel: Axes, x: float, y: float, w: float, h: float, depth: float, color: str, cells: tuple[int, int] | None
) -> None:
    """Draw a box seen from the front and a little from the right above, its front divided into cells."""
    lift = depth * 0.45
    shades = {"front": 0.55, "top": 0.35, "side": 0.8}
    faces = {
        "top": [(x, y + h), (x + depth, y + h + lift), (x + w + depth, y + h + lift), (x + w, y + h)],
        "side": [(x + w, y), (x + w + depth, y + lift), (x + w + depth, y + h + lift), (x + w, y + h)],
        "front": [(x, y), (x + w, y), (x + w, y + h), (x, y + h)],
    }
    for name, corners in faces.items():
        if depth or name == "front":
            panel.add_patch(
                Polygon(corners, closed=True, facecolor=_mixed(color, shades[name]), edgecolor="white", linewidth=0.8)
            )
    if cells is not None:
        for k in range(1, cells[0]):
            panel.plot([x, x + w], [y + h * k / cells[0]] * 2, color="white", linewidth=0.6)
        for k in range(1, cells[1]):
            panel.plot([x + w * k / cells[1]] * 2, [y, y + h], color="white", linewidth=0.6)


def _mixed(color: str, part: float) -> tuple[float, float, float]:
    """Return a color mixed with white."""
    r, g, b = (1 - part * (1 - channel) for channel in mpl.colors.to_rgb(color))
    return r, g, b


def _plain_arrow(start: tuple[float, float], end: tuple[float, float], color: str = _INK) -> FancyArrowPatch:
    return FancyArrowPatch(start, end, arrowstyle="-|>", color=color, linewidth=1.1, mutation_scale=9, shrinkA=0)


def _link(left: Axes, start: tuple[float, float], right: Axes, end: tuple[float, float], color: str) -> ConnectionPatch:
    """Draw an arrow from a place in one panel to a place in another."""
    return ConnectionPatch(
        start,
        end,
        coordsA=left.transAxes,
        coordsB=right.transAxes,
        arrowstyle="-|>",
        color=color,
        linewidth=1.1,
        mutation_scale=9,
    )


def _outline(panel: Axes, column: int, height: int) -> None:
    panel.add_patch(
        Rectangle((column - 0.5, -0.5), 1, height, fill=False, edgecolor=FAST, linewidth=1.6, clip_on=False)
    )


def _bars(panel: Axes, lengths: Lengths, number: int, class_names: Sequence[str]) -> None:
    """Draw both sets of lengths of one image, the true class shaded."""
    where = np.arange(len(class_names))
    truth = int(lengths.labels[number])
    panel.axvspan(truth - 0.5, truth + 0.5, color=_SHADE, linewidth=0)
    panel.bar(where - 0.2, lengths.dynamic[number], 0.38, color=DYNAMIC, label="dynamic")
    panel.bar(where + 0.2, lengths.fast[number], 0.38, color=FAST, label="fast")
    panel.set_ylim(0, 1)
    panel.set_yticks([0, 0.5, 1], ["0", "", "1"])
    panel.set_xlim(-0.6, len(class_names) - 0.4)
    panel.grid(axis="y")
    panel.set_axisbelow(True)
    _thin_ticks(panel, class_names, max_ticks=20)


def _length_legend(figure: Figure, panel: Axes) -> None:
    handles, names = panel.get_legend_handles_labels()
    figure.legend(handles, [f"length, {name}" for name in names], loc="outside upper right", ncols=2)


def _draw(panel: Axes, picture: Array) -> None:
    """Draw an image ``(c h w)``, without axes."""
    panel.imshow(_colors(picture.transpose(1, 2, 0)), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    panel.set_axis_off()


def _colors(picture: Array) -> Array:
    """Return a gray image ``(h w 1)`` as ``(h w)`` for a gray map; a color image as it is."""
    clipped = np.clip(picture, 0, 1)
    return clipped[..., 0] if clipped.shape[-1] == 1 else clipped


def _square_panels(count: int, classes: int) -> tuple[Figure, list[Axes]]:
    # A heat map of ten classes fits on the screen of a phone.
    side = max(3.7, 0.4 * classes) if count > 1 else max(4.3, 0.42 * classes)
    figure = Figure(figsize=(side * count, side + 0.6), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _colorbar(figure: Figure, image: Any, panels: list[Axes], label: str) -> None:
    bar = figure.colorbar(image, ax=panels, label=label, location="bottom", aspect=40, shrink=0.7, pad=0.02)
    bar.outline.set_visible(False)
    if isinstance(image.norm, PowerNorm):
        bar.set_ticks([0, 0.01, 0.1, 0.5, 1])
    bar.formatter = FuncFormatter(lambda value, _: f"{value:z.3g}".replace("-", "−"))
    bar.update_ticks()


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 error``, ``1,204 errors``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _short(value: float) -> str:
    """Return a number with two decimals, with a typographic minus and without negative zero."""
    return f"{value:z.2f}".replace("-", "−")


def _correlation_map() -> mpl.colors.Colormap:
    """Return a color map: red for positive, blue for negative, transparent around zero to fit light and dark pages."""
    strength = np.linspace(-1, 1, 255)
    colors = np.array([mpl.colors.to_rgba("#b2182b" if value > 0 else "#2166ac", abs(value)) for value in strength])
    return ListedColormap(colors).with_extremes(bad="none")


def _coefficient_norm(values: Array) -> Normalize:
    """Return a scale from the smallest coefficient, or 0 if it is positive, to the largest."""
    return Normalize(min(0.0, float(values.min())), float(values.max()))


def _masked(values: Array, hidden: NDArray[np.bool_]) -> np.ma.MaskedArray[Any, Any]:
    return np.ma.masked_array(values, hidden | ~np.isfinite(values))


def _rotation(names: Sequence[str]) -> int:
    return 90 if max(map(len, names)) > 2 else 0


def _class_ticks(panel: Axes, names: Sequence[str], *, rows: bool = True) -> None:
    panel.set_xticks(range(len(names)), names, rotation=_rotation(names))
    panel.tick_params(length=0)
    if rows:
        panel.set_yticks(range(len(names)), names)


def _thin_ticks(panel: Axes, names: Sequence[str], max_ticks: int) -> None:
    """Write at most ``max_ticks`` class names below a panel."""
    step = -(-len(names) // max_ticks)
    shown = range(0, len(names), step)
    panel.set_xticks(list(shown), [names[k] for k in shown], rotation=_rotation(names))
    panel.tick_params(axis="x", length=0)


def _write_cells(panel: Axes, texts: NDArray[np.str_], light: NDArray[np.bool_], ink: str = _INK) -> None:
    """Write numbers into the cells of a matrix, unless it has too many cells."""
    if len(texts) > 20:
        return
    for (row, column), text in _cells(texts):
        color = _ON_COLOR if light[row, column] else ink
        panel.text(column, row, text, ha="center", va="center", fontsize=7.5 if len(texts) <= 12 else 6, color=color)


def _cells(texts: NDArray[np.str_]) -> Iterator[tuple[tuple[int, int], str]]:
    for row, column in np.ndindex(*texts.shape):
        if texts[row, column]:
            yield (row, column), str(texts[row, column])
