"""Train a network on images and write a run folder."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fastcaps._files import write_atomically
from fastcaps._progress import say
from fastcaps._result import Result, Table, without_none
from fastcaps.data import DataSet, load
from fastcaps.data.registry import SETS
from fastcaps.distributed import current
from fastcaps.functional import get_normalization
from fastcaps.master import MasterCoefficients, uniform_coefficients
from fastcaps.nn import CapsNet
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training.config import ConfigError, DataOptions, TrainConfig
from fastcaps.training.loggers import Logger
from fastcaps.training.reports import EpochMetrics
from fastcaps.training.run import Run, check_not_held_out
from fastcaps.training.settings import TrainSettings
from fastcaps.training.trainer import Trainer
from fastcaps.workflows._common import restores_threads, select_device
from fastcaps.workflows._small_data import few_steps_warnings, folder_settings, nothing_learned_warnings
from fastcaps.workflows._summary import FolderSummary

# The recipe of every data set: its defaults.
_PAPER = "paper"
# Settings that only apply to one of the losses.
_OF_LOSS = {"sharpness": "cross_entropy"} | dict.fromkeys(
    ("positive_margin", "negative_margin", "negative_weight"), "margin"
)


@dataclass(frozen=True, repr=False, eq=False)
class TrainResult(Result):
    """A finished training run.

    Attributes:
        run: the run folder.
        history: metrics of all epochs.
        selected: metrics of the epoch whose weights are the result: the best on the validation images, or the last.
        next_step: the next workflow: ``"accumulate"``, or ``"evaluate"`` after training with fixed
            coefficients.
        warnings: reasons why the network may not have learned, one sentence each; also printed on stderr.
    """

    run: str
    history: Sequence[EpochMetrics]
    selected: EpochMetrics
    next_step: Literal["accumulate", "evaluate"]
    warnings: tuple[str, ...] = ()

    def tables(self) -> list[Table]:
        """Return the metrics of the selected epoch."""
        metrics = self.selected
        cells = {"epoch": f"{metrics.epoch} of {len(self.history)}", "loss": f"{metrics.loss:.4f}"}
        accuracies = {
            "training": metrics.accuracy,
            "validation": metrics.validation_accuracy,
            "test": metrics.test_accuracy,
        }
        cells |= {f"{name} accuracy": f"{value:.2%}" for name, value in accuracies.items() if value is not None}
        return [Table(self.run, list(cells), [list(cells.values())])]


@restores_threads
def train(
    data: DataSet | str | Path | None = None,
    out: str | Path | None = None,
    *,
    config: TrainConfig | str | Path | None = None,
    settings: TrainSettings | None = None,
    resume: bool | str | Path = False,
    loggers: Sequence[Logger | str] = ("console",),
    command: str | None = None,
    **changes: Any,
) -> TrainResult:
    """Train a capsule network with dynamic routing, or with fixed master coefficients.

    The run folder gets the trained network, metrics, a checkpoint and ``config.toml``, which describes the run
    completely: ``train(config="RUN/config.toml", out="other")`` repeats it.

    Args:
        data: a data set, its name, or a folder of images.
        out: the run folder.
        config: a configuration or its file.
        settings: all settings; by default those for the data set, or those for training from ``init=``. For a folder
            of images, the default batch size and learning rate depend on the number of images.
        resume: a run folder to resume, which needs no other argument; or True to resume the run of ``out``. With more
            ``epochs`` the run is extended: the remaining epochs follow the learning rate schedule of the new number.
            A job that ``torchrun`` has restarted resumes automatically.
        loggers: loggers or their names, in addition to ``metrics.jsonl`` and those of the configuration.
        command: command line to store with the run.
        changes: entries of the configuration, such as ``epochs=5``, ``normalization="softmax"``, ``init="runs/first"``,
            ``coefficients="uniform"``, ``threads=2``; see `fastcaps.training.TrainConfig`.
    """
    if not isinstance(resume, bool):
        if config is not None or out is not None:
            raise ConfigError(
                f"resume={resume}: its folder and its configuration are known, leave out= and config= out"
            )
        out, config, resume = resume, _stored_config(resume), True
    config = (
        config if isinstance(config, TrainConfig) else TrainConfig() if config is None else TrainConfig.load(config)
    )
    name = data if isinstance(data, str | Path) else None
    if settings is not None and "recipe" in changes:
        raise ConfigError("settings= are all settings, recipe= chooses some: give one of them")
    config = config.changed(**{} if settings is None else settings.to_dict()).changed(
        **without_none(data=name, out=out), **changes
    )
    if config.run.out is None:
        raise ConfigError("give out=, the run folder")
    images = data if isinstance(data, DataSet) else None
    trainer = _Preparation(config, images, resume).trainer(loggers, command)
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0 and trainer.run.checkpoint_file.is_file()
    warnings = _say_warnings(few_steps_warnings(trainer.schedule))
    history = trainer.fit(resume=resume or restarted)
    warnings += _say_warnings(nothing_learned_warnings(trainer.schedule, history))
    next_step: Literal["accumulate", "evaluate"] = "accumulate" if trainer.master is None else "evaluate"
    return TrainResult(str(trainer.run.folder), tuple(history), trainer.progress.selected, next_step, warnings)


def _say_warnings(sentences: tuple[str, ...]) -> tuple[str, ...]:
    for words in sentences if current().is_main else ():
        say(f"warning: {words}")
    return sentences


def _stored_config(folder: str | Path) -> Path:
    """Return the file with all options of a run."""
    run = Run.open(folder)
    if not run.config_file.is_file():
        compressed = "compression" in run.about.more
        call = "workflows.compress(resume=True)" if compressed else "Trainer.fit(resume=True)"
        raise FileNotFoundError(f"{run.config_file} does not exist: resume the run as it was started, with {call}")
    return run.config_file


def _with_recipe(config: TrainConfig, data: DataSet | None) -> TrainConfig:
    """Return a configuration with the entries of its recipe that it doesn't have itself, and without the recipe."""
    recipe = config.run.recipe
    config = config.changed(recipe=None)
    if recipe in (None, _PAPER):
        return config
    name = config.data.name
    if data is not None:
        name = None if data.call is None else data.call["name_or_folder"]
    elif name is None and config.run.init is not None:
        name = Run.open(config.run.init).about.data.name
    key = (name or "").replace("-", "_")
    recipes = SETS[key].recipes if key in SETS else {}
    if recipe not in recipes:
        known = " or ".join([_PAPER, *recipes])
        raise ConfigError(f"recipe={recipe}: {name or 'the data set'} has no such recipe, expected {known}")
    own = {**config.training, **without_none(init=config.run.init, coefficients=config.run.coefficients)}
    return config.changed(**{key: value for key, value in recipes[recipe].items() if key not in own})


