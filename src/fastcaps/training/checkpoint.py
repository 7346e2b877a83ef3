"""A run's state between two steps, as one safetensors file: weights, Adam's moments, and how far it has come.

Everything random follows from the seed, the epoch and the step, so there is no generator to keep.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastcaps._files import write_atomically
from fastcaps.nn.config import CapsNetConfig
from fastcaps.training.settings import TrainSettings

_KIND = "fastcaps.Checkpoint"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        epoch: number of whole epochs done.
        step: steps done in the epoch that follows.
        sums: loss, correct answers and images of those steps.
        history: one entry for each epoch done.
        best: the entry of the epoch that did best on the validation split.
        saturated: steps in a row with capsules of full length.
        accumulated: the epoch, counted from 0, before which the fixed coefficients were made.
        seconds: spent on training.
    """

    epoch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    saturated: int = 0
    accumulated: int | None = None
    seconds: float = 0.0


def save(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Adam, progress: Progress, run: dict[str, Any]
) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: of the file.
        model: with its weights.
        optimizer: with its moments.
        progress: how far it has come.
        run: what must be the same for a run to go on from here.
    """
    names = [name for name, _ in model.named_parameters()]
    tensors = {f"model.{name}": tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    for number, moments in optimizer.state_dict()["state"].items():
        for moment in _MOMENTS:
            tensors[f"adam.{moment}.{names[number]}"] = moments[moment].detach().cpu().contiguous()
    metadata = {"kind": _KIND, "run": json.dumps(run), "progress": json.dumps(asdict(progress))}
    write_atomically({path: safetensors.torch.save(tensors, metadata=metadata)})


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Adam, run: dict[str, Any]) -> Progress:
    """Bring weights and moments back from a checkpoint of the same run."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: there is nothing to resume, start the run without it")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("kind") != _KIND:
                raise ValueError(f"{path} is no checkpoint of fastcaps: it was written by something else")
            given = json.loads(json.dumps(run))
            # Settings that are newer than the checkpoint had their defaults.
            defaults = json.loads(json.dumps(TrainSettings().to_dict() | CapsNetConfig().to_dict()))
            stored = {name: value for name, value in defaults.items() if name in given} | json.loads(metadata["run"])
            _check_same(path, stored, given)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from None
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    model.load_state_dict(weights)
    state: dict[int, dict[str, Tensor]] = {}
    for number, (name, _) in enumerate(model.named_parameters()):
        if f"adam.step.{name}" in tensors:
            state[number] = {moment: tensors[f"adam.{moment}.{name}"] for moment in _MOMENTS}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return Progress(**json.loads(metadata["progress"]))


def _check_same(path: Path, kept: dict[str, Any], given: dict[str, Any]) -> None:
    """Refuse to go on with another run, naming what is different."""
    names = sorted(kept.keys() | given.keys())
    differences = [f"{k} was {kept.get(k)}, now {given.get(k)}" for k in names if kept.get(k) != given.get(k)]
    if differences:
        raise ValueError(f"{path} is of another run ({'; '.join(differences)}): resume with the same, or start anew")
