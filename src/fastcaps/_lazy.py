"""Names that are imported when they are first used, so that `import fastcaps` doesn't wait for torch."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, where: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package whose public names live in other modules.

    Args:
        package: the package's ``__name__``.
        where: for each public name the module that defines it; a module's own name for the module itself.
    """

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(where[name])
        return module if where[name] == f"{package}.{name}" else getattr(module, name)

    return get, lambda: sorted(where)
