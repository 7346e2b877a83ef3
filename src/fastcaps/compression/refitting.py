"""Training of a folded network: its convolutions and its folded matrix learn the labels and the teacher's capsules."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fastcaps._adam import adam_tensors, expected_adam_tensors, load_adam
from fastcaps._files import write_atomically
from fastcaps._json import parse_json
from fastcaps._tensors import check_tensors, read_tensors
from fastcaps.compression.teacher import Lesson, Teacher
from fastcaps.data import Augmentation
from fastcaps.functional import capsule_distillation_loss, cross_entropy_loss, length_distillation_loss, margin_loss
from fastcaps.nn import CapsuleOutput, FastCapsNet
from fastcaps.nn.averaging import WeightAverage

# Maximum number of warmup steps, and number of training steps from which on the learning rate is not reduced.
_MAX_WARMUP, _FULL_RATE_STEPS = 100, 1_000


@dataclass(frozen=True, kw_only=True)
class RefitSettings:
    """Settings of the training of a pruned network: Adam, with a warmup and a linear decay of the learning rate to 0.

    The result has averaged weights: an exponential moving average over the last steps.

    With fewer than 1,000 steps the learning rate is multiplied by ``sqrt(steps / 1000)``: few images can't repair what
    large first steps destroy.

    Attributes:
        epochs: passes over the training images.
        learning_rate: highest learning rate of Adam.
        averaging: share of the former average that every step keeps, such as 0.998; less in the first steps. 0 for the
            weights of the last step.
        sharpness: factor of the lengths in both losses of the lengths.
        label_weight: weight of the cross-entropy with the labels.
        margin_weight: weight of the margin loss with the labels.
        length_weight: weight of the divergence from the teacher's lengths.
        capsule_weight: weight of the squared distance from the teacher's capsules.
    """

    epochs: int = 6
    learning_rate: float = 1e-3
    averaging: float = 0.998
    sharpness: float = 20.0
    label_weight: float = 1.0
    margin_weight: float = 0.0
    length_weight: float = 1.0
    capsule_weight: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError if a value is not valid."""
        if type(self.epochs) is not int or self.epochs < 1:
            raise ValueError(f"epochs is {self.epochs!r}, expected a whole number, at least 1")
        for name in ("learning_rate", "sharpness"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a number above 0")
        if not 0 <= self.averaging < 1:
            raise ValueError(f"averaging is {self.averaging!r}, expected a share of at least 0 and below 1")
        weights = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if "weight" in field.name
        }
        for name, value in weights.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}, expected a number, at least 0")
        if not any(weights.values()):
            raise ValueError(f"{', '.join(weights)} are all 0: there is nothing to learn, give one of them")

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0, in a training of ``steps`` steps."""
        warmup = min(1.0, (step + 1) / (1 + min(_MAX_WARMUP, steps // 5)))
        return self.learning_rate * min(1.0, math.sqrt(steps / _FULL_RATE_STEPS)) * warmup * (1 - step / steps)

    def loss(self, output: CapsuleOutput, lesson: Lesson) -> Tensor:
        """Return the loss of a batch."""
        loss = output.lengths.new_zeros(())
        if self.label_weight:
            loss = loss + self.label_weight * cross_entropy_loss(output.lengths, lesson.labels, self.sharpness)
        if self.margin_weight:
            loss = loss + self.margin_weight * margin_loss(output.lengths, lesson.labels)
        if self.length_weight:
            teacher_lengths = torch.linalg.vector_norm(lesson.capsules, dim=-1)
            loss = loss + self.length_weight * length_distillation_loss(output.lengths, teacher_lengths, self.sharpness)
        if self.capsule_weight:
            loss = loss + self.capsule_weight * capsule_distillation_loss(output.capsules, lesson.capsules)
        return loss


@dataclass(frozen=True)
class Progress:
    """Progress of a training after a step: epoch and step, counted from 1, and the means of the epoch so far."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class RefitEpoch:
    """Metrics of an epoch, counted from 1: mean loss, and accuracy on the augmented and on the held-out images."""

    epoch: int
    loss: float
    accuracy: float
    held_out_accuracy: float | None = None


