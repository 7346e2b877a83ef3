"""HTML pages that open from disk, rendered from the templates of ``templates/``.

Every text is escaped. A template that gets `Traced` values can't show a number without its location in the JSON file.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcaps._result import json_key, plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render(template: str, /, **values: Any) -> str:
    """Return a page from a template of ``templates/`` and its values."""
    return _environment().get_template(template).render(values)


class Traced:
    """A value of a result with its location in JSON, such as ``evaluation/images``.

    Fields, entries and items are traced, too. Texts can be shown as they are, numbers only by `number`.
    """

    def __init__(self, value: Any, path: str = "") -> None:
        self._value = plain(value) if isinstance(value, np.generic) else value
        self._path = path

    def __getattr__(self, name: str) -> "Traced":
        """Return a field of a dataclass, or an entry of a mapping."""
        if isinstance(self._value, Mapping) and name in self._value:
            return self[name]
        for field in dataclasses.fields(self._value) if dataclasses.is_dataclass(self._value) else ():
            if field.name == name and not field.metadata.get("omit"):
                return Traced(getattr(self._value, name), self._join(json_key(field)))
        raise AttributeError(f"{self._path} has no field {name!r}")

    def __getitem__(self, key: Any) -> "Traced":
        """Return an entry of a mapping or an item of a sequence; negative numbers count from its end."""
        if isinstance(key, int) and key < 0:
            key += len(self)
        return Traced(self._value[key], self._join(key))

    def items(self) -> list[tuple[str, "Traced"]]:
        """Return the entries of a mapping."""
        return [(key, self[key]) for key in self._value]

    def __iter__(self) -> Iterator["Traced"]:
        """Iterate over the items of a sequence."""
        return (self[k] for k in range(len(self)))

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._value)

    def __bool__(self) -> bool:
        """Return the truth of the value."""
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        """Compare the value."""
        return bool(self._value == (other._value if isinstance(other, Traced) else other))

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        """Return a text; raise for a number."""
        if not isinstance(self._value, str):
            raise TypeError(f"{self._path} is {self._value!r}, expected a text: show numbers with the number filter")
        return self._value

    def _join(self, key: object) -> str:
        return f"{self._path}/{key}" if self._path else str(key)


def number(traced: Traced, form: str = "") -> "Markup":
    """Return a traced number as formatted HTML, with its location in JSON."""
    from markupsafe import Markup

    value, path = traced._value, traced._path
    if value is None:
        return Markup("not defined")
    text = format(value, form).replace("-", "−")
    return Markup('<data value="{}" data-path="{}" data-format="{}">{}</data>').format(repr(value), path, form, text)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["number"] = number
    return environment
