"""The state of a run between two steps, as one safetensors file: weights, Adam's moments, and how far it has come.

Everything random follows from the seed, the epoch and the step, so no state of a generator is stored.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from fastcaps._adam import adam_tensors, expected_adam_tensors, load_adam
from fastcaps._files import write_atomically
from fastcaps._json import parse_json
from fastcaps._result import Record, plain
from fastcaps._tensors import check_tensors, read_tensors
from fastcaps.data import Augmentation
from fastcaps.nn.averaging import WeightAverage
from fastcaps.nn.config import CapsNetConfig
from fastcaps.training.reports import EpochMetrics
from fastcaps.training.settings import TrainSettings, renamed

_KIND = "fastcaps.Checkpoint"
_TEXTS = ("run", "progress")


@dataclass
class Progress(Record):
    """Progress of a run.

    Attributes:
        epoch: number of whole epochs done.
        step: steps done in the epoch that follows.
        sums: loss, correct answers and images of those steps.
        history: metrics of the epochs done.
        best: metrics of the epoch with the best validation accuracy.
        saturated: number of consecutive steps with saturated capsules.
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

    def __post_init__(self) -> None:
        """Raise ValueError for values that no run can have written."""
        if len(self.history) != self.epoch or min(self.epoch, self.step, self.saturated) < 0:
            raise ValueError(
                f"epoch is {self.epoch} and step {self.step}, with the metrics of {len(self.history)} epochs"
            )
        if self.sums and (self.sums.keys() != {"loss", "correct", "images"} or not self.sums["images"] > 0):
            raise ValueError(f"the sums are {self.sums}, expected loss, correct and images")

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
        """The current epoch and step, for error messages."""
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
        """Start the next epoch."""
        self.epoch, self.step, self.sums = self.epoch + 1, 0, {}
        self.history.append(metrics)

    def is_best(self, metrics: EpochMetrics) -> bool:
        """Return whether an epoch has a better validation accuracy than all before."""
        best = None if self.best is None else self.best.validation_accuracy
        return best is None or (metrics.validation_accuracy is not None and metrics.validation_accuracy > best)


@dataclass(frozen=True, kw_only=True)
class RunIdentity(Record):
    """What must be the same to resume a run: everything that determines the weights, except the number of threads.

    Attributes:
        settings: settings of the training; `to_dict` omits those that don't influence the weights.
        config: configuration of the network.
        augmentation: augmentation of the training images.
        data: fingerprint of the images.
        convolution: implementation of the convolution of the lower capsules.
        master: hash of the initial coefficients, if any.
        init: hash of the initial weights, if they came from another run.
    """

    settings: TrainSettings = field(metadata={"flat": True})
    config: CapsNetConfig = field(metadata={"flat": True})
    augmentation: Augmentation
    data: str
    convolution: str
    master: str | None
    init: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the fields of settings and configuration are entries of their own."""
        without_influence = ("test_every", "checkpoint_every")
        return {name: value for name, value in super().to_dict().items() if name not in without_influence}


def save(
    path: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Adam,
    progress: Progress,
    run: RunIdentity,
    average: WeightAverage | None = None,
) -> None:
    """Write a checkpoint atomically.

    Args:
        path: the file.
        model: the network with its weights.
        optimizer: Adam with its moments.
        progress: progress of the run.
        run: what must be the same to resume from this checkpoint.
        average: average of the weights, if there is one.
    """
    tensors = {f"model.{name}": tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    tensors |= adam_tensors(optimizer, dict(model.named_parameters()))
    tensors |= {} if average is None else {f"average.{name}": t.cpu().contiguous() for name, t in average.state.items()}
    metadata = {"kind": _KIND, "run": json.dumps(run.to_dict()), "progress": json.dumps(progress.to_dict())}
    write_atomically({path: safetensors.torch.save(tensors, metadata=metadata)})


def load(
    path: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Adam,
    run: RunIdentity,
    average: WeightAverage | None = None,
) -> Progress:
    """Load weights, their average and moments of a checkpoint of the same run, and return its progress."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: there is nothing to resume, start the run without resume=True")
    metadata, tensors = read_tensors(path)
    if metadata.get("kind") != _KIND:
        raise ValueError(f"{path} is no checkpoint of fastcaps: it was written by something else")
    stored, values = (parse_json(metadata.get(name, ""), dict[str, Any], f"{name} in {path}") for name in _TEXTS)
    _check_same(path, stored, run.to_dict())
    progress = Progress.from_dict(values, f"the progress in {path}")
    parameters = dict(model.named_parameters())
    expected = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    expected |= expected_adam_tensors(parameters, tensors)
    averages = {} if average is None else {f"average.{name}": tensor for name, tensor in average.state.items()}
    check_tensors(path, expected | averages, tensors)
    for name, tensor in averages.items():
        tensor.copy_(tensors[name])
    model.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")})
    load_adam(optimizer, parameters, tensors)
    return progress


def _check_same(path: Path, stored: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the differences, if a checkpoint belongs to another run."""
    # A checkpoint of an earlier version lacks newer settings: they had their defaults.
    defaults = TrainSettings().to_dict() | plain(CapsNetConfig().to_dict())
    stored = {name: value for name, value in defaults.items() if name in run} | renamed(stored)
    stored["augmentation"] = Augmentation.from_dict(
        stored.get("augmentation", {}), f"the augmentation in {path}"
    ).to_dict()
    extended = isinstance(stored["epochs"], int) and run["epochs"] > stored["epochs"]
    differences = [
        f"{name} was {stored.get(name)}, now {run.get(name)}"
        for name in sorted(stored.keys() | run.keys())
        if stored.get(name) != run.get(name) and not (name == "epochs" and extended)
    ]
    if differences:
        raise ValueError(
            f"{path} is of another run ({'; '.join(differences)}): resume with the same, or with more epochs, or start "
            "anew"
        )
