"""Report on the routing of a run's network."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

from fastcaps._files import json_bytes, write_atomically
from fastcaps._progress import progress_bar, say
from fastcaps._result import Result, Table
from fastcaps.analysis.capsules import Lengths, output_lengths
from fastcaps.analysis.figures import figure_bytes, page_svg
from fastcaps.analysis.report import report_page
from fastcaps.analysis.report_builder import ComparedRun, Measurements, build_report
from fastcaps.analysis.report_data import ReportData, ReportSettings
from fastcaps.analysis.results import Evaluation
from fastcaps.analysis.training_pass import TrainingPass, cached, collect
from fastcaps.bundled import is_bundled
from fastcaps.data import DataSet, Split, batches
from fastcaps.distributed import current
from fastcaps.master import MasterCoefficients, fold
from fastcaps.nn import CapsNet
from fastcaps.nn.pretrained import weights_hash
from fastcaps.training.run import Run
from fastcaps.workflows._common import (
    Execution,
    ExecutionOptions,
    check_own_images,
    check_writable,
    load_run,
    open_run,
    restores_threads,
    run_name,
    share,
    writing,
)
from fastcaps.workflows.evaluation import evaluate_part, write_evaluation


@dataclass(frozen=True, repr=False, eq=False)
class AnalysisResult(Result):
    """A report.

    Attributes:
        folder: folder of the report.
        evaluation: evaluation on the test images.
        report: its numbers and figures; None on all ranks but 0.
    """

    folder: Path
    evaluation: Evaluation
    report: ReportData | None

    def tables(self) -> list[Table]:
        """Return the tables of the evaluation."""
        return self.evaluation.tables()

    def sentences(self) -> list[str]:
        """Return what fast routing changes, and where the report is."""
        report, numbers = self.folder / "index.html", self.folder / "analysis.json"
        return [*self.evaluation.sentences(), f"The report is {report}; all numbers are in {numbers}."]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``analysis.json``."""
        return {} if self.report is None else self.report.to_dict()

    def save_figures(self, folder: str | Path | None = None, file_format: Literal["png", "svg", "pdf"] = "png") -> None:
        """Write every figure as a file, by default into ``figures/`` in the folder of the report."""
        figures = {} if self.report is None else self.report.figures
        place = self.folder / "figures" if folder is None else Path(folder)
        write_atomically(
            {place / f"{name}.{file_format}": figure_bytes(drawn, file_format) for name, drawn in figures.items()}
        )
        say(f"figures: {place}")


@restores_threads
def analyze(
    run: str | Path | Run,
    out: str | Path | None = None,
    *,
    coefficients: str | Path | None = None,
    compare: str | Path | Run | None = None,
    sort_by_class: bool = False,
    examples: list[int] | None = None,
    limit: int | None = None,
    **options: Unpack[ExecutionOptions],
) -> AnalysisResult:
    """Analyze the routing of a run's network, and write ``index.html`` and ``analysis.json``.

    Earlier results are reused if weights, images and settings are the same. In a distributed run only rank 0 draws and
    writes.

    Args:
        run: a run, its folder, or the name of a bundled network.
        out: folder of the report; ``report/`` in the run folder by default.
        coefficients: a file of master coefficients, instead of the run's own.
        compare: another run, whose histogram of coefficients is drawn beside this one's.
        sort_by_class: whether to draw the correlations of the first training images by class.
        examples: indices of test images whose lengths are drawn; the first five by default.
        limit: number of images of each part, from the first; all by default.
        options: see `ExecutionOptions`.
    """
    run, execution = open_run(run), Execution(**options)
    is_own = coefficients is None and limit is None
    if out is None:
        _check_own_report(run, is_own)
    task = _Task(run.folder / "report" if out is None else Path(out), limit, execution)
    master = run.master(coefficients)
    model, data = load_run(run, execution, master=master)
    if out is None:
        check_own_images(run, data)
    is_own = is_own and run.images_note(data) is None
    evaluation_folder = run.folder if is_own and not is_bundled(run.folder) else task.cache
    with writing(run, evaluation_folder):
        training = task.training_pass(run, model, data, task.cache / "training.safetensors")
        test = run.test_part(data).first(limit)
        lengths = task.test_lengths(model, master, data, test)
        evaluation = _stored_evaluation(evaluation_folder, master, lengths)
        if evaluation is None:
            evaluation = evaluate_part(run, master, "test", limit, None, execution)
            if current().is_main:
                write_evaluation(evaluation, run, evaluation_folder)
        compared = None if compare is None else task.compared(open_run(compare), data)
        if not current().is_main:
            return AnalysisResult(task.folder, evaluation, None)
        view = data.augmentation.test_view
        measured = Measurements(training, lengths, evaluation, lambda numbers: view(test.images(numbers)))
        drawn = examples or list(range(min(5, len(test))))
        report = build_report(model, master, measured, examples=drawn, sort_by_class=sort_by_class, compared=compared)
        settings = ReportSettings(execution.command, limit, weights_hash(model), master.values_hash, data.fingerprint)
        report = replace(report, run=run_name(run), settings=settings)
        task.write(report)
        return AnalysisResult(task.folder, evaluation, report)


