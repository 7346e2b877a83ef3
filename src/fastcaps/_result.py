"""Base classes of frozen dataclasses that are stored as JSON, and of results of workflows, which show tables."""

import dataclasses
import html
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

import numpy as np

from fastcaps._json import convert_json, read_json
from fastcaps._text import printable


@dataclass(frozen=True, repr=False)
class Table:
    """A table for display: its first column is aligned left, all others right.

    Attributes:
        title: line above the table.
        columns: names of the columns.
        rows: texts, one per column.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_text(self, width: int | None = 120) -> str:
        """Return the table as text; when ``width`` is None, it is as wide as the terminal."""
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable()
        for number, column in enumerate(self.columns):
            drawn.add_column(Text(printable(column)), justify="right" if number else "left")
        for row in self.rows:
            drawn.add_row(*(Text(printable(cell)) for cell in row))
        # In a notebook a console would show the table by itself, before the text is returned.
        console = Console(width=width, file=io.StringIO(), record=True, force_jupyter=False)
        console.print(drawn)
        return "\n".join([printable(self.title), *(line.rstrip() for line in console.export_text().splitlines())])

    def to_markdown(self) -> str:
        """Return a Markdown table without its title."""

        def line(cells: Sequence[str]) -> str:
            escaped = [printable(cell).replace("|", r"\|") for cell in cells]
            return f"| {' | '.join(escaped)} |\n"

        return "".join(map(line, (self.columns, ["---"] * len(self.columns), *self.rows)))

    def to_html(self) -> str:
        """Return an HTML table; every text is escaped."""

        def cells(texts: Sequence[str], tag: str) -> str:
            return "".join(
                f'<{tag} style="text-align: {"right" if number else "left"}">{html.escape(printable(text))}</{tag}>'
                for number, text in enumerate(texts)
            )

        head = f"<thead><tr>{cells(self.columns, 'th')}</tr></thead>"
        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in self.rows)
        style = 'style="text-align: left; white-space: nowrap"'
        caption = f"<caption {style}>{html.escape(printable(self.title))}</caption>"
        return f"<table>{caption}{head}<tbody>{body}</tbody></table>"

    def __repr__(self) -> str:
        """Return the table as text."""
        return self.to_text()

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        return self.to_html()


class Record:
    """Base class of dataclasses that are written to and read from JSON.

    `to_dict` returns plain values; `from_dict` and `load` check every field that they read. See `json_field` for fields
    that are stored in another way.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return _fields_as_json(self)

    @classmethod
    def from_dict(cls, values: Any, source: str | None = None) -> Self:
        """Return the object from the values of `to_dict`, of this or an earlier version; unknown entries are ignored.

        Args:
            values: the entries.
            source: their name in error messages, such as a file name.

        Raises:
            ValueError: a field is missing or has another type; the message names it.
        """
        source = source or f"the {cls.__name__}"
        return convert_json(_as_fields(cls, values, source), cls, source)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a JSON file with the values of `to_dict`.

        Raises:
            ValueError: the file is damaged; the message names the file and the field.
        """
        return cls.from_dict(read_json(Path(path), Any), str(path))

    @classmethod
    def stored(cls, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Convert entries of an earlier version to this one; raise ValueError if they can't be read."""
        return values


class Result(Record):
    """Base of frozen dataclasses that a workflow returns.

    A subclass defines `tables` and may define `sentences`. ``repr`` and notebooks show both.
    """

    def tables(self) -> Sequence[Table]:
        """Return the tables to show."""
        raise NotImplementedError

    def sentences(self) -> Sequence[str]:
        """Return the sentences to show below the tables."""
        return ()

    def __repr__(self) -> str:
        """Return the tables and sentences as text."""
        return "\n".join(
            [*(table.to_text() for table in self.tables()), *(printable(words, "\n") for words in self.sentences())]
        )

    def _repr_html_(self) -> str:
        """Return the tables and sentences as HTML, for notebooks."""
        paragraphs = (f"<p>{html.escape(printable(words))}</p>" for words in self.sentences())
        return "".join([*(table.to_html() for table in self.tables()), *paragraphs])


