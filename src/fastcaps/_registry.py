"""Registry of classes by name: normalizations, routings and loggers, built in or custom."""

import dataclasses
import importlib
import importlib.util
import inspect
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Environment variable with modules or files that define custom classes, separated by commas.
VARIABLE = "FASTCAPS_PLUGINS"
# Group of the entry points by which packages declare their plugins.
GROUP = "fastcaps.plugins"


class Registry(Generic[T]):
    """Classes by their attribute ``name``.

    Attributes:
        kind: kind of the classes, for error messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}

    def register(self, cls: type[T]) -> None:
        """Add a class by its name; a class without a name is ignored."""
        name = cls.__dict__.get("name")
        if name is None:
            return
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(
                f"the name of {cls.__name__} is {name!r}, expected a Python identifier such as 'sparsemax'"
            )
        known = self._classes.get(name)
        # A class that is redefined, as in a notebook, replaces the earlier one.
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"{self.kind} {name!r} is already {known.__module__}.{known.__qualname__}: choose another name"
            )
        self._classes[name] = cls

    def forget(self, name: str) -> None:
        """Remove a class."""
        self._classes.pop(name, None)

    def names(self) -> list[str]:
        """Return all names, in the order of their definition."""
        return list(self._classes)

    def make(self, name: str, **options: Any) -> T:
        """Return an object of the class with this name; options that the class does not take are ignored."""
        if name not in self._classes:
            load_plugins()
        if name not in self._classes:
            listed = ", ".join(known for known in self._classes if known != "none")
            raise ValueError(
                f"{self.kind} is {name!r}, expected one of {listed}, or one of your own: import its class, or name its "
                f"module in {VARIABLE}"
            )
        cls = self._classes[name]
        accepted = inspect.signature(cls).parameters
        return cls(**{option: value for option, value in options.items() if option in accepted})


def options_of(value: Any) -> dict[str, Any]:
    """Return the arguments of an object for a file: the fields of a dataclass.

    Raises:
        ValueError: its class takes arguments but is not a dataclass, so that they would be lost.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    parameters = [
        name for name, one in inspect.signature(type(value)).parameters.items() if one.kind < one.VAR_POSITIONAL
    ]
    if parameters:
        raise ValueError(
            f"{type(value).__name__} takes {', '.join(parameters)}, which a file would lose: make it a dataclass"
        )
    return {}


def load_plugins() -> None:
    """Import all plugins; their classes register themselves."""
    for point in entry_points(group=GROUP):
        _loaded(point.load, f"the entry point {point.name} of {GROUP}")
    for name in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        importer = _import_file if name.endswith(".py") else importlib.import_module
        _loaded(lambda importer=importer, name=name: importer(name), f"{VARIABLE} names {name}, which")


def _loaded(load: Any, what: str) -> None:
    try:
        load()
    except Exception as error:
        raise ValueError(f"{what} can't be imported: {type(error).__name__}: {error}") from error


def _import_file(name: str) -> None:
    path = Path(name).resolve()
    module_name = f"fastcaps_plugin_{path.stem}_{abs(hash(str(path)))}"
    if module_name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
