"""The trainer: from images to a trained network, in a run that can be stopped anywhere and resumes exactly there.

A run trains with dynamic routing, with fixed coefficients, or with dynamic routing first and fixed coefficients
afterwards. Weights that were trained with fixed coefficients can still be routed dynamically.

The order of the images and their augmentation follow from seed, epoch and step, and a checkpoint holds everything else:
a run that was killed and resumed ends with the same weights, bit for bit, as one that was not (on a CPU, with the same
number of threads).

In a distributed run the processes share each batch (`fastcaps.distributed`). The gradient is the mean over the images
of all processes, so that settings mean the same for any number of processes. Only rank 0 writes.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from fastcaps._files import write_atomically
from fastcaps._json import convert_json
from fastcaps._machine import Machine
from fastcaps._result import plain, without_none
from fastcaps.data import DataSet, Split, batches, steps_per_epoch
from fastcaps.distributed import current
from fastcaps.master import MasterCoefficients, fold
from fastcaps.master.summary import MasterSummary
from fastcaps.nn import CapsNet
from fastcaps.nn.base import check_capsule_network
from fastcaps.nn.inference import evaluating
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training import checkpoint
from fastcaps.training._deprecated import former_trainer_arguments
from fastcaps.training.accumulation import accumulate_between_epochs
from fastcaps.training.accuracy import count_correct
from fastcaps.training.checkpoint import Progress, RunIdentity
from fastcaps.training.description import DataDescription, Extension, InitialWeights, RunDescription, State
from fastcaps.training.interrupts import TrainingInterrupted, stop_between_steps
from fastcaps.training.loggers import JsonlLogger, Logger, get_logger, started
from fastcaps.training.optimization import Optimization, Step
from fastcaps.training.reports import EpochMetrics, Report
from fastcaps.training.result import versions
from fastcaps.training.run import Run
from fastcaps.training.schedule import Schedule
from fastcaps.training.settings import TrainSettings

# Largest number of training images from which the filters of the stem start.
_WHITENING_IMAGES = 1000


@dataclass(frozen=True)
class _CallerFields:
    """Fields of `RunDescription` that the caller of the trainer may set."""

    command: str | None = None
    init: InitialWeights | None = None
    master: MasterSummary | None = None
    fast_every: int | None = None


@final
class Trainer:
    """Train a network on a data set and write a run folder.

    Attributes:
        model: the network.
        data: the data set.
        settings: settings of the run.
        run: the run folder.
        validation: images held out of the training images, or None.
        schedule: the epochs, with their images, steps and learning rates.
        master: the fixed coefficients; None as long as there are none.
        progress: how far the run has come.
    """

    @former_trainer_arguments
    def __init__(
        self,
        model: CapsNet,
        data: DataSet,
        settings: TrainSettings,
        out: str | Path,
        *,
        master: MasterCoefficients | None = None,
        loggers: Sequence[Logger | str] = ("console",),
        measure: Callable[[CapsNet, int], dict[str, float]] = lambda model, epoch: {},
        about: dict[str, Any] | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            model: the network with its initial weights, on the device where it is trained.
            data: the data set; its test images are measured, but have no influence on the training.
            settings: settings of the run.
            out: the run folder.
            master: coefficients to train with in place of dynamic routing, from the first step on.
            loggers: loggers or their names, beside ``metrics.jsonl``, which is always written; console progress by
                default.
            measure: returns further metrics of an epoch, given the network and the number of the epoch, from 1.
            about: further entries for ``run.json``: ``command``, ``init``, ``master`` and ``fast_every`` as in
                `RunDescription`, and entries of your own.
        """
        _check_fit(model, data, master)
        _check_coefficients(settings, master)
        self.model, self.data, self.settings = model, data, settings
        self.run = Run(Path(out))
        self.validation: Split | None = None
        train = data.train
        if settings.validation:
            train, self.validation = data.validation_split(settings.validation, settings.seed)
        self.schedule = Schedule.of(settings, train, fixed=master is not None)
        self.master = master
        self.progress = Progress()
        self._world = current()
        self._optimization = Optimization(model, settings, self._world)
        self._initial_master = None if master is None else master.values_hash
        self._measure = measure
        self._about = _about_fields(plain(about or {}))
        self._loggers = [JsonlLogger(), *map(get_logger, loggers)] if self._world.is_main else []
        self._speed = 0.0

    def __repr__(self) -> str:
        """Return data, folder and progress."""
        done = f"{self.progress.epoch} of {self.settings.epochs} epochs"
        return f"Trainer({self.data.name!r}, {str(self.run.folder)!r}, {done})"

    @property
    def fixed(self) -> Tensor | None:
        """The fixed coefficients ``(i j)`` of this epoch; None for dynamic routing."""
        if self.progress.epoch < self.schedule.dynamic_epochs or self.master is None:
            return None
        return self.master.values

    def fit(self, *, resume: bool = False) -> list[EpochMetrics]:
        """Train to the end.

        Args:
            resume: resume from the checkpoint of the run folder; without it, a folder that holds a run is refused. With
                more epochs than before the run is extended: the remaining steps follow the learning rate schedule of
                the new number of epochs.

        Returns:
            The metrics of all epochs.

        Raises:
            TrainingInterrupted: Ctrl-C or SIGTERM, after a checkpoint.
        """
        with ExitStack() as stack:
            stack.enter_context(self._optimization.kernels_ordered())
            # An existing run is read under its lock. A new one is locked after the checks: they must not make a folder.
            exists = self.run.checkpoint_file.exists()
            if exists and self._world.is_main:
                stack.enter_context(self.run.locked())
            self._restore(resume)
            if not exists and self._world.is_main:
                stack.enter_context(self.run.locked())
            if self.settings.routing_only:
                stack.enter_context(self._optimization.routing_only())
            stopped = stack.enter_context(stop_between_steps())
            self._prepare_folder(resume)
            stack.enter_context(self._state_written())
            stack.enter_context(started(self._loggers, self.run, self.progress.history))
            self._optimization.distribute()
            while self.progress.epoch < self.settings.epochs:
                if self._accumulation_due():
                    self._accumulate(stopped)
                self._train_epoch(stopped)
                self._close_epoch()
            self._finish()
        return self.progress.history

    @contextmanager
    def _state_written(self) -> Iterator[None]:
        """Write into ``run.json`` how the run ended."""
        try:
            yield
        except KeyboardInterrupt:
            self._describe("interrupted")
            raise TrainingInterrupted(self.run.folder) from None
        except BaseException:
            with suppress(OSError):  # don't hide the original error, such as a full disk
                self._describe("failed")
            raise

    def _restore(self, resume: bool) -> None:
        """Load the run of the folder, or refuse it."""
        identity = self._identity()
        if resume:
            if self.run.about_file.is_file():
                # The command that started the run.
                self._about |= without_none(command=self.run.about.command, extended=self.run.about.extended)
            self.progress = checkpoint.load(
                self.run.checkpoint_file, self.model, self._optimization.adam, identity, self._optimization.average
            )
            if self.progress.accumulated is not None:
                self.master = self.run.master(self.run.master_file)
            self._note_extension()
        elif self.run.checkpoint_file.exists():
            raise ValueError(
                f"{self.run.folder} holds a run already: pass resume=True to continue it, or choose another folder"
            )
        # All processes have read before one writes.
        self._world.check_same(
            **(self.settings.to_dict() | identity.to_dict()), epoch=self.progress.epoch, step=self.progress.step
        )
        if not resume:
            self._whiten_stem()
            self.progress.accumulated = None if self.master is None else 0

    def _note_extension(self) -> None:
        """Remember for ``run.json`` when a run got more epochs."""
        before = self.run.settings.epochs if self.run.about_file.is_file() else self.settings.epochs
        if before < self.settings.epochs:
            extension = Extension(before, self.settings.epochs, self.progress.epoch)
            self._about["extended"] = (*self._about.get("extended", ()), extension)

    def _prepare_folder(self, resume: bool) -> None:
        if self._world.is_main and not resume and self.master is not None:
            self.master.save(self.run.master_file)
        # The checkpoint comes first: wherever a run is killed, it can be resumed.
        self._save()
        self._describe("running")

    def _identity(self) -> RunIdentity:
        return RunIdentity(
            settings=self.settings,
            config=self.model.config,
            augmentation=self.data.augmentation,
            data=self.data.fingerprint,
            convolution=self.model.primary.convolution,
            master=self._initial_master,
            init=None if "init" not in self._about else self._about["init"].weights,
        )

    def _whiten_stem(self) -> None:
        """Start the filters of the stem from training images, evenly spaced over the set, if that is a setting."""
        if self.settings.whiten_stem:
            train = self.schedule.train
            indices = torch.arange(0, len(train), -(-len(train) // _WHITENING_IMAGES))
            self._optimization.whiten_stem(self.data.augmentation.test_view(train.images(indices)))

    def _accumulation_due(self) -> bool:
        progress = self.progress
        accumulated = progress.accumulated == progress.epoch
        return not accumulated and progress.step == 0 and self.schedule.accumulates_before(progress.epoch)

    def _accumulate(self, stopped: threading.Event) -> None:
        """Accumulate the coefficients of the next epochs, from the images trained on so far."""
        progress = self.progress
        images = self.schedule.images(max(0, progress.epoch - 1))
        size, last, done = self.settings.batch_size, progress.history[-1], 0
        total = steps_per_epoch(images, size)

        def observe(task: str, count: int) -> None:
            nonlocal done
            done += count
            self._report(task, min(total, -(-done // size)), total, (last.loss, last.accuracy))
            if stopped.is_set():
                raise KeyboardInterrupt

        with self._optimization.averaged():
            self.master = accumulate_between_epochs(
                self.model, images, self.data, self.settings, progress.epoch, self.master, observe
            )
        if progress.epoch == self.schedule.dynamic_epochs:
            # The best accuracy with dynamic routing is not comparable with that of the epochs that follow.
            progress.best = None
            if self.settings.reinit:
                self._optimization.reinitialize(self.master)
                self._whiten_stem()
        progress.accumulated = progress.epoch
        # The coefficients come first: a run that dies here accumulates them again with the weights of the checkpoint.
        if self._world.is_main:
            self.master.save(self.run.master_file)
        self._save()

    def _train_epoch(self, stopped: threading.Event) -> None:
        progress, settings, device = self.progress, self.settings, self.model.routing.weight.device
        self.model.train()
        if settings.routing_only:
            # BatchNorm must keep its statistics, too.
            self.model.stem.eval()
            self.model.primary.eval()
        images_left = len(self.schedule.images(progress.epoch)) - progress.step * settings.batch_size
        time_before = time.monotonic()
        for images, labels in batches(
            self.schedule.images(progress.epoch),
            settings.batch_size,
            view=self.data.augmentation,
            shuffle_seed=settings.seed,
            epoch=progress.epoch,
            start=progress.step,
            rank=self._world.rank,
            world=self._world.size,
        ):
            step = self._optimization.step(
                (images.to(device), labels.to(device)),
                min(images_left, settings.batch_size),
                self.schedule.rate(progress.epoch, progress.step),
                self.fixed,
                stopped.is_set(),
            )
            if self._optimization.average is not None:
                self._optimization.average.update(self.schedule.done(progress.epoch, progress.step))
            images_left -= step.images
            progress.add(step.loss, step.correct, step.images)
            progress.saturated = self._optimization.check_step(step, progress.saturated, progress.where)
            now = time.monotonic()
            progress.seconds += now - time_before
            self._report_step(step, now - time_before)
            time_before = now
            self._save_within_epoch(stopped.is_set() if self._world.is_single else step.stopped)

    def _save_within_epoch(self, stopped: bool) -> None:
        every = self.settings.checkpoint_every
        if stopped or (every and self.progress.step % every == 0):
            self._save()
        if stopped:
            raise KeyboardInterrupt

    def _close_epoch(self) -> None:
        progress = self.progress
        # Save first: measuring may take longer than a batch system waits for a job to stop.
        self._save()
        with self._optimization.averaged():
            metrics = self._measure_epoch()
            progress.close_epoch(metrics)
            if self.validation is not None and progress.is_best(metrics):
                progress.best = metrics
                self._optimization.check_weights(progress.where)
                self._world.on_main(self._save_best)
        for logger in self._loggers:
            logger.epoch(metrics)
        self._save()

    def _measure_epoch(self) -> EpochMetrics:
        progress, settings, number = self.progress, self.settings, self.progress.epoch + 1
        tested = settings.test_every and (number == settings.epochs or number % settings.test_every == 0)
        return EpochMetrics(
            epoch=number,
            routing="dynamic" if self.fixed is None else "fixed",
            loss=progress.loss,
            accuracy=progress.accuracy,
            learning_rate=self.schedule.rate(progress.epoch, self.schedule.steps(progress.epoch) - 1),
            validation_accuracy=None if self.validation is None else self._accuracy(self.validation),
            test_accuracy=self._accuracy(self.data.test) if tested else None,
            measures=self._measure(self.model, number),
            seconds=round(progress.seconds, 1),
        )

    def _accuracy(self, split: Split) -> float:
        with evaluating(self.model):
            network = self.model if self.fixed is None else fold(self.model, self.fixed)
            correct = count_correct(network, split, self.data.augmentation.test_view, world=self._world)
        return correct / len(split)

    def _save_best(self) -> None:
        files = self.model.pretrained_files(self.run.best_folder)
        if self.master is not None:
            files[self.run.best_master_file] = self.master.to_bytes()
        write_atomically(files)

    def _finish(self) -> None:
        self._optimization.check_weights(self.progress.where)
        self.model.eval()
        if self.validation is not None:
            self.model.load_state_dict(CapsNet.from_pretrained(self.run.best_folder).state_dict())
        else:
            self._optimization.use_average()
        self.model.provenance = {
            "data": self.data.name,
            "data_provenance": self.data.provenance,
            "background": self.data.background,
            "settings": self.settings.to_dict(),
            "epoch": self.progress.selected.to_dict(),
            "versions": versions(),
        }
        if self.master is not None:
            master = self.master if self.validation is None else self.run.master(self.run.best_master_file)
            self.master = replace(master, trained_with=weights_hash(self.model))
        if self._world.is_main:
            self._describe("finished", self._results())
        self._world.barrier()  # all files exist when this method returns

    def _results(self) -> dict[Path, bytes | None]:
        """Return the files of the network, of the coefficients it was trained with, and of both folded.

        Files made with other weights, before the run was extended, are removed.
        """
        files: dict[Path, bytes | None] = {}
        if self.run.model_folder.is_dir() and weights_hash(self.run.model()) != weights_hash(self.model):
            files = self.run.outdated()
        files |= self.model.pretrained_files(self.run.model_folder)
        if self.master is not None:
            files[self.run.master_file] = self.master.to_bytes()
            files |= fold(self.model, self.master).pretrained_files(self.run.fast_folder)
        return files

    def _save(self) -> None:
        self._optimization.check_weights(self.progress.where)
        self._world.on_main(
            lambda: checkpoint.save(
                self.run.checkpoint_file,
                self.model,
                self._optimization.adam,
                self.progress,
                self._identity(),
                self._optimization.average,
            )
        )

    def _describe(self, state: State, files: dict[Path, bytes | None] | None = None) -> None:
        """Write ``run.json``, and other files with it."""
        if not self._world.is_main:
            return
        held_out = 0 if self.validation is None else len(self.validation)
        about = RunDescription(
            state=state,
            data=DataDescription.of(self.data, len(self.schedule.train), held_out),
            settings=self.settings,
            config=self.model.config,
            convolution=self.model.primary.convolution,
            fixed_coefficients=self.schedule.dynamic_epochs < self.settings.epochs,
            device=str(self.model.routing.weight.device),
            threads=torch.get_num_threads(),
            processes=self._world.size,
            machine=Machine.this(),
            versions=versions(),
            seconds=round(self.progress.seconds, 1),
            **self._about,
        )
        self.run.write_about(about, files)

    def _report_step(self, step: Step, seconds: float) -> None:
        speed = step.images / seconds
        self._speed = speed if not self._speed else 0.9 * self._speed + 0.1 * speed
        progress = self.progress
        self._report("training", progress.step, self.schedule.steps(progress.epoch), (progress.loss, progress.accuracy))

    def _report(self, task: str, step: int, steps: int, means: tuple[float, float]) -> None:
        progress = self.progress
        left = self.schedule.images_left(progress.epoch, progress.step)
        report = Report(
            task=task,
            epoch=progress.epoch + 1,
            epochs=self.settings.epochs,
            step=step,
            steps=steps,
            loss=means[0],
            accuracy=means[1],
            images_per_second=self._speed,
            seconds_left=left / self._speed if self._speed else 0.0,
        )
        for logger in self._loggers:
            logger.step(report)


def _about_fields(about: dict[str, Any]) -> dict[str, Any]:
    """Return further entries for ``run.json`` as fields of its description; refuse those that the trainer writes."""
    allowed = {entry.name for entry in fields(_CallerFields)}
    reserved = sorted(about.keys() & {entry.name for entry in fields(RunDescription)} - allowed)
    if reserved:
        raise ValueError(
            f"about has {', '.join(reserved)}, which the trainer itself writes into run.json: expected other names, or "
            f"{', '.join(sorted(allowed))}"
        )
    more = {name: value for name, value in about.items() if name not in allowed}
    return {**without_none(**vars(convert_json(about, _CallerFields, "about"))), "more": more}


def _check_fit(model: CapsNet, data: DataSet, master: MasterCoefficients | None) -> None:
    """Raise for a module without configuration, or when network, data and coefficients have different sizes."""
    check_capsule_network(model, "Trainer")
    config = model.config
    if tuple(data.image_shape) != (config.channels, config.height, config.width):
        raise ValueError(
            f"{data.name} has images of {'×'.join(map(str, data.image_shape))}, the network is for "
            f"{config.channels}×{config.height}×{config.width}: make it with data.config()"
        )
    if data.classes != config.classes:
        raise ValueError(f"{data.name} has {data.classes} classes, the network {config.classes}")
    if master is not None and master.values.shape != (config.lower_capsules, config.classes):
        raise ValueError(
            f"master coefficients are for {'×'.join(map(str, master.values.shape))} capsules, this model has "
            f"{config.lower_capsules}×{config.classes}"
        )


def _check_coefficients(settings: TrainSettings, master: MasterCoefficients | None) -> None:
    """Raise if the settings don't match training with or without fixed coefficients."""
    if master is None:
        if settings.distill:
            raise ValueError("distill=True is for fixed coefficients: give master coefficients")
        if settings.refresh_every and settings.dynamic_epochs is None:
            raise ValueError("only fixed coefficients are refreshed: give master coefficients, or dynamic_epochs=")
        return
    if settings.dynamic_epochs is not None:
        raise ValueError("a run with master coefficients from the start has no dynamic_epochs=: give one of them")
    if settings.refresh_every and master.filters:
        names = ", ".join(report.name for report in master.filters)
        raise ValueError(
            f"master coefficients that were filtered ({names}) are not refreshed: leave refresh_every= out, or give "
            "coefficients without filters"
        )
