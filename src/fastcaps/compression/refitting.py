"""Training of a folded network: its convolutions and its folded matrix learn the labels and the teacher's capsules."""

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastcaps._files import write_atomically
from fastcaps.compression.teacher import Lesson, Teacher
from fastcaps.functional import capsule_distillation_loss, cross_entropy_loss, length_distillation_loss
from fastcaps.nn import CapsuleOutput, FastCapsNet

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
# Steps between two checkpoints.
_CHECKPOINT_EVERY = 100


@dataclass(frozen=True, kw_only=True)
class RefitSettings:
    """How a pruned network is trained: by Adam, whose learning rate falls linearly to 0.

    Attributes:
        epochs: passes over the training images.
        learning_rate: of Adam at the first step.
        sharpness: what lengths are multiplied by in both losses of the lengths.
        label_weight: of cross-entropy with the labels.
        length_weight: of the divergence from the teacher's lengths.
        capsule_weight: of the squared distance from the teacher's capsules.
    """

    epochs: int = 6
    learning_rate: float = 1e-3
    sharpness: float = 20.0
    label_weight: float = 1.0
    length_weight: float = 1.0
    capsule_weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what can't work, saying why."""
        if type(self.epochs) is not int or self.epochs < 1:
            raise ValueError(f"epochs is {self.epochs!r}, expected a whole number, at least 1")
        for name in ("learning_rate", "sharpness"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a number above 0")
        weights = {name: getattr(self, name) for name in ("label_weight", "length_weight", "capsule_weight")}
        for name, value in weights.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}, expected a number, at least 0")
        if not any(weights.values()):
            raise ValueError(f"{', '.join(weights)} are all 0: there is nothing to learn, give one of them")

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0, of so many."""
        return self.learning_rate * (1 - step / steps)

    def loss(self, output: CapsuleOutput, lesson: Lesson) -> Tensor:
        """Return the loss of a batch."""
        loss = output.lengths.new_zeros(())
        if self.label_weight:
            loss = loss + self.label_weight * cross_entropy_loss(output.lengths, lesson.labels, self.sharpness)
        if self.length_weight:
            wanted = torch.linalg.vector_norm(lesson.capsules, dim=-1)
            loss = loss + self.length_weight * length_distillation_loss(output.lengths, wanted, self.sharpness)
        if self.capsule_weight:
            loss = loss + self.capsule_weight * capsule_distillation_loss(output.capsules, lesson.capsules)
        return loss


@dataclass(frozen=True)
class Progress:
    """How far training has come: after a step of an epoch, both counted from 1, with the means of the epoch so far."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float


def refit(
    network: FastCapsNet,
    teacher: Teacher,
    settings: RefitSettings,
    *,
    checkpoint: Path | None = None,
    after_epoch: Callable[[FastCapsNet], dict[str, Any]] = lambda network: {},
    observe: Callable[[Progress], None] = lambda progress: None,
) -> list[dict[str, Any]]:
    """Train a folded network in place; its decoder is left as it is.

    Args:
        network: afterwards in evaluation mode, with gradients switched off.
        teacher: gives the batches, the labels and the capsules to learn.
        settings: how it is trained.
        checkpoint: a file to resume from, bit for bit, if it exists; written at intervals.
        after_epoch: measures the network after each epoch; what it returns goes into the history.
        observe: told the progress after each step.

    Returns:
        One entry per epoch: number, mean loss, accuracy on the augmented images, and what ``after_epoch`` returned.
    """
    network.requires_grad_(True)
    network.decoder.requires_grad_(False)
    trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.Adam(trained.values(), lr=settings.learning_rate)
    state = _State(settings, teacher)
    if checkpoint is not None and checkpoint.is_file():
        state.load(checkpoint, trained, optimizer)
    steps = teacher.steps
    while state.epoch < settings.epochs:
        for lesson in teacher.lessons(state.epoch, state.step):
            rate = settings.rate(state.epoch * steps + state.step, settings.epochs * steps)
            state.add(*_step(network, optimizer, lesson, settings, rate), len(lesson.labels))
            observe(state.progress(steps))
            if checkpoint is not None and state.step % _CHECKPOINT_EVERY == 0 and state.step < steps:
                state.save(checkpoint, trained, optimizer)
        state.close_epoch(after_epoch(network.eval()))
        if checkpoint is not None:
            state.save(checkpoint, trained, optimizer)
    network.requires_grad_(False).eval()
    return state.history


