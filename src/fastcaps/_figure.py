"""Figures that notebooks show inline, also without pyplot."""

import io
from typing import final

import matplotlib.figure


@final
class Figure(matplotlib.figure.Figure):
    """A Matplotlib figure that notebooks show as a picture."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()
