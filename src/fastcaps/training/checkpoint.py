"""The state of a run between two steps, as one safetensors file: weights, Adam's moments, and how far it has come.

Everything random follows from the seed, the epoch and the step, so no state of a generator is stored.
"""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastcaps._files import write_atomically
from fastcaps._result import plain
from fastcaps.nn.config import CapsNetConfig
from fastcaps.training.reports import EpochMetrics
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
        history: metrics of the epochs done.
        best: metrics of the epoch with the best validation accuracy.
        saturated: steps in a row with capsules of full length.
        accumulated: the epoch, counted from 0, before which the fixed coefficients were accumulated.
        seconds: time spent on training.
    """

    epoch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    history: list[EpochMetrics] = field(default_factory=list)
    best: EpochMetrics | None = None
    saturated: int = 0
    accumulated: int | None = None
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """Mean loss of the epoch so far."""
        return self.sums["loss"] / self.sums["images"]

    @property
    def accuracy(self) -> float:
        """Accuracy of the epoch so far."""
        return self.sums["correct"] / self.sums["images"]

    @property
    def where(self) -> str:
        """The present place, for errors."""
        return f"in epoch {self.epoch + 1}, step {self.step}"

    @property
    def selected(self) -> EpochMetrics:
        """Metrics of the epoch whose weights are the result: the best with a validation split, otherwise the last."""
        return self.best or self.history[-1]

    def add(self, loss: float, correct: float, images: int) -> None:
        """Add a step."""
        sums = self.sums or {"loss": 0.0, "correct": 0.0, "images": 0.0}
        sums["loss"] += loss * images
        sums["correct"] += correct
        sums["images"] += images
        self.sums, self.step = sums, self.step + 1

    def close_epoch(self, metrics: EpochMetrics) -> None:
        """Go to the next epoch."""
        self.epoch, self.step, self.sums = self.epoch + 1, 0, {}
        self.history.append(metrics)

    def is_best(self, metrics: EpochMetrics) -> bool:
        """Return whether an epoch has a better validation accuracy than all before."""
        best = None if self.best is None else self.best.validation_accuracy
        return best is None or (metrics.validation_accuracy is not None and metrics.validation_accuracy > best)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {entry.name: plain(getattr(self, entry.name)) for entry in fields(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return what `to_dict` gave."""
        history = [EpochMetrics.from_dict(row) for row in values["history"]]
        best = None if values["best"] is None else EpochMetrics.from_dict(values["best"])
        return cls(**{**values, "history": history, "best": best})


def save(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Adam, progress: Progress, run: dict[str, Any]
) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: the file.
        model: the network with its weights.
        optimizer: Adam with its moments.
        progress: how far the run has come.
        run: what must be the same to resume from this checkpoint.
    """
    names = [name for name, _ in model.named_parameters()]
    tensors = {f"model.{name}": tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    for number, moments in optimizer.state_dict()["state"].items():
        for moment in _MOMENTS:
            tensors[f"adam.{moment}.{names[number]}"] = moments[moment].detach().cpu().contiguous()
    metadata = {"kind": _KIND, "run": json.dumps(run), "progress": json.dumps(progress.to_dict())}
    write_atomically({path: safetensors.torch.save(tensors, metadata=metadata)})


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Adam, run: dict[str, Any]) -> Progress:
    """Load weights and moments of a checkpoint of the same run, and return its progress."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: there is nothing to resume, start the run without resume=True")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("kind") != _KIND:
                raise ValueError(f"{path} is no checkpoint of fastcaps: it was written by something else")
            _check_same(path, json.loads(metadata["run"]), json.loads(json.dumps(run)))
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
    return Progress.from_dict(json.loads(metadata["progress"]))


def _check_same(path: Path, stored: dict[str, Any], run: dict[str, Any]) -> None:
    """Raise when a checkpoint is of another run, naming the differences."""
    # Settings that are newer than the checkpoint had their defaults.
    defaults = json.loads(json.dumps(TrainSettings().to_dict() | CapsNetConfig().to_dict()))
    stored = {name: value for name, value in defaults.items() if name in run} | TrainSettings.renamed(stored)
    differences = [
        f"{name} was {stored.get(name)}, now {run.get(name)}"
        for name in sorted(stored.keys() | run.keys())
        if stored.get(name) != run.get(name)
    ]
    if differences:
        raise ValueError(f"{path} is of another run ({'; '.join(differences)}): resume with the same, or start anew")
