"""Names that are imported when they are first used, so that `import fastcaps` doesn't wait for torch."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, where: Mapping[str, str], deprecated: Mapping[str, tuple[str, str, str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package whose public names live in other modules.

    Args:
        package: ``__name__`` of the package.
        where: module that defines each public name; a public module is its own value.
        deprecated: for each old name, the module and name of its replacement, and what to write instead.
    """

    def get(name: str) -> Any:
        if deprecated and name in deprecated:
            module, new, words = deprecated[name]
            warnings.warn(
                f"{package}.{name}: use {words}; the old name will be removed in the next release",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(import_module(module), new)
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module_ = import_module(where[name])
        return module_ if where[name] == f"{package}.{name}" else getattr(module_, name)

    return get, lambda: sorted(where)
