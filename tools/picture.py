"""Draw the picture of the README, light and dark, from the bundled MNIST network: ``python -m tools.picture``.

Left: the coefficients of one image in the three iterations of dynamic routing. Right: the master coefficients, which
replace them.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch
from numpy.typing import NDArray

from fastcaps._figure import Figure
from fastcaps._files import write_atomically
from fastcaps.analysis.figures import figure_bytes
from fastcaps.functional import prediction_vectors, routing_trace
from fastcaps.training import Run

IMAGES = Path(__file__).parent.parent / "docs" / "images"
COLORS = {"light": ("#ffffff", "#1f2328", "#0072b2", "#d55e00"), "dark": ("#0d1117", "#e6edf3", "#56aee2", "#f28e45")}
# Number of capsules whose coefficients are averaged to one row.
_AVERAGED = 24


def main() -> None:
    """Draw both variants."""
    run = Run.open("mnist")
    model, test = run.model(), run.data(test_only=True).test
    image = test.images(torch.tensor([0]))
    with torch.no_grad():
        votes = prediction_vectors(model.lower_capsules(image), model.routing.weight)
        trace = routing_trace(votes, model.config.iterations)[0].numpy()  # (r i j)
    master = run.master().values.numpy()  # (i j)
    label = int(test.labels[0])
    files = {
        IMAGES / f"routing-{name}.png": figure_bytes(picture(image[0, 0].numpy(), label, trace, master, colors))
        for name, colors in COLORS.items()
    }
    write_atomically(files)


def picture(
    image: NDArray[np.uint8],
    label: int,
    trace: NDArray[np.float32],
    master: NDArray[np.float64],
    colors: tuple[str, str, str, str],
) -> Figure:
    """Return the loop beside the matrix.

    Args:
        image: pixels ``(h w)``.
        label: its class.
        trace: coefficients of every iteration ``(r i j)``.
        master: coefficients ``(i j)``.
        colors: colors of background, text, loop and matrix.
    """
    background, ink, loop, matrix = colors
    with mpl.rc_context({"text.color": ink, "axes.edgecolor": ink, "font.size": 9}):
        figure = Figure(figsize=(9, 3.1), facecolor=background)
        panel = figure.add_axes((0.02, 0.30, 0.12, 0.36))
        panel.imshow(image, cmap="gray")
        _plain(panel, f"one image, a {label}")
        for number, coefficients in enumerate(trace):
            panel = figure.add_axes((0.20 + 0.125 * number, 0.14, 0.09, 0.62))
            _draw(panel, coefficients, f"iteration {number + 1}")
        panel = figure.add_axes((0.80, 0.14, 0.09, 0.62))
        _draw(panel, master, "master coefficients")
        figure.text(0.365, 0.93, "Dynamic routing: a loop for every image", ha="center", weight="bold", color=loop)
        figure.text(0.845, 0.93, "fastcaps: one matrix for all", ha="center", weight="bold", color=matrix)
        for start in (0.295, 0.42):
            _arrow(figure, (start, 0.45), (start + 0.025, 0.45), loop)
        _arrow(figure, (0.50, 0.10), (0.24, 0.10), loop, "arc3,rad=-0.18")
        _arrow(figure, (0.60, 0.45), (0.76, 0.45), matrix)
        figure.text(0.68, 0.51, "accumulate over the\ntraining images, once", ha="center", va="bottom", color=matrix)
        figure.text(0.68, 0.38, "fold into the weights", ha="center", va="top", color=matrix)
        figure.text(0.845, 0.05, "rows: lower capsules, columns: classes 0 … 9", fontsize=7.5, ha="center")
    return figure


def _draw(panel: Axes, coefficients: NDArray[np.floating], title: str) -> None:
    """Draw coefficients ``(i j)``, averaged over neighboring capsules."""
    rows = coefficients.reshape(-1, _AVERAGED, coefficients.shape[1]).mean(1)
    panel.imshow(rows, cmap="cividis", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    _plain(panel, title)


def _plain(panel: Axes, title: str) -> None:
    panel.set_xticks([])
    panel.set_yticks([])
    panel.set_title(title, fontsize=8.5)


def _arrow(
    figure: Figure, start: tuple[float, float], end: tuple[float, float], color: str, bend: str = "arc3"
) -> None:
    arrow = FancyArrowPatch(
        start, end, transform=figure.transFigure, color=color, arrowstyle="-|>", mutation_scale=12, connectionstyle=bend
    )
    figure.add_artist(arrow)


if __name__ == "__main__":
    main()
