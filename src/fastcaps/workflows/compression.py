"""Compress a run into a smaller run: prune, train, and choose on held-out images."""

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from fastcaps._files import json_bytes, recover, write_atomically
from fastcaps._machine import Machine
from fastcaps._progress import progress_bar, say
from fastcaps._result import Record, flattened, without_none
from fastcaps.analysis.figures import figure_bytes
from fastcaps.benchmark.size_figure import size_figure
from fastcaps.benchmark.sizes import time_networks
from fastcaps.compression import Compressed, CompressSettings, Observer, Size
from fastcaps.compression import compress as compress_network
from fastcaps.compression.results import CompressionResult
from fastcaps.compression.search import measured_step
from fastcaps.data import Augmentation, DataSet, Split
from fastcaps.master import MasterCoefficients, fold
from fastcaps.master.uniform import uniform_coefficients
from fastcaps.nn import CapsNet, CapsuleNetwork, FastCapsNet
from fastcaps.nn.meta import without_weights
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training.accuracy import count_correct
from fastcaps.training.description import DataDescription, RunDescription
from fastcaps.training.result import versions
from fastcaps.training.run import Run
from fastcaps.training.settings import HeldOut, TrainSettings
from fastcaps.workflows._common import Execution, ExecutionOptions, open_run, restores_threads, run_name

_SETTINGS = "search/settings.json"


@restores_threads
def compress(
    run: str | Path | Run,
    folder: str | Path,
    *,
    settings: CompressSettings | None = None,
    coefficients: str | Path | None = None,
    resume: bool = False,
    rotation: float | None = None,
    zoom: float | None = None,
    **options: Unpack[ExecutionOptions],
) -> CompressionResult:
    """Compress the network of a run into a run folder of its own.

    The folder is an ordinary run with ``compress.json``, ``compress.png``, and every size tried in ``search/``.

    Args:
        run: a run, its folder, or the name of a bundled network.
        folder: the run folder to write.
        settings: settings of the search.
        coefficients: a file of master coefficients, instead of the run's own.
        resume: whether to resume where an earlier call with the same settings stopped.
        rotation: largest random rotation of training images in degrees; that of the run when None.
        zoom: largest random change of their height and width, such as 0.1; that of the run when None.
        options: see `ExecutionOptions`; the device is the CPU, and the batch size that of the settings.
    """
    source, settings = open_run(run), _as_before(Path(folder), settings or CompressSettings())
    execution = replace(Execution(device="cpu"), **options)
    execution.select_device()
    model, master = source.model(), source.master(coefficients)
    settings.sizes(model.config)  # raises before anything is read or written
    Augmentation(**without_none(rotation=rotation, zoom=zoom))  # raises before anything is read or written
    data, target = execution.load_data(source).augmented(rotation=rotation, zoom=zoom), Run(Path(folder))
    identity = _Search(weights_hash(model), master.values_hash, settings, data.fingerprint, data.augmentation)
    _check_folder(target.folder, identity, resume)
    job = _Job(source, target, model, master, settings, data, *_split(source, data, settings), execution.command)
    with target.locked():
        _check_folder(target.folder, identity, resume)  # another process may have been faster
        if not (target.folder / _SETTINGS).is_file():
            write_atomically({target.folder / _SETTINGS: json_bytes(identity.to_dict())})
        try:
            return _compress(job)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted: the same call with resume=True resumes the search") from None


@dataclass(frozen=True)
class _Job:
    """A search: its run, network and coefficients, where the result goes, and the images."""

    source: Run
    target: Run
    model: CapsNet
    master: MasterCoefficients
    settings: CompressSettings
    data: DataSet
    split: tuple[Split, Split]
    validation: HeldOut
    command: str | None

    @property
    def teacher(self) -> CapsNet | FastCapsNet:
        """The network to learn from: with dynamic routing, or folded if it was trained with fixed coefficients."""
        return fold(self.model, self.source.master()) if self.source.about.fixed_coefficients else self.model

    def accuracy(self, network: CapsuleNetwork, name: str) -> float:
        """Return the accuracy of a network on the held-out images."""
        held_out = self.split[1]
        with progress_bar(f"held-out images, {name}", len(held_out)) as observe:
            return count_correct(network, held_out, self.data.augmentation.test_view, observe=observe) / len(held_out)