class _Preparation:
    """Network, data, settings and coefficients of a run, from its configuration."""

    def __init__(self, config: TrainConfig, data: DataSet | None, resume: bool) -> None:
        self.config, self.resume = _with_recipe(config, data), resume
        self.device = select_device(config.run.device, config.run.threads)
        self.start = self._start()
        self.data = self._data(data).augmented(rotation=config.data.rotation, zoom=config.data.zoom)
        self.settings = self._settings()
        with torch.random.fork_rng(devices=[]):
            self.model = self._model()
            self.master = self._coefficients()

    def trainer(self, loggers: Sequence[Logger | str], command: str | None) -> Trainer:
        """Return the trainer of the run."""
        about: dict[str, Any] = without_none(command=command)
        if self.start is not None:
            about["init"] = {"run": str(self.config.run.init), "weights": weights_hash(self.model)}
        if self.master is not None:
            about["master"] = self.master.summary()
        return Trainer(
            self.model,
            self.data,
            self.settings,
            str(self.config.run.out),
            master=self.master,
            loggers=[_ConfigWriter(self._toml()), *self._summary(), *loggers, *self.config.run.loggers],
            about=about,
        )

    def _summary(self) -> list[Logger]:
        return [FolderSummary(self.data, self.model, self.settings)] if self._is_folder else []

    def _start(self) -> Run | None:
        """Return the run to start from."""
        init, training = self.config.run.init, self.config.training
        if init is None:
            if training.get("routing_only"):
                raise ConfigError("routing_only=True: a new network has nothing to keep, give init= with a trained run")
            if training.get("distill"):
                raise ConfigError("distill=True: a new network has nothing to teach, give init= with a trained run")
            return None
        for name, value in self.config.network.items():
            raise ConfigError(f"{name}={value}: with init= the network is that of {init}, leave it out")
        for name in ("reinit", "whiten_stem"):
            if training.get(name):
                raise ConfigError(f"{name}=True: with init= the weights are those of a run, leave one of them out")
        return Run.open(init)

    def _data(self, data: DataSet | None) -> DataSet:
        options, start = self.config.data, self.start
        if data is not None:
            return data
        if options.name is not None:
            name = options.name
            return self._filled_as_before(current().main_first(lambda: load(name, **options.arguments())))
        if start is not None:
            return current().main_first(lambda: start.data(options.data_dir))
        raise ConfigError("give data=, or init= with a run whose data to use")

    def _filled_as_before(self, data: DataSet) -> DataSet:
        """Return the data of a run to resume; an earlier version shifted gray images on white paper into black."""
        run = Run(Path(str(self.config.run.out)))
        if not (self.resume and run.about_file.is_file() and data.provenance["kind"] == "folder"):
            return data
        fill = run.about.data.augmentation.get("fill", data.augmentation.fill)
        return replace(data, augmentation=replace(data.augmentation, fill=fill))

    def _settings(self) -> TrainSettings:
        changes = dict(self.config.training)
        if self.start is None:
            defaults = self._defaults()
            base: dict[str, Any] = TrainSettings(**defaults).to_dict()
            settings = self._new_settings({**defaults, **changes})
        else:
            base = self.start.settings.loss_settings()
            if changes.get("routing_only"):
                base["reconstruction_weight"] = 0.0  # the decoder isn't trained
            settings = TrainSettings.finetune_defaults(**{**base, **self.start.held_out(self.data), **changes})
            self.start.check_held_out(self.data, settings)
        for name, loss in _OF_LOSS.items():
            if name == "sharpness" and settings.distill:
                continue
            if settings.loss != loss and not math.isclose(changes.get(name, base[name]), base[name]):
                raise ConfigError(
                    f"{name}={changes[name]:g} is of no use with the loss {settings.loss}: leave it out, or change "
                    "loss="
                )
        return settings

    def _defaults(self) -> dict[str, Any]:
        """Return the settings that the configuration changes: those of the data set, or of the run to resume."""
        run = Run(Path(str(self.config.run.out)))
        return run.settings.to_dict() if self.resume and run.about_file.is_file() else dict(self.data.training)

    def _new_settings(self, values: dict[str, Any]) -> TrainSettings:
        """Return the settings for a new network."""
        return folder_settings(self.data, values) if self._is_folder else TrainSettings(**values)

    @property
    def _is_folder(self) -> bool:
        return bool(self.data.provenance["kind"] == "folder")

    def _model(self) -> CapsNet:
        if self.start is None:
            self._check_normalization()
            torch.manual_seed(self.settings.seed)
            model = CapsNet(self.data.config(**self.config.network))
        else:
            model = self.start.model().float()
        model.primary.convolution = self.config.run.convolution
        return model.to(self.device)

    def _check_normalization(self) -> None:
        name = self.config.network.get("normalization")
        if name is None:
            return
        try:
            get_normalization(name)
        except ValueError as error:
            raise ConfigError(f"normalization={name}: {error}") from None

    def _coefficients(self) -> MasterCoefficients | None:
        source = self.config.run.coefficients
        if source is None and self.settings.distill and self.start is not None:
            master = self.start.master()
            self.config = self.config.changed(coefficients=self.start.master_file)
        elif source is None:
            return None
        else:
            master = uniform_coefficients(self.model.config) if source == "uniform" else MasterCoefficients.load(source)
        check_not_held_out(master, self.data, self.settings)
        if self.start is None:
            self.model.routing.reset_parameters(master.values)
        return master

    def _toml(self) -> str:
        """Return the configuration with all effective values."""
        comments = ["fastcaps train --config THIS_FILE --out FOLDER repeats this run."]
        network, call, options = {}, self.data.call, self.config.data
        if self.start is None:
            decided = {"height", "width", "channels", "classes", "class_names"}
            network = {name: value for name, value in self.model.config.to_dict().items() if name not in decided}
        else:
            comments.append("Network and weights, and without a [data] name also the data, are those of init.")
        if call is None:
            comments.append(f"The data set {self.data.name} was made in Python: pass it as data=.")
        elif self.start is None or options.name is not None:
            stored: Mapping[str, Any] = call
            entries = {name: value for name, value in stored.items() if name != "name_or_folder"}
            options = DataOptions(name=call["name_or_folder"], data_dir=options.data_dir, **entries)
        effective = TrainConfig(
            data=options, network=network, training=self.settings.to_dict(), run=self.config.run
        ).changed(device=self.device.type, threads=torch.get_num_threads())
        return effective.to_toml(*comments)


class _ConfigWriter(Logger):
    """Writes ``config.toml`` when a run starts."""

    def __init__(self, text: str) -> None:
        self._text = text

    def start(self, run: Run, history: Sequence[EpochMetrics]) -> None:
        write_atomically({run.config_file: self._text.encode()})
