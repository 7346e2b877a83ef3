"""What workflows return: frozen dataclasses that become JSON, are read from it, and show themselves as a table."""

import dataclasses
import functools
import html
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

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

    A subclass defines `tables`. ``repr`` and notebooks show them. `to_dict` gives plain values for JSON; `from_dict`
    and `load` check every field that they read. See `json_field` for fields that are stored in another way.
    """

    def tables(self) -> Sequence[Table]:
        """Return what a person wants to see first."""
        raise NotImplementedError

    def sentences(self) -> Sequence[str]:
        """Return what the command line prints below the tables."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON."""
        return _fields_as_json(self)

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return what `to_dict` gave as an object; entries that are no fields are ignored.

        Raises:
            ValueError: a field is missing or has another type; the message names it.
        """
        result: Self = _parse_fields(cls, values, "")
        return result

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a JSON file that holds what `to_dict` gave.

        Raises:
            ValueError: the file is damaged; the message names the file and the field.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_bytes()))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not JSON: {error}") from None
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None

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
        return _fields_as_json(value)
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


def json_field(
    *,
    default_factory: Any = dataclasses.MISSING,
    key: str | None = None,
    omit_none: bool = False,
    omit: bool = False,
) -> Any:
    """Declare a field of a result that JSON has in another form.

    Args:
        default_factory: gives the value where there is none; None by default for fields that may be omitted.
        key: name in JSON, where that is no Python name.
        omit_none: whether JSON has no such entry where the value is None.
        omit: whether JSON never has it.
    """
    metadata = {"key": key, "omit_none": omit_none, "omit": omit}
    if default_factory is dataclasses.MISSING and (omit_none or omit):
        return dataclasses.field(default=None, metadata=metadata)
    return dataclasses.field(default_factory=default_factory, metadata=metadata)


def json_key(field: dataclasses.Field[Any]) -> str:
    """Return the name that a field has in JSON."""
    return field.metadata.get("key") or field.name


def _fields_as_json(value: Any) -> dict[str, Any]:
    return {
        json_key(field): plain(entry)
        for field in dataclasses.fields(value)
        if not field.metadata.get("omit")
        and not ((entry := getattr(value, field.name)) is None and field.metadata.get("omit_none"))
    }


def _parse_fields(cls: Any, values: Any, place: str) -> Any:
    _expect(isinstance(values, dict), values, place or "the whole", "an object")
    hints, arguments = _hints(cls), {}
    for field in dataclasses.fields(cls):
        key = json_key(field)
        where = f"{place}.{key}" if place else key
        if field.metadata.get("omit"):
            continue
        if key in values:
            arguments[field.name] = _parse(hints[field.name], values[key], where)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} is missing")
    return cls(**arguments)


_hints = functools.cache(get_type_hints)
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _parse(hint: Any, value: Any, place: str) -> Any:
    """Return a JSON value as its type hint says, or refuse it by its place in the file."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None if value is None else _parse(next(one for one in arguments if one is not NoneType), value, place)
    if dataclasses.is_dataclass(hint):
        return _parse_fields(hint, value, place)
    if origin is tuple:
        _expect(isinstance(value, list), value, place, "a list")
        hints = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        _expect(len(hints) == len(value), value, place, f"a list of {len(hints)}")
        return tuple(
            _parse(one, entry, f"{place}.{k}") for k, (one, entry) in enumerate(zip(hints, value, strict=True))
        )
    if origin in (dict, Mapping):
        _expect(isinstance(value, dict), value, place, "an object")
        return {key: _parse(arguments[1], entry, f"{place}.{key}") for key, entry in value.items()}
    if origin is np.ndarray:
        return _parse_array(get_args(arguments[1])[0], value, place)
    if origin is Literal:
        _expect(value in arguments, value, place, f"one of {', '.join(map(str, arguments))}")
    elif hint is float:
        _expect(isinstance(value, int | float) and not isinstance(value, bool), value, place, _WORDS[float])
        return float(value)
    elif hint in _WORDS:
        right = isinstance(value, hint) and isinstance(value, bool) == (hint is bool)
        _expect(right, value, place, _WORDS[hint])
    return value


def _parse_array(kind: type[np.generic], value: Any, place: str) -> Any:
    try:
        array = np.array(value, np.float64)  # None becomes NaN
    except (TypeError, ValueError):
        array = np.array(np.nan)
    whole = np.issubdtype(kind, np.integer)
    _expect(array.ndim > 0 and not (whole and np.isnan(array).any()), value, place, "a list of numbers of one shape")
    return array.astype(kind)


def _expect(holds: bool, value: Any, place: str, expected: str) -> None:
    if not holds:
        text = repr(value)
        raise ValueError(f"{place} is {text if len(text) <= 60 else text[:57] + '...'}, expected {expected}")
