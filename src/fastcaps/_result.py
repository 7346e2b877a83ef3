"""What workflows return: frozen dataclasses that become JSON, and show themselves as a table."""

import dataclasses
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Table:
    """A table for people: its first column is aligned left, all others right.

    Attributes:
        title: line above the table.
        columns: names of the columns.
        rows: texts, one per column.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_text(self, width: int | None = 120) -> str:
        """Return the table drawn with characters; ``width`` None takes that of the terminal."""
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable()
        for number, column in enumerate(self.columns):
            drawn.add_column(Text(column), justify="right" if number else "left")
        for row in self.rows:
            drawn.add_row(*(Text(cell) for cell in row))
        console = Console(width=width, file=io.StringIO(), record=True)
        console.print(drawn)
        return "\n".join([self.title, *(line.rstrip() for line in console.export_text().splitlines())])

    def to_html(self) -> str:
        """Return an HTML table; every text is escaped."""

        def cells(texts: Sequence[str], tag: str) -> str:
            return "".join(
                f'<{tag} style="text-align: {"right" if number else "left"}">{html.escape(text)}</{tag}>'
                for number, text in enumerate(texts)
            )

        head = f"<thead><tr>{cells(self.columns, 'th')}</tr></thead>"
        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in self.rows)
        return f"<table><caption>{html.escape(self.title)}</caption>{head}<tbody>{body}</tbody></table>"


class Result:
    """Base of frozen dataclasses that a workflow returns.

    A subclass defines `tables`. ``repr`` and notebooks show them; `to_dict` gives plain values for JSON.
    """

    def tables(self) -> Sequence[Table]:
        """Return what a person wants to see first."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return {
            field.name: plain(getattr(self, field.name))
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
        }

    def __repr__(self) -> str:
        """Return the tables as text."""
        return "\n".join(table.to_text() for table in self.tables())

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for notebooks."""
        return "".join(table.to_html() for table in self.tables())


def plain(value: Any) -> Any:
    """Return a value for JSON: dataclasses become dictionaries, arrays and tuples lists, paths texts, NaN None."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | range):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and value != value:  # NaN
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
