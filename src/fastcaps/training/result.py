"""A finished run as one small JSON, with settings and measurements, for ``results/`` and for tables."""

import platform
import shlex
from dataclasses import replace
from typing import Any

from fastcaps._machine import Machine
from fastcaps._result import plain
from fastcaps._version import __version__
from fastcaps.training.description import RunDescription
from fastcaps.training.run import Run


def result_of(run: Run, evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return settings, command, versions, machine, metrics per epoch and evaluation of a run.

    Args:
        run: a finished run.
        evaluation: content of its ``evaluation.json``.
    """
    measured = {name: value for name, value in evaluation.items() if name != "run"}
    # Early runs don't name their machine: most likely they are evaluated where they were trained.
    return {
        "machine": plain(Machine.this()),
        **public(run.about).to_dict(),
        "metrics": [metrics.to_dict() for metrics in run.metrics()],
        "evaluation": measured,
    }


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
