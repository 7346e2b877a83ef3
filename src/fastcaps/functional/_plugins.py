"""Normalizations of other packages and files, for the command line: imported when a name is not known.

A package announces them as entry points of the group ``fastcaps.normalizations``. The environment variable
``FASTCAPS_PLUGINS`` names modules or files of one's own, separated by commas.
"""

import importlib
import importlib.util
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

GROUP = "fastcaps.normalizations"
VARIABLE = "FASTCAPS_PLUGINS"


def load_plugins() -> None:
    """Import all plugins; their classes register themselves."""
    for point in entry_points(group=GROUP):
        point.load()
    for name in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        try:
            _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
        except (ImportError, OSError, SyntaxError) as error:
            raise ValueError(f"{VARIABLE} names {name}, which can't be imported: {error}") from error


def _import_file(path: Path) -> None:
    name = f"fastcaps_plugin_{path.stem}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
