"""Former names of fields and methods; they will be removed in the next release. Does not import PyTorch."""

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


class _Former:
    """The attribute of another name, of the class or of an object, with a warning."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def __get__(self, instance: Any, owner: type) -> Any:
        warn_renamed(f"{owner.__name__}.{self._old}", self._new)
        return getattr(owner if instance is None else instance, self._new)


def renamed_attributes(**names: str) -> Callable[[type[T]], type[T]]:
    """Accept former names of a class's attributes, given as ``old="new"``, with a warning."""

    def decorate(cls: type[T]) -> type[T]:
        for old, new in names.items():
            setattr(cls, old, _Former(old, new))
        return cls

    return decorate


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

        cls.__init__ = init  # type: ignore[assignment]
        return renamed_attributes(**names)(cls)

    return decorate
