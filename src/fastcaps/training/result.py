"""The description of a run for publication: with versions of packages, without paths of this machine."""

import platform
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import cast

from fastcaps._version import __version__
from fastcaps.data.options import LoadCall
from fastcaps.training.description import RunDescription


def public(about: RunDescription) -> RunDescription:
    """Return the content of ``run.json`` without paths of this machine.

    ``--data-dir`` is removed from the command. Absolute paths are reduced to their last part: those in the command, in
    the arguments that load the data, and that of the initial run.
    """
    data, init = about.data, about.init
    if data.call is not None:
        call = {name: _last_part(entry) if isinstance(entry, str) else entry for name, entry in data.call.items()}
        data = replace(data, call=cast(LoadCall, call))
    return replace(
        about,
        command=None if about.command is None else shlex.join(map(_last_part, _words(about.command))),
        data=data,
        init=None if init is None else replace(init, run=_last_part(init.run)),
    )


def without_data_dir(command: str) -> str:
    """Return a command line without ``--data-dir``."""
    return shlex.join(_words(command))


def _words(command: str) -> Iterator[str]:
    """Yield the words of a command line, also of a damaged one, without ``--data-dir``."""
    try:
        words = iter(shlex.split(command))
    except ValueError:  # a quotation that isn't closed
        words = iter(command.replace('"', " ").replace("'", " ").split())
    for word in words:
        if word == "--data-dir":
            next(words, None)
        elif not word.startswith("--data-dir="):
            yield word


def _last_part(word: str) -> str:
    """Return the last part of an absolute path, also after ``--option=``; any other word unchanged."""
    option, equals, value = word.rpartition("=")
    path: PurePath = PurePosixPath(value) if value.startswith(("/", "~")) else PureWindowsPath(value)
    return f"{option}{equals}{path.name}" if path.is_absolute() or value.startswith("~") else word


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    import torch

    return {
        "fastcaps": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