def _compress(job: _Job) -> CompressionResult:
    begun, search = time.monotonic(), job.target.folder / "search"
    teacher, folded = job.teacher, fold(job.model, job.master)
    whole = job.accuracy(folded, "folded")
    accuracy = whole if isinstance(teacher, FastCapsNet) else job.accuracy(teacher, "dynamic routing")
    seen = not job.source.settings.validation and not job.source.has_others(job.data)
    # A network that was trained on these images knows them better than others.
    test_accuracy = _test_accuracy(job.source) if seen else None
    reference = accuracy if test_accuracy is None else test_accuracy
    with _Shown(job.settings.batch_size) as shown:
        compressed = compress_network(
            teacher,
            job.data,
            job.master,
            job.settings,
            split=job.split,
            reference=reference,
            folder=search,
            observer=shown.observer,
        )
    networks = {str(step.size): _read(search, step.size) for step in compressed.steps}
    say(f"measuring the times of {len(networks) + 1} networks")
    result = CompressionResult(
        run=run_name(job.source),
        folder=str(job.target.folder),
        command=job.command,
        settings=job.settings,
        size=compressed.step.size,
        whole=Size.of(job.model.config),
        whole_network=measured_step(folded, whole),
        met=compressed.drop <= job.settings.max_drop + 1e-9,
        reference=reference,
        reference_images="held-out" if test_accuracy is None else "test",
        source_accuracy=accuracy,
        held_out=len(job.split[1]),
        seen=seen,
        steps=compressed.steps,
        rankings=compressed.rankings,
        times=time_networks({"whole": folded, **networks}),
        seconds=round(time.monotonic() - begun, 1),
    )
    _write_run(job, compressed, result)
    shutil.rmtree(search / "teacher", ignore_errors=True)  # large, and computed again where it is needed
    return result


class _Shown:
    """Progress on stderr: a bar for the rankings, one per size, of the images that networks see; a line per epoch."""

    def __init__(self, batch_size: int) -> None:
        self._bar = ExitStack()
        self._observe: Callable[[int], None] | None = None
        self.observer = Observer(
            ranked=self._ranked,
            begin=self._begin,
            teacher=self._add,
            progress=lambda progress: self._add(batch_size),
            epoch=lambda accuracy: say(f"held-out images: {accuracy:.2%}"),
        )

    def __enter__(self) -> "_Shown":
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def _start(self, task: str, total: int) -> None:
        self._bar.close()
        self._observe = self._bar.enter_context(progress_bar(task, total))

    def _add(self, count: int) -> None:
        if self._observe is not None:
            self._observe(count)

    def _ranked(self, networks: int) -> None:
        if self._observe is None:
            self._start("comparing rankings", networks)
        self._add(1)

    def _begin(self, size: Size, accuracy: float, images: int) -> None:
        self._bar.close()
        say(f"{size}: {accuracy:.2%} on held-out images after pruning")
        self._start(f"training {size}", images)


@dataclass(frozen=True)
class _Search(Record):
    """What must be the same to resume a search: weights, coefficients and images by their hashes, and the settings."""

    weights: str
    master: str
    settings: CompressSettings = field(metadata={"flat": True})
    images: str | None = None
    augmentation: Augmentation | None = None

    @classmethod
    def stored(cls, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Return stored values; a search of an earlier version did not average weights."""
        return {**values, "refit": {"averaging": 0.0} | dict(values.get("refit", {}))}

    def as_far_as_known(self, other: "_Search") -> "_Search":
        """Return this search of an earlier version, completed by the images and the augmentation of another one."""
        plain = None if other.augmentation is None else replace(other.augmentation, rotation=0.0, zoom=0.0)
        return replace(self, images=self.images or other.images, augmentation=self.augmentation or plain)


def _as_before(folder: Path, settings: CompressSettings) -> CompressSettings:
    """Return the settings to resume a search of an earlier version with, or the same for any other."""
    file = folder / _SETTINGS
    former = _Search.load(file) if file.is_file() else None
    if former is None or former.augmentation is not None:
        return settings
    say(
        f"warning: {folder} was started by an earlier version: the sizes it has finished keep the weights of their "
        "best epoch, others get those of the last"
    )
    return replace(settings, refit=replace(settings.refit, averaging=former.settings.refit.averaging))


def _check_folder(folder: Path, search: _Search, resume: bool) -> None:
    """Raise if a folder holds anything but this search."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, expected a folder for the run: choose another name")
    recover(folder)
    file = folder / _SETTINGS
    if not file.is_file():
        if folder.exists() and any(not path.name.startswith((".lock", ".fastcaps-")) for path in folder.iterdir()):
            raise ValueError(f"{folder} is not empty and holds no search to resume: choose another folder")
        return
    if not resume:
        raise ValueError(f"{folder} holds a search already: pass resume=True to resume it, or another folder")
    stored = flattened(_Search.load(file).as_far_as_known(search).to_dict())
    own = flattened(search.to_dict())
    # Another max_drop only changes where the search ends.
    different = [name for name in own if name != "max_drop" and stored.get(name) != own[name]]
    if different:
        words = "; ".join(f"{name} was {stored.get(name)}, now {own[name]}" for name in different)
        raise ValueError(f"{folder} is of another search ({words}): resume with the same, or choose another folder")


