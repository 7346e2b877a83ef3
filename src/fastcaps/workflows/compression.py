"""Compress a run into a smaller run: prune, train, and choose on held-out images."""

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from fastcaps._figure import Figure
from fastcaps._files import json_bytes, recover, write_atomically
from fastcaps._json import read_json
from fastcaps._machine import Machine
from fastcaps._progress import progress_bar, say
from fastcaps._result import Record
from fastcaps.analysis.figures import figure_bytes
from fastcaps.benchmark.engines import EFFICIENT
from fastcaps.benchmark.sizes import time_networks
from fastcaps.compression import Compressed, CompressSettings, Observer, Size
from fastcaps.compression import compress as compress_network
from fastcaps.compression.results import CompressionResult, NetworkTime
from fastcaps.data import DataSet, Split
from fastcaps.master import MasterCoefficients, fold
from fastcaps.master.uniform import uniform_coefficients
from fastcaps.nn import CapsNet, FastCapsNet
from fastcaps.nn.meta import without_weights
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training.accuracy import count_correct
from fastcaps.training.description import RunDescription
from fastcaps.training.result import versions
from fastcaps.training.run import Run
from fastcaps.training.settings import HeldOut, TrainSettings
from fastcaps.workflows._common import Execution, ExecutionOptions, open_run, run_name

_SETTINGS = "search/settings.json"


