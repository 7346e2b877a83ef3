"""What a run says of itself elsewhere than where it was made: the versions, and no folders of the machine."""

import platform
import shlex
from dataclasses import replace

from fastcaps._version import __version__
from fastcaps.training.description import RunDescription


def public(about: RunDescription) -> RunDescription:
    """Return the content of ``run.json``, with the command without ``--data-dir``, which differs elsewhere."""
    return replace(about, command=without_data_dir(about.command or ""))


def without_data_dir(command: str) -> str:
    """Return a command line without ``--data-dir``."""
    words = iter(shlex.split(command))
    others = []
    for word in words:
        if word == "--data-dir":
            next(words)
        elif not word.startswith("--data-dir="):
            others.append(word)
    return shlex.join(others)


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    import torch

    return {
        "fastcaps": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
