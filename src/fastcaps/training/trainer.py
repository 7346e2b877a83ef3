"""The trainer: from images to a trained network, in a run that can be stopped anywhere and goes on exactly there.

The order of the images and their augmentation follow from seed, epoch and step, and a checkpoint holds all the rest:
a run that was killed and resumed ends with the very weights of one that was not (on a CPU, with as many threads).
"""

import json
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from fastcaps._files import remove_leftovers, write_atomically
from fastcaps._version import __version__
from fastcaps.data import DataSet, Split, batches, steps_per_epoch
from fastcaps.functional import margin_loss, reconstruction_loss
from fastcaps.nn import CapsNet, CapsuleNetwork
from fastcaps.training import checkpoint
from fastcaps.training.checkpoint import Progress
from fastcaps.training.run import Run
from fastcaps.training.settings import TrainSettings

# Capsules whose mean length stays above this for so many steps have no slope left to learn on.
_SATURATED, _PATIENCE = 0.99, 50


@dataclass(frozen=True)
class Report:
    """What an observer is told after each step.

    Attributes:
        epoch: from 1.
        epochs: of the run.
        step: of the epoch, from 1.
        steps: of an epoch.
        loss: mean of this epoch so far.
        accuracy: of this epoch so far, on the augmented training images.
        images_per_second: of the last steps.
        seconds_left: until the end of the run.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float
    images_per_second: float
    seconds_left: float


@final
class Trainer:
    """Trains a network on a data set into a run folder."""

    def __init__(
        self,
        model: CapsNet,
        data: DataSet,
        settings: TrainSettings,
        out: str | Path,
        *,
        about: dict[str, Any] | None = None,
        observe: Callable[[Report], None] = lambda report: None,
        tensorboard: bool = False,
    ) -> None:
        """Prepare a run.

        Args:
            model: as it should start, on the device where it should train.
            data: its training images; its test images decide nothing.
            settings: constants of the run.
            out: the run folder.
            about: further entries for ``run.json``, such as the command.
            observe: told of every step.
            tensorboard: whether to write events to ``tensorboard/`` in the run folder.
        """
        if tuple(data.image_shape) != (model.config.channels, model.config.height, model.config.width):
            raise ValueError(
                f"{data.name} has images of {'×'.join(map(str, data.image_shape))}, the network is for "
                f"{model.config.channels}×{model.config.height}×{model.config.width}: make it with data.config()"
            )
        if data.classes != model.config.classes:
            raise ValueError(f"{data.name} has {data.classes} classes, the network {model.config.classes}")
        self.model, self.data, self.settings = model, data, settings
        self.run = Run(Path(out))
        self.train: Split = data.train
        self.validation: Split | None = None
        if settings.validation:
            self.train, self.validation = data.validation_split(settings.validation, settings.seed)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, fused=True)
        self.steps = steps_per_epoch(self.train, settings.batch_size)
        self.progress = Progress()
        self.observe = observe
        self._about = about or {}
        self._tensorboard = tensorboard
        self._writer: Any = None
        self._speed = 0.0

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.model.routing.weight.device

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to be resumed: whatever decides the weights, but the number of threads."""
        harmless = ("test_every", "checkpoint_every")
        return {
            **{name: value for name, value in self.settings.to_dict().items() if name not in harmless},
            **self.model.config.to_dict(),
            "augmentation": self.data.augmentation.to_dict(),
            "data": self.data.fingerprint,
            "convolution": self.model.primary.convolution,
        }

    def fit(self, *, resume: bool = False) -> list[dict[str, Any]]:
        """Train to the end.

        Args:
            resume: go on from the run folder's checkpoint; without it, a folder that holds a run is refused.

        Returns:
            One entry for each epoch: loss, accuracy, validation and test accuracy where measured, learning rate, time.
        """
        if resume:
            self.progress = checkpoint.load(self.run.checkpoint_file, self.model, self.optimizer, self.identity)
        elif self.run.checkpoint_file.exists():
            raise ValueError(f"{self.run.folder} holds a run already: pass --resume to go on, or choose another folder")
        remove_leftovers(self.run.folder)
        # The checkpoint comes first: wherever a run is killed, it can be resumed.
        self._save()
        self._describe("running")
        self._writer = self._summary_writer() if self._tensorboard else None
        with _stop_between_steps() as stopped:
            while self.progress.epoch < self.settings.epochs:
                self._epoch(stopped)
        self._finish()
        return self.progress.history

    def _epoch(self, stopped: threading.Event) -> None:
        progress, settings = self.progress, self.settings
        self.model.train()
        view = self.data.augmentation
        sums = progress.sums or {"loss": 0.0, "correct": 0.0, "images": 0.0}
        progress.sums = sums
        begun = time.monotonic()
        for images, labels in batches(
            self.train,
            settings.batch_size,
            view=view,
            shuffle_seed=settings.seed,
            epoch=progress.epoch,
            start=progress.step,
        ):
            loss, lengths = self._step(images.to(self.device), labels.to(self.device))
            sums["loss"] += loss * len(labels)
            sums["correct"] += float((lengths.argmax(1).cpu() == labels).sum())
            sums["images"] += len(labels)
            progress.step += 1
            self._check(loss, float(lengths.mean()))
            now = time.monotonic()
            progress.seconds += now - begun
            self._tell(len(labels) / (now - begun))
            begun = now
            if stopped.is_set():
                self._save()
                raise KeyboardInterrupt
            if settings.checkpoint_every and progress.step % settings.checkpoint_every == 0:
                self._save()
        self._close_epoch(sums)

    def _step(self, images: Tensor, labels: Tensor) -> tuple[float, Tensor]:
        """One step of Adam: the loss, and the lengths ``(b j)`` before it."""
        settings = self.settings
        done = self.progress.epoch * self.steps + self.progress.step
        for group in self.optimizer.param_groups:
            group["lr"] = settings.rate(done, self.steps * settings.epochs)
        output = self.model(images)
        loss = margin_loss(
            output.lengths, labels, settings.positive_margin, settings.negative_margin, settings.negative_weight
        )
        if settings.reconstruction_weight:
            drawn = self.model.reconstruct(output.capsules, labels)
            loss = loss + reconstruction_loss(drawn, images, settings.reconstruction_weight)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return float(loss.detach()), output.lengths.detach()

    def _check(self, loss: float, length: float) -> None:
        """Stop a run that can't get anywhere, saying what to change."""
        where = f"in epoch {self.progress.epoch + 1}, step {self.progress.step}"
        if not np.isfinite(loss):
            raise ValueError(
                f"the loss became {loss} {where}: lower --learning-rate ({self.settings.learning_rate:g}) or raise "
                f"--warmup ({self.settings.warmup}) and start again"
            )
        self.progress.saturated = self.progress.saturated + 1 if length > _SATURATED else 0
        if self.progress.saturated >= _PATIENCE:
            raise ValueError(
                f"the capsules have saturated {where}: their mean length was {length:.3f}, above {_SATURATED} for "
                f"{_PATIENCE} steps, where nothing is learned: lower --learning-rate "
                f"({self.settings.learning_rate:g}) or raise --warmup ({self.settings.warmup}) and start again"
            )

    def _close_epoch(self, sums: dict[str, float]) -> None:
        progress, settings = self.progress, self.settings
        row: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "loss": sums["loss"] / sums["images"],
            "accuracy": sums["correct"] / sums["images"],
            "learning_rate": settings.rate((progress.epoch + 1) * self.steps - 1, settings.epochs * self.steps),
        }
        if self.validation is not None:
            row["validation_accuracy"] = self._accuracy(self.validation)
        last = progress.epoch + 1 == settings.epochs
        if settings.test_every and (last or (progress.epoch + 1) % settings.test_every == 0):
            row["test_accuracy"] = self._accuracy(self.data.test)
        row["seconds"] = round(progress.seconds, 1)
        progress.epoch, progress.step, progress.sums = progress.epoch + 1, 0, {}
        progress.history.append(row)
        best = progress.best
        if self.validation is not None and (best is None or row["validation_accuracy"] > best["validation_accuracy"]):
            progress.best = row
            self._check_weights()
            self.model.save_pretrained(self.run.best_folder)
        if self._writer is not None:
            for name, value in row.items():
                self._writer.add_scalar(name, value, progress.epoch)
            self._writer.flush()
        self._save()

    def _accuracy(self, split: Split) -> float:
        self.model.eval()
        correct = count_correct(self.model, split, self.data.augmentation.test_view)
        self.model.train()
        return correct / len(split)

    def _finish(self) -> None:
        self._check_weights()
        self.model.eval()
        if self.validation is not None:
            self.model.load_state_dict(CapsNet.from_pretrained(self.run.best_folder).state_dict())
        self.model.provenance = {
            "data": self.data.name,
            "data_provenance": self.data.provenance,
            "settings": self.settings.to_dict(),
            "epoch": self.progress.best or self.progress.history[-1],
            "versions": versions(),
        }
        self.model.save_pretrained(self.run.model_folder)
        self._describe("finished")
        if self._writer is not None:
            self._writer.close()

    def _check_weights(self) -> None:
        """Keep weights that are broken from being kept."""
        for name, parameter in self.model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise ValueError(
                    f"the weights {name} are not finite any more in epoch {self.progress.epoch + 1}, step "
                    f"{self.progress.step}: lower --learning-rate ({self.settings.learning_rate:g}) or raise "
                    f"--warmup ({self.settings.warmup}) and start again"
                )

    def _save(self) -> None:
        self._check_weights()
        lines = "".join(json.dumps(row) + "\n" for row in self.progress.history)
        write_atomically({self.run.metrics_file: lines.encode()})
        checkpoint.save(self.run.checkpoint_file, self.model, self.optimizer, self.progress, self.identity)

    def _describe(self, state: str) -> None:
        """Write ``run.json``."""
        data = {
            "name": self.data.name,
            "call": self.data.call,
            "fingerprint": self.data.fingerprint,
            "provenance": self.data.provenance,
            "train": len(self.train),
            "validation": len(self.validation) if self.validation is not None else 0,
            "test": len(self.data.test),
            "augmentation": self.data.augmentation.to_dict(),
        }
        self.run.write_about(
            {
                "state": state,
                **self._about,
                "data": data,
                "settings": self.settings.to_dict(),
                "config": self.model.config.to_dict(),
                "convolution": self.model.primary.convolution,
                "device": str(self.device),
                "threads": torch.get_num_threads(),
                "versions": versions(),
                "seconds": round(self.progress.seconds, 1),
            }
        )

    def _tell(self, speed: float) -> None:
        progress, sums = self.progress, self.progress.sums
        self._speed = speed if not self._speed else 0.9 * self._speed + 0.1 * speed
        left = (self.settings.epochs - progress.epoch) * len(self.train) - progress.step * self.settings.batch_size
        self.observe(
            Report(
                epoch=progress.epoch + 1,
                epochs=self.settings.epochs,
                step=progress.step,
                steps=self.steps,
                loss=sums["loss"] / sums["images"],
                accuracy=sums["correct"] / sums["images"],
                images_per_second=self._speed,
                seconds_left=max(left, 0) / self._speed,
            )
        )

    def _summary_writer(self) -> Any:
        from fastcaps._extras import require

        require("writing TensorBoard events", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        # What a run that was killed wrote of the epoch that is done again is taken back.
        return SummaryWriter(str(self.run.folder / "tensorboard"), purge_step=self.progress.epoch + 1)


@torch.no_grad()
def count_correct(model: CapsuleNetwork, split: Split, view: Callable[[Tensor], Tensor], batch_size: int = 256) -> int:
    """How many images of a part of a data set a network classifies as they are labelled."""
    device = next(model.parameters()).device
    return sum(
        int((model.predict(images.to(device)).cpu() == labels).sum())
        for images, labels in batches(split, batch_size, view=view)
    )


def versions() -> dict[str, str]:
    """What a result depends on, beside settings and data."""
    return {
        "fastcaps": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


@contextmanager
def _stop_between_steps() -> Iterator[threading.Event]:
    """Turn Ctrl-C and SIGTERM into a wish that is granted after the step; a second Ctrl-C is granted at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def wish(number: int, frame: Any) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, wish) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