def _step(
    network: FastCapsNet, optimizer: torch.optim.Adam, lesson: Lesson, settings: RefitSettings, rate: float
) -> tuple[float, int]:
    """Make one step; return the loss and the number of correct answers."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    output: CapsuleOutput = network(lesson.images)
    loss = settings.loss(output, lesson)
    if not bool(loss.isfinite()):
        value, rate = float(loss.detach()), settings.learning_rate
        raise ValueError(f"the loss became {value}: train with a smaller learning rate than {rate:g}")
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()
    return float(loss.detach()), int((output.lengths.argmax(1) == lesson.labels).sum())


class _State:
    """How far training has come, and its file."""

    def __init__(self, settings: RefitSettings, teacher: Teacher) -> None:
        self.settings = settings
        self.key = {**teacher.key, **dataclasses.asdict(settings)}
        self.epoch = self.step = 0
        self.sums = {"loss": 0.0, "correct": 0, "images": 0}
        self.history: list[dict[str, Any]] = []

    def add(self, loss: float, correct: int, images: int) -> None:
        self.step += 1
        self.sums["loss"] += loss * images
        self.sums["correct"] += correct
        self.sums["images"] += images

    def progress(self, steps: int) -> Progress:
        images = self.sums["images"]
        means = self.sums["loss"] / images, self.sums["correct"] / images
        return Progress(self.epoch + 1, self.settings.epochs, self.step, steps, *means)

    def close_epoch(self, measured: dict[str, Any]) -> None:
        images = self.sums["images"]
        row = {"epoch": self.epoch + 1, "loss": self.sums["loss"] / images, "accuracy": self.sums["correct"] / images}
        self.history.append({**row, **measured})
        self.epoch, self.step = self.epoch + 1, 0
        self.sums = {"loss": 0.0, "correct": 0, "images": 0}

    def save(self, path: Path, weights: dict[str, torch.nn.Parameter], optimizer: torch.optim.Adam) -> None:
        tensors = {f"model.{name}": weight.detach().contiguous() for name, weight in weights.items()}
        for name, moments in zip(weights, optimizer.state_dict()["state"].values(), strict=True):
            tensors |= {f"adam.{moment}.{name}": moments[moment].contiguous() for moment in _MOMENTS}
        position = {"epoch": self.epoch, "step": self.step, "sums": self.sums, "history": self.history}
        metadata = {"key": json.dumps(self.key), "position": json.dumps(position)}
        write_atomically({path: safetensors.torch.save(tensors, metadata=metadata)})

    @torch.no_grad()
    def load(self, path: Path, weights: dict[str, torch.nn.Parameter], optimizer: torch.optim.Adam) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from None
        stored = json.loads(metadata.get("key", "{}"))
        different = [name for name, value in json.loads(json.dumps(self.key)).items() if stored.get(name) != value]
        if different or any(tensors[f"model.{name}"].shape != weight.shape for name, weight in weights.items()):
            words = f" ({', '.join(different)} differ)" if different else ""
            raise ValueError(f"{path} is of another training{words}: remove it, or choose another folder")
        for name, weight in weights.items():
            weight.copy_(tensors[f"model.{name}"])
        moments = {
            number: {moment: tensors[f"adam.{moment}.{name}"] for moment in _MOMENTS}
            for number, name in enumerate(weights)
        }
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
        position = json.loads(metadata["position"])
        self.epoch, self.step = position["epoch"], position["step"]
        self.sums, self.history = position["sums"], position["history"]
