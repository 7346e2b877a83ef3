"""Dataclasses that were dictionaries; reading them as such will be removed in the next release."""

import warnings
from collections.abc import KeysView
from typing import Any

from fastcaps._result import Record


class FormerDict(Record):
    """Base of dataclasses whose `to_dict` gives what was a dictionary: reads like one, with a warning."""

    def __getitem__(self, name: str) -> Any:
        """Return an entry of `to_dict`."""
        self._warn(f'["{name}"]', f".{name}")
        return self.to_dict()[name]

    def __contains__(self, name: object) -> bool:
        """Return whether `to_dict` has an entry."""
        self._warn(f" contains {name!r}", f".{name}")
        return name in self.to_dict()

    def get(self, name: str, default: Any = None) -> Any:
        """Return an entry of `to_dict`, or the default."""
        self._warn(f'.get("{name}")', f".{name}")
        return self.to_dict().get(name, default)

    def keys(self) -> KeysView[str]:
        """Return the names of the entries of `to_dict`."""
        self._warn(".keys()", ".to_dict()")
        return self.to_dict().keys()

    def _warn(self, old: str, new: str) -> None:
        kind = type(self).__name__
        words = f"{kind}{old}: use {kind}{new}" + ("" if new == ".to_dict()" else " or .to_dict()")
        warnings.warn(f"{words}; will be removed in the next release", DeprecationWarning, stacklevel=3)