def _split(source: Run, data: DataSet, settings: CompressSettings) -> tuple[tuple[Split, Split], HeldOut]:
    """Return the training and the held-out images, those of the run if it has any, and the settings of the division."""
    own = source.settings
    validation: HeldOut = {"validation": own.validation, "seed": own.seed}
    if not own.validation or source.has_others(data):
        validation = {"validation": settings.held_out_of(len(data.train)), "seed": settings.seed}
    return data.validation_split(validation["validation"], validation["seed"]), validation


def _test_accuracy(source: Run) -> float | None:
    """Return the accuracy on the test images, as the network was trained, if it is stored in the run."""
    routing, bundled = "fast" if source.about.fixed_coefficients else "dynamic", source.about.evaluation or {}
    if routing in bundled:
        return bundled[routing]
    file, _ = source.evaluation_files
    if not file.is_file():
        return None
    from fastcaps.analysis.results import Evaluation

    return Evaluation.load(file).variants[routing].accuracy


def _read(search: Path, size: Size) -> FastCapsNet:
    return FastCapsNet.from_pretrained(search / f"{size.types}-types-{size.maps}-maps")


def as_capsnet(network: FastCapsNet) -> CapsNet:
    """Return a dynamic network from which folding uniform coefficients gives this folded network."""
    config = network.config
    with without_weights():
        model = CapsNet(config)
    start = model.routing.routing.start(config.classes) or 1.0
    shape = (config.lower_capsules, config.lower_dimension, config.classes, config.class_dimension)
    state = dict(network.state_dict())
    state["routing.weight"] = (state["routing.weight"].double() / start).to(state["routing.weight"].dtype).view(shape)
    model.load_state_dict(state, assign=True)
    return model.eval()


def _write_run(job: _Job, compressed: Compressed, result: CompressionResult) -> None:
    """Write everything that makes the folder a run, in one transaction."""
    target, model = job.target, as_capsnet(compressed.network)
    model.provenance = {
        **job.model.provenance,
        "compressed_from": {"run": result.run, "weights": weights_hash(job.model), "size": asdict(result.size)},
        "versions": versions(),
    }
    master = replace(uniform_coefficients(model.config), trained_with=weights_hash(model))
    files = {
        **model.pretrained_files(target.model_folder),
        target.master_file: master.to_bytes(),
        **fold(model, master).pretrained_files(target.fast_folder),
        target.folder / "compress.json": json_bytes(result.to_dict()),
        target.folder / "compress.png": figure_bytes(size_figure(result)),
    }
    about = RunDescription(
        command=result.command or "",
        data=DataDescription.of(job.data, len(job.split[0]), result.held_out),
        settings=_train_settings(result.settings, job.validation),
        config=model.config,
        convolution=model.primary.convolution,
        fixed_coefficients=True,
        device="cpu",
        threads=torch.get_num_threads(),
        processes=1,
        machine=Machine.this(),
        versions=versions(),
        seconds=result.seconds,
        more={"compression": {"run": result.run, "size": result.size, "settings": result.settings}},
    )
    target.write_about(about, files)


def _train_settings(settings: CompressSettings, validation: HeldOut) -> TrainSettings:
    """Return the settings of the training after pruning, as far as those of ordinary runs can tell them."""
    refit = settings.refit
    return TrainSettings(
        epochs=refit.epochs,
        batch_size=settings.batch_size,
        learning_rate=refit.learning_rate,
        decay="linear",
        final_rate=0.0,
        averaging=refit.averaging,
        loss="cross_entropy" if refit.label_weight or not refit.margin_weight else "margin",
        sharpness=refit.sharpness,
        reconstruction_weight=0.0,
        distill=bool(refit.length_weight or refit.capsule_weight),
        **validation,
    )
