"""Figures with matplotlib, without a screen."""

import io
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray


def confusion_figure(confusions: dict[str, NDArray[np.int64]], class_names: Sequence[str]) -> Figure:
    """Confusion matrices side by side: shares of each true class on one colour scale, errors as numbers.

    Args:
        confusions: for each title the images of class (row) taken for class (column) ``(j j)``.
        class_names: in the order of the classes.
    """
    classes = len(class_names)
    side = max(4.2, 0.45 * classes)
    figure = Figure(figsize=(side * len(confusions) + 0.8, side + 0.6), layout="constrained")
    panels = figure.subplots(1, len(confusions), squeeze=False)[0]
    image = None
    for panel, (title, confusion) in zip(panels, confusions.items(), strict=True):
        totals = np.maximum(confusion.sum(1, keepdims=True), 1)
        image = panel.imshow(confusion / totals, cmap="cividis", norm=mpl.colors.PowerNorm(0.3, 0, 1))
        errors = int(confusion.sum() - confusion.trace())
        panel.set_title(f"{title}: {errors} errors of {int(confusion.sum())}")
        panel.set_xlabel("taken for")
        panel.set_ylabel("is")
        panel.set_xticks(range(classes), class_names, rotation=90 if max(map(len, class_names)) > 2 else 0)
        panel.set_yticks(range(classes), class_names)
        if classes <= 20:
            for row in range(classes):
                for column in range(classes):
                    count = int(confusion[row, column])
                    if count:
                        light = confusion[row, column] / totals[row, 0] < 0.15
                        panel.text(
                            column, row, count, ha="center", va="center", fontsize=7, color="w" if light else "k"
                        )
    if image is not None:
        figure.colorbar(image, ax=list(panels), label="share of the class's images", shrink=0.8)
    return figure


def png_bytes(figure: Figure) -> bytes:
    """A figure as a PNG, at twice the usual resolution."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    return buffer.getvalue()
