"""A finished run as one small JSON: how it was made and what was measured, for ``results/`` and for tables."""

import platform
import shlex
from typing import Any

from fastcaps._machine import processor_name, processors
from fastcaps._version import __version__
from fastcaps.training.run import Run


def result_of(run: Run, evaluation: dict[str, Any]) -> dict[str, Any]:
    """Settings, command, versions, machine, accuracy by epoch and evaluation of a run.

    Args:
        run: a finished run.
        evaluation: what ``evaluation.json`` says of it.
    """
    kept = {name: value for name, value in evaluation.items() if name != "run"}
    # Runs from before they said where they were made are evaluated where they were made, most likely.
    return {
        "machine": machine(),
        **public(run.about),
        "metrics": [metrics.to_dict() for metrics in run.metrics()],
        "evaluation": kept,
    }


def public(about: dict[str, Any]) -> dict[str, Any]:
    """What ``run.json`` says, its command without the folder of the data, which is another elsewhere."""
    return {**about, "command": without_data_dir(about.get("command", ""))}


def without_data_dir(command: str) -> str:
    """A command line without ``--data-dir``."""
    words = iter(shlex.split(command))
    kept = []
    for word in words:
        if word == "--data-dir":
            next(words)
        elif not word.startswith("--data-dir="):
            kept.append(word)
    return shlex.join(kept)


def machine() -> dict[str, Any]:
    """What a run is made on."""
    return {"processor": processor_name(), "cores": processors()}


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    import torch

    return {
        "fastcaps": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