def _check_own_report(run: Run, is_own: bool) -> None:
    """Raise if a report that is not that of the run would be written into the run folder."""
    check_writable(run)
    if not is_own:
        raise ValueError("what is made with limit= or coefficients= is not the run's own report: give a folder as out=")


@dataclass(frozen=True)
class _Task:
    """Passes over the images of a run, cached in the folder of the report."""

    folder: Path
    limit: int | None
    execution: Execution

    def write(self, report: ReportData) -> None:
        """Write the page and its numbers."""
        page = report_page(report, {name: page_svg(figure) for name, figure in report.figures.items()})
        files = {self.folder / "analysis.json": json_bytes(report.to_dict()), self.folder / "index.html": page.encode()}
        write_atomically(files)

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def training_pass(self, run: Run, model: CapsNet, data: DataSet, *places: Path) -> TrainingPass:
        """Return the pass over the training images, from one of the files if it is cached there."""
        images = run.training_part(data).first(self.limit)
        settings = run.settings
        key = {
            "weights": weights_hash(model),
            "data": data.fingerprint,
            "part": "train",
            "held out": [settings.validation, settings.seed] if settings.validation else None,
            "limit": self.limit,
            "iterations": model.config.iterations,
        }

        def compute() -> dict[str, Any]:
            with progress_bar("training images", len(images)) as observe:
                pairs = batches(share(images), self.execution.batch_size, view=data.augmentation.test_view)
                return collect(model, pairs, observe=observe, world=current()).to_arrays()

        name = "the pass over the training images"
        return TrainingPass.from_arrays(cached(list(places), key, compute, _reusing(name), current()))

    def test_lengths(self, model: CapsNet, master: MasterCoefficients, data: DataSet, images: Split) -> Lengths:
        """Return the lengths of the class capsules of test images, with dynamic and fast routing."""
        key = {
            "weights": weights_hash(model),
            "master": master.values_hash,
            "data": data.fingerprint,
            "part": "test",
            "limit": self.limit,
        }

        def compute() -> dict[str, Any]:
            with progress_bar("test images", len(images)) as observe:
                pairs = batches(share(images), self.execution.batch_size, view=data.augmentation.test_view)
                return output_lengths(model, fold(model, master), pairs, observe, current())._asdict()

        place = self.cache / "test.safetensors"
        return Lengths(**cached([place], key, compute, _reusing("lengths of test images"), current()))

    def compared(self, other: Run, data: DataSet) -> ComparedRun:
        """Return the pass over the training images of another run, which may be trained on the same data."""
        same = data.fingerprint == other.about.data.fingerprint
        model, data = load_run(other, replace(self.execution, data=data if same else None))
        stored = other.folder / "report" / "cache" / "training.safetensors"
        training = self.training_pass(other, model, data, self.cache / "compared.safetensors", stored)
        return ComparedRun(run_name(other), training, model.config)


def _stored_evaluation(folder: Path, master: MasterCoefficients, lengths: Lengths) -> Evaluation | None:
    """Return the evaluation stored in a folder, if it has the same coefficients, images and predictions."""
    place = folder / "evaluation.json"
    correct = {key: int((getattr(lengths, key).argmax(1) == lengths.labels).sum()) for key in ("dynamic", "fast")}
    try:
        stored = Evaluation.load(place)
        fits = (
            stored.part == "test"
            and stored.images == len(lengths.labels)
            and stored.master == master.summary()
            and {key: stored.variants[key].correct for key in correct} == correct
        )
    except (OSError, ValueError):
        fits = False
    if not current().all_min(int(fits)):
        return None
    _reusing("accuracies and speeds")(place)
    return stored


def _reusing(name: str) -> Any:
    return lambda place: say(f"{name}: used again from {place} (same weights, images and settings)")