def compress(
    run: str | Path | Run,
    folder: str | Path,
    *,
    settings: CompressSettings | None = None,
    coefficients: str | Path | None = None,
    resume: bool = False,
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
        options: see `ExecutionOptions`; the device is the CPU, and the batch size that of the settings.
    """
    source, settings = open_run(run), settings or CompressSettings()
    execution = replace(Execution(device="cpu"), **options)
    execution.select_device()
    model, master = source.model(), source.master(coefficients)
    identity = _Search(weights_hash(model), master.values_hash, settings)
    target = Run(Path(folder))
    _check_folder(target.folder, identity, resume)
    with target.locked():
        _check_folder(target.folder, identity, resume)  # again under the lock: another process may have written
        if not (target.folder / _SETTINGS).is_file():
            write_atomically({target.folder / _SETTINGS: json_bytes(identity.to_dict())})
        return _compress(source, target, model, master, settings, execution)


def _compress(
    source: Run,
    target: Run,
    model: CapsNet,
    master: MasterCoefficients,
    settings: CompressSettings,
    execution: Execution,
) -> CompressionResult:
    begun, search = time.monotonic(), target.folder / "search"
    data = execution.load_data(source)
    split, validation = _split(source, data, settings)
    accuracy = count_correct(model, split[1], data.augmentation.test_view) / len(split[1])
    seen = not source.settings.validation
    # A network is too accurate on images that it was trained on.
    reference = min(accuracy, _test_accuracy(source) or accuracy) if seen else accuracy
    with _ProgressDisplay(settings, len(split[0])) as display:
        compressed = compress_network(
            model, data, master, settings, split=split, reference=reference, folder=search, observer=display.observer
        )
    networks = {str(step.size): _read(search, step.size) for step in compressed.steps}
    result = CompressionResult(
        run=run_name(source),
        folder=str(target.folder),
        command=execution.command,
        settings=settings,
        size=compressed.step.size,
        whole=Size.of(model.config),
        met=compressed.drop <= settings.max_drop + 1e-9,
        reference=reference,
        source_accuracy=accuracy,
        held_out=len(split[1]),
        seen=seen,
        steps=compressed.steps,
        rankings=compressed.rankings,
        times=time_networks({"whole": fold(model, master), **networks}),
        seconds=round(time.monotonic() - begun, 1),
    )
    _write_run(target, source, data, compressed, result, validation)
    shutil.rmtree(search / "teacher", ignore_errors=True)  # large; recomputed if needed
    return result


class _ProgressDisplay:
    """Progress on stderr: per size a bar that counts the images of teacher and student, and a line per epoch."""

    def __init__(self, settings: CompressSettings, images: int) -> None:
        epochs = settings.refit.epochs
        self._images = (epochs + min(settings.views, epochs)) * images
        self._bars = ExitStack()
        self._observe: Callable[[int], None] = lambda images: None
        self.observer = Observer(
            begin=self._begin,
            teacher=lambda images: self._observe(images),
            progress=lambda progress: self._observe(settings.batch_size),
            epoch=lambda accuracy: say(f"held-out images: {accuracy:.2%}"),
        )

    def __enter__(self) -> "_ProgressDisplay":
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.close()

    def _begin(self, size: Size, accuracy: float) -> None:
        self._bars.close()
        say(f"{size}: {accuracy:.2%} on held-out images after pruning")
        self._observe = self._bars.enter_context(progress_bar(f"training {size}", self._images))


@dataclass(frozen=True)
class _Search(Record):
    """What must be the same to resume a search: hashes of weights and coefficients, and the settings."""

    weights: str
    master: str
    settings: CompressSettings = field(metadata={"flat": True})


def _check_folder(folder: Path, search: _Search, resume: bool) -> None:
    """Raise if a folder holds anything but this search."""
    recover(folder)
    file = folder / _SETTINGS
    if not file.is_file():
        if folder.exists() and any(not path.name.startswith((".lock", ".fastcaps-")) for path in folder.iterdir()):
            raise ValueError(f"{folder} is not empty and holds no search to resume: choose another folder")
        return
    if not resume:
        raise ValueError(f"{folder} holds a search already: pass resume=True to resume it, or another folder")
    stored, identity = read_json(file, dict[str, Any]), search.to_dict()
    # Another max_drop only changes which of the same networks is chosen.
    different = [name for name in identity if name != "max_drop" and stored.get(name) != identity[name]]
    if different:
        words = "; ".join(f"{name} was {stored.get(name)}, now {identity[name]}" for name in different)
        raise ValueError(f"{folder} is of another search ({words}): resume with the same, or choose another folder")


def _split(source: Run, data: DataSet, settings: CompressSettings) -> tuple[tuple[Split, Split], HeldOut]:
    """Return the training and the held-out images, those of the run if it has any, and the settings of the division."""
    own = source.settings
    validation: HeldOut = {"validation": own.validation, "seed": own.seed}
    if not own.validation:
        validation = {"validation": settings.held_out_of(len(data.train)), "seed": settings.seed}
    return data.validation_split(validation["validation"], validation["seed"]), validation


def _test_accuracy(source: Run) -> float | None:
    """Return the accuracy of the dynamic network on the test images, if it is stored in the run."""
    bundled = source.about.evaluation or {}
    if "dynamic" in bundled:
        return bundled["dynamic"]
    file, _ = source.evaluation_files
    if not file.is_file():
        return None
    from fastcaps.analysis.results import Evaluation

    return Evaluation.load(file).variants["dynamic"].accuracy


def _read(search: Path, size: Size) -> FastCapsNet:
    return FastCapsNet.from_pretrained(search / f"{size.types}-types-{size.maps}-maps")


def unfolded(network: FastCapsNet) -> CapsNet:
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


def _write_run(
    target: Run,
    source: Run,
    data: DataSet,
    compressed: Compressed,
    result: CompressionResult,
    validation: HeldOut,
) -> None:
    """Write everything that makes the folder a run, in one transaction."""
    model = unfolded(compressed.network)
    model.provenance = {
        **source.model().provenance,
        "compressed_from": {"run": result.run, "weights": weights_hash(source.model()), "size": asdict(result.size)},
        "versions": versions(),
    }
    master = replace(uniform_coefficients(model.config), trained_with=weights_hash(model))
    files = {
        **model.pretrained_files(target.model_folder),
        target.master_file: master.to_bytes(),
        **fold(model, master).pretrained_files(target.fast_folder),
        target.folder / "compress.json": json_bytes(result.to_dict()),
        target.folder / "compress.png": figure_bytes(figure(result)),
    }
    refit = result.settings.refit
    settings = TrainSettings(
        epochs=refit.epochs,
        batch_size=result.settings.batch_size,
        learning_rate=refit.learning_rate,
        warmup=0,
        loss="cross_entropy",
        sharpness=refit.sharpness,
        reconstruction_weight=0.0,
        **validation,
    )
    about = RunDescription(
        command=result.command or "",
        data=replace(source.about.data, train=len(data.train) - result.held_out, validation=result.held_out),
        settings=settings,
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


def figure(result: CompressionResult) -> Figure:
    """Draw accuracy on the held-out images against milliseconds per image: a point per size."""
    batches = list(dict.fromkeys(time.batch for time in result.times))
    drawing = Figure(figsize=(5.5 * len(batches), 4.5), layout="constrained")
    accuracies = {str(step.size): step.accuracy for step in result.steps} | {"whole": result.source_accuracy}
    for number, batch in enumerate(batches):
        panel = drawing.add_subplot(1, len(batches), number + 1)
        for engine in dict.fromkeys(t.engine for t in result.times):
            own = [t for t in result.times if (t.batch, t.engine) == (batch, engine)]
            points = [(t.ms_per_image, 100 * accuracies[t.network], t.network) for t in own if t.network in accuracies]
            (line,) = panel.plot([x for x, _, _ in points], [y for _, y, _ in points], "o", label=engine)
            for x, y, words in points:
                panel.annotate(words, (x, y), (4, 4), textcoords="offset points", fontsize=7)
            _mark_other(panel, [t for t in own if t.network == EFFICIENT], line.get_color())
        panel.axhline(100 * result.reference - result.settings.max_drop, linestyle=":", color="gray")
        panel.set_xscale("log")
        panel.set_xlabel(f"ms per image, batch {batch}")
        panel.set_ylabel(f"accuracy on {result.held_out:,} held-out images, %")
        panel.legend(fontsize=8)
    return drawing


def _mark_other(panel: Any, times: list[NetworkTime], color: Any) -> None:
    """Draw a line at the time of Efficient-CapsNet, whose accuracy is not measured here."""
    for one in times:
        panel.axvline(one.ms_per_image, linestyle="--", color=color, label=f"{EFFICIENT}, {one.engine}")