class ShortRepr:
    """Base of dataclasses with many fields: ``repr`` shows those that differ from their defaults."""

    def __repr__(self) -> str:
        """Return the class with the fields that differ from their defaults."""
        changed = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            default = field.default_factory() if callable(field.default_factory) else field.default
            value = getattr(self, field.name)
            if value != default and value != self.derived().get(field.name):
                changed.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(changed)})"

    def derived(self) -> dict[str, Any]:
        """Return the default values of fields that are derived from others."""
        return {}


def plain(value: Any) -> Any:
    """Return a value for JSON: dataclasses become dictionaries, arrays and tuples lists, paths texts.

    Numbers that are not finite, which JSON doesn't have, become None.
    """
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields_as_json(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple | range):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def without_none(**values: Any) -> dict[str, Any]:
    """Return only the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def json_field(
    *,
    default_factory: Callable[[], Any] | None = None,
    omit_none: bool = False,
    omit: bool = False,
    flat: bool = False,
) -> Any:
    """Declare a field of a record that may be missing in JSON.

    Args:
        default_factory: returns the value of a missing field; None by default.
        omit_none: whether the field is omitted from JSON if its value is None.
        omit: whether the field is always omitted from JSON.
        flat: whether the entries of the value, a dictionary or a record, replace the field in JSON.
    """
    metadata = {"omit_none": omit_none, "omit": omit, "flat": flat}
    if default_factory is None:
        return dataclasses.field(default=None, metadata=metadata)
    return dataclasses.field(default_factory=default_factory, metadata=metadata)


def json_key(field: dataclasses.Field[Any]) -> str:
    """Return the name of a field in JSON: its own, or ``key`` of its metadata if that is not a Python name."""
    return field.metadata.get("key") or field.name


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested entries under names such as ``files.train``."""
    entries: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, Mapping)
        entries |= flattened(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return entries


def _fields_as_json(value: Any) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        entry = getattr(value, field.name)
        if field.metadata.get("omit") or (entry is None and field.metadata.get("omit_none")):
            continue
        entries |= plain(entry) if field.metadata.get("flat") else {json_key(field): plain(entry)}
    return entries


def _as_fields(kind: Any, value: Any, source: str) -> Any:
    """Return JSON with the names and the nesting of the fields of a type: the inverse of `_fields_as_json`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        options = [option for option in args if option is not NoneType]
        return _as_fields(options[0], value, source) if value is not None and len(options) == 1 else value
    if kind is float and value is None:
        return math.nan
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _entries_as_fields(kind, value, source)
    if isinstance(value, dict) and origin in (dict, Mapping):
        return {name: _as_fields(args[1], entry, source) for name, entry in value.items()}
    if isinstance(value, list | tuple) and (origin in (list, Sequence) or (origin is tuple and args[1:] == (...,))):
        return [_as_fields(args[0], entry, source) for entry in value]
    return value


def _entries_as_fields(kind: Any, values: dict[str, Any], source: str) -> dict[str, Any]:
    if issubclass(kind, Record):
        values = kind.stored(values, source)
    types, fields = _field_types(kind), dataclasses.fields(kind)
    flat = {field.name: set(_field_types(types[field.name])) for field in fields if field.metadata.get("flat")}
    own = {json_key(field): field.name for field in fields if field.name not in flat}
    entries = {name: values[key] for key, name in own.items() if key in values}
    for name, known in flat.items():
        others = set(own).union(*(names for other, names in flat.items() if other != name)) - (known - set(own))
        entries[name] = {key: value for key, value in values.items() if key not in others}
    return {name: _as_fields(types[name], value, source) for name, value in entries.items()}


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name; empty for another type."""
    if not dataclasses.is_dataclass(kind):
        return {}
    types = get_type_hints(kind)
    return {field.name: types[field.name] for field in dataclasses.fields(kind)}
