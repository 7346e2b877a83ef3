"""The trainer: from images to a trained network, in a run that can be stopped anywhere and goes on exactly there.

A run has epochs with dynamic routing, epochs with fixed coefficients, or first some of the one and then the other. With
fixed coefficients the weights are still those of a network that can be routed dynamically: its sibling.

The order of the images and their augmentation follow from seed, epoch and step, and a checkpoint holds all the rest:
a run that was killed and resumed ends with the very weights of one that was not (on a CPU, with as many threads).

Several processes share each batch (`fastcaps.distributed`). The gradient is the mean over the images of all, whoever
has how many, so that settings mean the same for any number of processes; only the first writes.
"""

import json
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fastcaps._files import write_atomically
from fastcaps._version import __version__
from fastcaps.data import DataSet, Split, batches, steps_per_epoch
from fastcaps.data.dataset import stratified
from fastcaps.distributed import SINGLE, World
from fastcaps.functional import cross_entropy_loss, margin_loss, reconstruction_loss
from fastcaps.master import MasterCoefficients, Method, fold
from fastcaps.nn import CapsNet, CapsuleNetwork
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training import checkpoint
from fastcaps.training.accumulation import accumulate_split
from fastcaps.training.checkpoint import Progress
from fastcaps.training.result import machine
from fastcaps.training.run import Run, training_provenance
from fastcaps.training.settings import TrainSettings

# Capsules whose mean length stays above this for so many steps have no slope left to learn on.
_SATURATED, _PATIENCE = 0.99, 50


@dataclass(frozen=True)
class Report:
    """What an observer is told after each step.

    Attributes:
        task: ``"training"``, or ``"accumulating"`` while coefficients are made between two epochs.
        epoch: from 1.
        epochs: of the run.
        step: of the epoch, from 1.
        steps: of an epoch.
        loss: mean of this epoch so far.
        accuracy: of this epoch so far, on the augmented training images.
        images_per_second: of the last steps, by all processes together.
        seconds_left: until the end of the run.
    """

    task: str
    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float
    images_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class _Step:
    """A step of all processes: its loss, images, right answers, capsules' mean length, and whether to stop after it."""

    loss: float
    images: int
    correct: float
    length: float
    stopped: bool


