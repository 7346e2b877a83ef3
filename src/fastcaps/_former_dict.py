"""Dataclasses that were dictionaries; reading them as such will be removed in the next release."""

import dataclasses
import warnings
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from fastcaps._result import Record, json_key


class FormerDict(Record):
    """Base class of dataclasses that replace a dictionary: they can be read like their `to_dict`, with a warning."""

    def __getitem__(self, name: str) -> Any:
        """Return an entry of `to_dict`."""
        self._warn(f'["{name}"]', name)
        return self.to_dict()[name]

    def __contains__(self, name: object) -> bool:
        """Return whether `to_dict` has an entry."""
        self._warn(f" contains {name!r}", name)
        return name in self.to_dict()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the entries of `to_dict`."""
        self._warn(" as an iterable")
        return iter(self.to_dict())

    def __len__(self) -> int:
        """Return the number of entries of `to_dict`."""
        self._warn(" with a length")
        return len(self.to_dict())

    def __bool__(self) -> bool:
        """Return True, as for other objects, without a warning."""
        return True

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of `to_dict` and others."""
        self._warn(" | …")
        return {**self.to_dict(), **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        """Return others and the entries of `to_dict`."""
        self._warn(" | …")
        return {**other, **self.to_dict()}

    def get(self, name: str, default: Any = None) -> Any:
        """Return an entry of `to_dict`, or the default."""
        self._warn(f'.get("{name}")', name)
        return self.to_dict().get(name, default)

    def keys(self) -> KeysView[str]:
        """Return the names of the entries of `to_dict`."""
        self._warn(".keys()")
        return self.to_dict().keys()

    def values(self) -> ValuesView[Any]:
        """Return the values of the entries of `to_dict`."""
        self._warn(".values()")
        return self.to_dict().values()

    def items(self) -> ItemsView[str, Any]:
        """Return names and values of the entries of `to_dict`."""
        self._warn(".items()")
        return self.to_dict().items()

    def _warn(self, old: str, name: object = None) -> None:
        kind, attribute = type(self).__name__, self._attribute(name)
        new = ".to_dict()" if attribute is None else f"{attribute} or .to_dict()"
        warnings.warn(f"{kind}{old}: use {kind}{new}; will be removed in the next release", DeprecationWarning, 3)

    def _attribute(self, name: object) -> str | None:
        """Return the attribute of an entry of `to_dict`: ``.data``, or ``.more["own"]``; None if it is not a field."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if not field.metadata.get("flat") and json_key(field) == name:
                return f".{field.name}"
            if field.metadata.get("flat") and name in getattr(self, field.name):
                return f'.{field.name}["{name}"]'
        return None
