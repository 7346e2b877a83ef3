"""Former names of fields; they will be removed in the next release. This module does not import PyTorch."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that a name is deprecated."""
    warnings.warn(
        f"{old}: use {new}; the old name will be removed in the next release", DeprecationWarning, stacklevel=stacklevel
    )


def renamed_fields(**names: str) -> Callable[[type[T]], type[T]]:
    """Accept former names of a dataclass's fields, given as ``old="new"``, with a warning."""

    def decorate(cls: type[T]) -> type[T]:
        original = cls.__init__

        @functools.wraps(original)
        def init(self: T, **values: Any) -> None:
            for old in names.keys() & values.keys():
                warn_renamed(f"{cls.__name__}({old}=…)", names[old])
                values[names[old]] = values.pop(old)
            original(self, **values)

        def former(old: str) -> property:
            def get(self: T) -> Any:
                warn_renamed(f"{cls.__name__}.{old}", names[old])
                return getattr(self, names[old])

            return property(get)

        cls.__init__ = init  # type: ignore[assignment]
        for old in names:
            setattr(cls, old, former(old))
        return cls

    return decorate