def refit(
    network: FastCapsNet,
    teacher: Teacher,
    settings: RefitSettings,
    *,
    checkpoint: Path | None = None,
    checkpoint_every: int = 100,
    evaluate: Callable[[FastCapsNet], float] | None = None,
    accuracy: float | None = None,
    observe: Callable[[Progress], None] = lambda progress: None,
) -> list[RefitEpoch]:
    """Train a folded network in place, without its decoder.

    The network ends with the averaged weights of the last epoch, where the learning rate is lowest, or with its initial
    weights if those are more accurate. Epochs are not compared: the network may come from one that was trained on the
    held-out images, and would be most accurate on them before it has forgotten them.

    Args:
        network: the folded network; afterwards in evaluation mode, with gradients switched off.
        teacher: provides the batches, the labels and the capsules to learn.
        settings: settings of the training.
        checkpoint: file to write checkpoints to; if it exists, training resumes from it, bit for bit.
        checkpoint_every: steps between two writes of the checkpoint.
        evaluate: returns the accuracy of the network on held-out images; called after each epoch.
        accuracy: what ``evaluate`` returns before training; when None, the initial weights are not considered.
        observe: called with the progress after each step.
    """
    network.requires_grad_(True)
    network.decoder.requires_grad_(False)
    trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.Adam(trained.values(), lr=settings.learning_rate, fused=True)
    key = {**teacher.key, **dataclasses.asdict(settings)}
    initial = {name: weight.detach().clone() for name, weight in trained.items()}
    average = WeightAverage(network, settings.averaging)
    averages = {name: average.state[name] for name in trained}
    file = None if checkpoint is None else _Checkpoint(checkpoint, key, trained, averages, optimizer)
    position = _Position() if file is None or not file.path.is_file() else file.load()
    steps = teacher.steps
    while position.epoch < settings.epochs:
        for lesson in teacher.lessons(position.epoch, position.step):
            step = position.epoch * steps + position.step
            rate = settings.rate(step, settings.epochs * steps)
            position.add(*_step(network, optimizer, lesson, settings, rate), len(lesson.labels))
            average.update(step)
            observe(position.progress(settings.epochs, steps))
            if file is not None and position.step % checkpoint_every == 0 and position.step < steps:
                file.save(position)
        with average.applied():
            held_out_accuracy = evaluate(network.eval()) if evaluate else None
        position.close_epoch(held_out_accuracy)
        if file is not None:
            file.save(position)
    network.requires_grad_(False).eval()
    reached = position.history[-1].held_out_accuracy
    _copy(initial if reached is not None and accuracy is not None and reached < accuracy else averages, trained)
    return position.history


@torch.no_grad()
def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, weight in source.items():
        target[name].copy_(weight)


def _step(
    network: FastCapsNet, optimizer: torch.optim.Adam, lesson: Lesson, settings: RefitSettings, rate: float
) -> tuple[float, int]:
    """Take one step; return the loss and the number of correct answers."""
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


@dataclass
class _Position:
    """State of a training: position, sums over the epoch so far, and the metrics of the epochs before."""

    epoch: int = 0
    step: int = 0
    images: int = 0
    loss: float = 0.0
    correct: int = 0
    history: list[RefitEpoch] = field(default_factory=list)

    def add(self, loss: float, correct: int, images: int) -> None:
        self.step += 1
        self.loss += loss * images
        self.correct += correct
        self.images += images

    def progress(self, epochs: int, steps: int) -> Progress:
        means = self.loss / self.images, self.correct / self.images
        return Progress(self.epoch + 1, epochs, self.step, steps, *means)

    def close_epoch(self, held_out_accuracy: float | None) -> None:
        """Start the next epoch."""
        means = self.loss / self.images, self.correct / self.images
        self.history.append(RefitEpoch(self.epoch + 1, *means, held_out_accuracy))
        self.epoch += 1
        self.step = self.images = self.correct = 0
        self.loss = 0.0


@dataclass(frozen=True)
class _Checkpoint:
    """The file that a training resumes from: current and averaged weights, moments of Adam, position."""

    path: Path
    key: dict[str, Any]
    weights: dict[str, torch.nn.Parameter]
    averages: dict[str, Tensor]
    optimizer: torch.optim.Adam

    def save(self, position: _Position) -> None:
        tensors = {f"model.{name}": weight.detach().contiguous() for name, weight in self.weights.items()}
        tensors |= {f"average.{name}": weight.contiguous() for name, weight in self.averages.items()}
        tensors |= adam_tensors(self.optimizer, self.weights)
        metadata = {"key": json.dumps(self.key), "position": json.dumps(dataclasses.asdict(position))}
        write_atomically({self.path: safetensors.torch.save(tensors, metadata=metadata)})

    @torch.no_grad()
    def load(self) -> _Position:
        metadata, tensors = read_tensors(self.path)
        stored = parse_json(metadata.get("key", ""), dict[str, Any], f"{self.path}: key")
        # A setting that an earlier version did not have was at its default, but weights were not averaged.
        stored = dataclasses.asdict(RefitSettings(averaging=0.0)) | stored
        stored["augmentation"] = Augmentation.from_dict(
            stored.get("augmentation", {}), f"the augmentation in {self.path}"
        ).to_dict()
        different = [name for name, value in json.loads(json.dumps(self.key)).items() if stored.get(name) != value]
        if different:
            words = ", ".join(different)
            raise ValueError(
                f"{self.path} is of another training ({words} differ): remove it, or choose another folder"
            )
        position = parse_json(metadata.get("position", ""), _Position, f"{self.path}: position")
        # Earlier versions kept the weights of the best epoch.
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("best.")}
        values = {f"model.{name}": weight for name, weight in self.weights.items()}
        # Earlier versions did not average the weights.
        tensors = {
            f"average.{name}": tensors[f"model.{name}"] for name in self.weights if f"model.{name}" in tensors
        } | tensors
        averages = {f"average.{name}": weight for name, weight in self.averages.items()}
        current = values | averages
        check_tensors(self.path, current | expected_adam_tensors(self.weights, tensors), tensors)
        _copy({name: tensors[name] for name in current}, current)
        load_adam(self.optimizer, self.weights, tensors)
        return position