class _Objective(nn.Module):
    """The loss of a network on some images, and the lengths ``(b j)`` of its class capsules."""

    def __init__(self, model: CapsNet, settings: TrainSettings) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        # Never used, so that looking for such a one is not in vain, which PyTorch would complain of.
        self.unused = nn.Parameter(torch.zeros(1, device=model.routing.weight.device))

    def forward(self, images: Tensor, labels: Tensor, fixed: Tensor | None) -> tuple[Tensor, Tensor]:
        settings = self.settings
        output = self.model(images, fixed=fixed)
        if settings.loss == "margin":
            loss = margin_loss(
                output.lengths, labels, settings.positive_margin, settings.negative_margin, settings.negative_weight
            )
        else:
            loss = cross_entropy_loss(output.lengths, labels, settings.sharpness)
        if settings.reconstruction_weight:
            drawn = self.model.reconstruct(output.capsules, labels)
            loss = loss + reconstruction_loss(drawn, images, settings.reconstruction_weight)
        return loss, output.lengths.detach()


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
        master: MasterCoefficients | None = None,
        about: dict[str, Any] | None = None,
        observe: Callable[[Report], None] = lambda report: None,
        measure: Callable[[CapsNet, int], dict[str, float]] = lambda model, epoch: {},
        tensorboard: bool = False,
        world: World = SINGLE,
    ) -> None:
        """Prepare a run.

        Args:
            model: as it should start, on the device where it should train.
            data: its training images; its test images decide nothing.
            settings: constants of the run.
            out: the run folder.
            master: coefficients to train with in place of dynamic routing, from the first step on.
            about: further entries for ``run.json``, such as the command.
            observe: told of every step.
            measure: given the network after an epoch and the epoch's number, from 1: further entries for its row.
            tensorboard: whether to write events to ``tensorboard/`` in the run folder.
            world: the processes that share the work, each with the same arguments.
        """
        if tuple(data.image_shape) != (model.config.channels, model.config.height, model.config.width):
            raise ValueError(
                f"{data.name} has images of {'×'.join(map(str, data.image_shape))}, the network is for "
                f"{model.config.channels}×{model.config.height}×{model.config.width}: make it with data.config()"
            )
        if data.classes != model.config.classes:
            raise ValueError(f"{data.name} has {data.classes} classes, the network {model.config.classes}")
        if master is not None:
            if settings.dynamic_epochs is not None:
                raise ValueError(
                    "a run with master coefficients from the start has no dynamic_epochs: give one of them"
                )
            i, j = model.config.lower_capsules, model.config.classes
            if master.values.shape != (i, j):
                given = "×".join(str(size) for size in master.values.shape)
                raise ValueError(f"master coefficients are for {given} capsules, this model has {i}×{j}")
            if settings.refresh and master.filters:
                names = ", ".join(entry["name"] for entry in master.filters)
                raise ValueError(
                    f"master coefficients that were filtered ({names}) are not refreshed: "
                    "leave refresh out, or give some that were not"
                )
        elif settings.refresh and settings.dynamic_epochs is None:
            raise ValueError("only fixed coefficients are refreshed: give master coefficients, or dynamic_epochs")
        self.model, self.data, self.settings, self.world = model, data, settings, world
        self._objective: nn.Module = _Objective(model, settings)
        self.master = master
        self.run = Run(Path(out))
        self.train: Split = data.train
        self.validation: Split | None = None
        if settings.validation:
            self.train, self.validation = data.validation_split(settings.validation, settings.seed)
        self.optimizer = self._adam()
        self.dynamic_train = self.train
        if settings.dynamic_fraction < 1:
            count = max(1, round(settings.dynamic_fraction * len(self.train)))
            _, part = stratified(self.train.labels.numpy(), count, settings.seed)
            self.dynamic_train = self.train.subset(torch.from_numpy(part))
            missing = sorted(set(self.train.labels.tolist()) - set(self.dynamic_train.labels.tolist()))
            if missing:
                raise ValueError(
                    f"dynamic_fraction {settings.dynamic_fraction:g} of {len(self.train)} images has none of class "
                    f"{', '.join(map(str, missing))}, and every class is accumulated: take a larger part"
                )
        self.dynamic_epochs = settings.epochs if settings.dynamic_epochs is None else settings.dynamic_epochs
        if master is not None:
            self.dynamic_epochs = 0
        self._given = None if master is None else master.values_hash
        self.progress = Progress()
        self.observe = observe
        self._measure = measure
        self._about = dict(about or {})
        self._tensorboard = tensorboard
        self._writer: Any = None
        self._speed = 0.0

    def _adam(self) -> torch.optim.Adam:
        return torch.optim.Adam(self.model.parameters(), lr=self.settings.learning_rate, fused=True)

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
            "master": self._given,
            "init": self._about.get("init", {}).get("weights"),
        }

    @property
    def fixed(self) -> Tensor | None:
        """The coefficients ``(i j)`` of this epoch; None where it routes dynamically."""
        if self.progress.epoch < self.dynamic_epochs or self.master is None:
            return None
        return self.master.values

    def steps(self, epoch: int) -> int:
        """Steps of an epoch, counted from 0."""
        return steps_per_epoch(self._images(epoch), self.settings.batch_size)

    def fit(self, *, resume: bool = False) -> list[dict[str, Any]]:
        """Train to the end.

        Args:
            resume: go on from the run folder's checkpoint; without it, a folder that holds a run is refused.

        Returns:
            One entry for each epoch: loss, accuracy, validation and test accuracy where measured, learning rate, time.
        """
        with ExitStack() as stack:
            # A run that is there is looked at when no other process changes it; a refused start makes no folder.
            there = self.run.checkpoint_file.exists()
            if there and self.world.is_main:
                stack.enter_context(self.run.locked())
            self._look(resume)
            if not there and self.world.is_main:
                stack.enter_context(self.run.locked())
            if self.settings.routing_only:
                stack.enter_context(_frozen(self.model, but=self.model.routing))
            return self._fit(resume)

    def _look(self, resume: bool) -> None:
        """Take up the run that is there, or refuse it."""
        if resume:
            if self.run.about_file.is_file() and "command" in self.run.about:
                self._about["command"] = self.run.about[
                    "command"
                ]  # the one that makes the run, not the one that goes on
            self.progress = checkpoint.load(self.run.checkpoint_file, self.model, self.optimizer, self.identity)
            if self.progress.accumulated is not None:
                self.master = self.run.master()
        elif self.run.checkpoint_file.exists():
            raise ValueError(f"{self.run.folder} holds a run already: pass --resume to go on, or choose another folder")
        # All have looked before one writes.
        self.world.check_same(
            **(self.settings.to_dict() | self.identity), epoch=self.progress.epoch, step=self.progress.step
        )
        if not resume and self.master is not None:
            self.progress.accumulated = 0

    def _fit(self, resume: bool) -> list[dict[str, Any]]:
        if self.world.is_main and not resume and self.master is not None:
            self.master.save(self.run.master_file)
        # The checkpoint comes first: wherever a run is killed, it can be resumed.
        self._save()
        self._describe("running")
        self._writer = self._summary_writer() if self._tensorboard and self.world.is_main else None
        if not self.world.is_single:
            # Gradients are added up in the same order in every run: looking for parameters that a step doesn't use
            # keeps PyTorch from arranging them anew after the first step.
            self._objective = DistributedDataParallel(self._objective, find_unused_parameters=True)
        with _stop_between_steps() as stopped:
            while self.progress.epoch < self.settings.epochs:
                if self._due():
                    self._accumulate(stopped)
                self._epoch(stopped)
        self._finish()
        return self.progress.history

    def _images(self, epoch: int) -> Split:
        """What an epoch, counted from 0, is trained on."""
        return self.dynamic_train if epoch < self.dynamic_epochs else self.train

    def _due(self) -> bool:
        """Whether coefficients are to be accumulated before the epoch that follows."""
        since = self.progress.epoch - self.dynamic_epochs
        if since < 0 or self.progress.accumulated == self.progress.epoch:
            return False
        return self.progress.step == 0 and (
            since == 0 or (self.settings.refresh > 0 and since % self.settings.refresh == 0)
        )

    def _accumulate(self, stopped: threading.Event) -> None:
        """Make the coefficients of the epochs that follow, of the images trained on so far."""
        progress = self.progress
        images = self._images(max(0, progress.epoch - 1))
        size = self.settings.batch_size
        task, total, done = "accumulating", steps_per_epoch(images, size), 0

        def announce(words: str) -> None:
            nonlocal task
            task = "accumulating in parts"

        def observe(count: int) -> None:
            nonlocal done
            done += count
            self._report(task, min(total, -(-done // size)), total, progress.history[-1])
            if stopped.is_set():
                raise KeyboardInterrupt

        self.model.eval()
        self.master = accumulate_split(
            self.model,
            images,
            self.data.augmentation.test_view,
            size,
            iteration=self._iteration(),
            method="containers" if self.master is None else cast(Method, self.master.method),
            observe=self.world.counting(observe),
            announce=announce,
            world=self.world,
            provenance={**training_provenance(self.data, self.settings.to_dict()), "epoch": progress.epoch},
        )
        if progress.epoch == self.dynamic_epochs:
            # What dynamic routing did best is no measure for what follows.
            progress.best = None
            if self.settings.afresh:
                self._start_afresh()
        progress.accumulated = progress.epoch
        # First the coefficients: a run that dies here makes them again from the old checkpoint's weights.
        if self.world.is_main:
            self.master.save(self.run.master_file)
        self._save()

    def _iteration(self) -> int | Literal["after"] | None:
        """Of routing, whose coefficients are accumulated: the same as of those before."""
        before = None if self.master is None else self.master.iteration
        return "after" if before == self.model.config.iterations + 1 else before

    def _start_afresh(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(self.settings.seed)
            fresh = CapsNet(self.model.config)
            if self.master is not None:
                fresh.routing.reset_parameters(self.master.values)
            self.model.load_state_dict(fresh.state_dict())
        self.optimizer = self._adam()

    def _epoch(self, stopped: threading.Event) -> None:
        progress, settings = self.progress, self.settings
        self.model.train()
        if settings.routing_only:
            # So that BatchNorm keeps its statistics, too.
            self.model.stem.eval()
            self.model.primary.eval()
        view = self.data.augmentation
        sums = progress.sums or {"loss": 0.0, "correct": 0.0, "images": 0.0}
        progress.sums = sums
        begun = time.monotonic()
        for images, labels in batches(
            self._images(progress.epoch),
            settings.batch_size,
            view=view,
            shuffle_seed=settings.seed,
            epoch=progress.epoch,
            start=progress.step,
            rank=self.world.rank,
            world=self.world.size,
        ):
            done = self._step(images.to(self.device), labels.to(self.device), stopped.is_set())
            sums["loss"] += done.loss * done.images
            sums["correct"] += done.correct
            sums["images"] += done.images
            progress.step += 1
            self._check(done.loss, done.length)
            now = time.monotonic()
            progress.seconds += now - begun
            self._tell(done.images / (now - begun))
            begun = now
            if stopped.is_set() if self.world.is_single else done.stopped:
                self._save()
                raise KeyboardInterrupt
            if settings.checkpoint_every and progress.step % settings.checkpoint_every == 0:
                self._save()
        self._close_epoch(sums)

    def _step(self, images: Tensor, labels: Tensor, stopped: bool) -> "_Step":
        """One step of Adam on this process's images of a batch."""
        world, progress = self.world, self.progress
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(progress.step)
        loss, lengths = self._objective(images, labels, self.fixed)
        count = len(labels)
        if not world.is_single:
            # Gradients are averaged over processes, and the loss is a mean over this one's images.
            whole = len(self._images(progress.epoch)) - progress.step * self.settings.batch_size
            count = min(whole, self.settings.batch_size)
            loss = loss * (world.size * len(labels) / count)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        correct = float((lengths.argmax(1) == labels).sum())
        if world.is_single:
            return _Step(float(loss.detach()), count, correct, float(lengths.mean()), stopped)
        found = torch.tensor(
            [float(loss.detach()) / world.size, correct, float(lengths.sum()), float(stopped)], dtype=torch.float64
        )
        world.all_reduce_now(found)
        loss_, correct, length, wishes = found.tolist()
        return _Step(loss_, count, correct, length / (count * lengths.shape[1]), wishes > 0)

    def _rate(self, step: int) -> float:
        """The learning rate of a step of this epoch, counted from 0."""
        epoch, dynamic = self.progress.epoch, self.dynamic_epochs
        # What starts afresh has a learning rate of its own, from the beginning.
        part = range(self.settings.epochs)
        if self.settings.afresh:
            part = part[:dynamic] if epoch < dynamic else part[dynamic:]
        done = sum(self.steps(k) for k in part if k < epoch) + step
        return self.settings.rate(done, sum(self.steps(k) for k in part))

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
        # Measuring may take longer than whoever stops a job waits.
        self._save()
        row: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "routing": "dynamic" if self.fixed is None else "fixed",
            "loss": sums["loss"] / sums["images"],
            "accuracy": sums["correct"] / sums["images"],
            "learning_rate": self._rate(self.steps(progress.epoch) - 1),
        }
        if self.validation is not None:
            row["validation_accuracy"] = self._accuracy(self.validation)
        last = progress.epoch + 1 == settings.epochs
        if settings.test_every and (last or (progress.epoch + 1) % settings.test_every == 0):
            row["test_accuracy"] = self._accuracy(self.data.test)
        row |= self._measure(self.model, row["epoch"])
        row["seconds"] = round(progress.seconds, 1)
        progress.epoch, progress.step, progress.sums = progress.epoch + 1, 0, {}
        progress.history.append(row)
        best = progress.best
        if self.validation is not None and (best is None or row["validation_accuracy"] > best["validation_accuracy"]):
            progress.best = row
            self._check_weights()
            self.world.on_main(self._keep_best)
        if self._writer is not None:
            for name, value in row.items():
                if not isinstance(value, str):
                    self._writer.add_scalar(name, value, progress.epoch)
            self._writer.flush()
        self._save()

    def _keep_best(self) -> None:
        self.model.save_pretrained(self.run.best_folder)
        if self.master is not None:
            self.master.save(self.run.best_master_file)

    def _accuracy(self, split: Split) -> float:
        self.model.eval()
        network = self.model if self.fixed is None else fold(self.model, self.fixed)
        correct = count_correct(network, split, self.data.augmentation.test_view, world=self.world)
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
        if self.world.is_main:
            self.model.save_pretrained(self.run.model_folder)
        if self.master is not None:
            self._keep_master()
        self._describe("finished")
        self.world.barrier()  # whoever goes on finds all files
        if self._writer is not None:
            self._writer.close()

    def _keep_master(self) -> None:
        """Leave the coefficients with which the weights were trained, and both as one folded network."""
        master = self.master if self.validation is None else self.run.master(self.run.best_master_file)
        assert master is not None
        self.master = replace(master, trained_with=weights_hash(self.model))
        if self.world.is_main:
            self.master.save(self.run.master_file)
            fold(self.model, self.master).save_pretrained(self.run.fast_folder)

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
        self.world.on_main(self._write)

    def _write(self) -> None:
        lines = "".join(json.dumps(row) + "\n" for row in self.progress.history)
        write_atomically({self.run.metrics_file: lines.encode()})
        checkpoint.save(self.run.checkpoint_file, self.model, self.optimizer, self.progress, self.identity)

    def _describe(self, state: str) -> None:
        """Write ``run.json``."""
        if not self.world.is_main:
            return
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
                "fixed_coefficients": self.dynamic_epochs < self.settings.epochs,
                "device": str(self.device),
                "threads": torch.get_num_threads(),
                "processes": self.world.size,
                "machine": machine(),
                "versions": versions(),
                "seconds": round(self.progress.seconds, 1),
            }
        )

    def _tell(self, speed: float) -> None:
        progress, sums = self.progress, self.progress.sums
        self._speed = speed if not self._speed else 0.9 * self._speed + 0.1 * speed
        means = {"loss": sums["loss"] / sums["images"], "accuracy": sums["correct"] / sums["images"]}
        self._report("training", progress.step, self.steps(progress.epoch), means)

    def _report(self, task: str, step: int, steps: int, means: dict[str, Any]) -> None:
        progress, settings = self.progress, self.settings
        left = sum(len(self._images(epoch)) for epoch in range(progress.epoch, settings.epochs))
        left -= progress.step * settings.batch_size
        self.observe(
            Report(
                task=task,
                epoch=progress.epoch + 1,
                epochs=settings.epochs,
                step=step,
                steps=steps,
                loss=means["loss"],
                accuracy=means["accuracy"],
                images_per_second=self._speed,
                seconds_left=max(left, 0) / self._speed if self._speed else 0.0,
            )
        )

    def _summary_writer(self) -> Any:
        from fastcaps._extras import require

        require("writing TensorBoard events", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        # What a run that was killed wrote of the epoch that is done again is taken back.
        return SummaryWriter(str(self.run.folder / "tensorboard"), purge_step=self.progress.epoch + 1)


@torch.no_grad()
def count_correct(
    model: CapsuleNetwork,
    split: Split,
    view: Callable[[Tensor], Tensor],
    batch_size: int = 256,
    world: World = SINGLE,
) -> int:
    """How many images of a part of a data set a network classifies as they are labelled; ranks share them."""
    device = next(model.parameters()).device
    mine = split.subset(torch.arange(len(split))[world.share(len(split))])
    correct = sum(
        int((model.predict(images.to(device)).cpu() == labels).sum())
        for images, labels in batches(mine, batch_size, view=view)
    )
    total = torch.tensor(correct)
    world.all_reduce(total)
    return int(total)


def versions() -> dict[str, str]:
    """What a result depends on, beside settings and data."""
    return {
        "fastcaps": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


@contextmanager
def _frozen(model: CapsNet, *, but: nn.Module) -> Iterator[None]:
    """Keep the weights of a network as they are, but for those of one layer."""
    kept = {id(parameter) for parameter in but.parameters()}
    others = [parameter for parameter in model.parameters() if id(parameter) not in kept and parameter.requires_grad]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


@contextmanager
def _stop_between_steps() -> Iterator[threading.Event]:
    """Turn Ctrl-C and SIGTERM into a wish that is granted after the step; a second Ctrl-C is granted at once.

    Not a second SIGTERM: batch systems send it to every process, and launchers send it on.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def wish(number: int, frame: Any) -> None:
        if stopped.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, wish) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
