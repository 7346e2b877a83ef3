"""The result of a benchmark, as stored in ``bench.json``."""

from collections.abc import Mapping
from dataclasses import dataclass

from fastcaps._result import Result, Table
from fastcaps.benchmark.settings import Settings

# A change of the first engine between alone and in turns that is worth a warning.
_DISTURBED = 0.1


@dataclass(frozen=True, kw_only=True)
class EngineTime:
    """One engine at one batch size.

    Attributes:
        engine: its name.
        batch: images per batch.
        ms_per_image: median of the milliseconds per image.
        quartiles: quartiles of the milliseconds per image.
        images_per_second: speed at the median.
        times_faster: speedup over plain dynamic routing at this batch size.
        peak_mb: peak memory in MB, with the weights; None if it was not measured.
        size_mb: size of the weights in MB; for ONNX, of the whole file.
        shares: fraction of the time of each layer of the network; None for a network with other layers.
        share_of_peak: multiply-adds per second relative to those of a large square product.
    """

    engine: str
    batch: int
    ms_per_image: float
    quartiles: tuple[float, float]
    images_per_second: float
    times_faster: float
    peak_mb: float | None
    size_mb: float
    shares: dict[str, float] | None
    share_of_peak: float


@dataclass(frozen=True, kw_only=True)
class RoutingTime:
    """The routing layer alone, at one size of one axis."""

    axis: str
    size: int
    routing: str
    ms_per_image: float
    quartiles: tuple[float, float]
    times_faster: float
    peak_mb: float | None


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """The first engine measured alone, before any other was made, and in turns with all others."""

    engine: str
    batch: int
    alone_ms_per_image: float
    ms_per_image: float


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A size that would have needed more than half of the free memory."""

    axis: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Aim:
    """A target: a ratio of times, or, with the unit MB, a maximum size."""

    what: str
    aim: float
    measured: float
    met: bool
    unit: str = "×"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """How the answers of an engine differ from ordinary convolution in float64.

    Attributes:
        engine: its name.
        images: number of images that were compared.
        changed: number of answers that differ.
        largest_difference: largest difference of a length.
        alone: largest difference of a length between an image in its batch and alone.
        accuracy: accuracy of the engine.
        reference_accuracy: accuracy in float64.
    """

    engine: str
    images: int
    changed: int
    largest_difference: float
    alone: float
    accuracy: float
    reference_accuracy: float


@dataclass(frozen=True, kw_only=True)
class BenchmarkMachine:
    """The machine of a benchmark.

    Attributes:
        processor: its name.
        cores: number of cores of the machine; None if unknown.
        instructions: vector instructions that PyTorch uses.
        threads: CPU threads.
        versions: versions of packages, by name.
    """

    processor: str
    cores: int | None
    instructions: str
    threads: int
    versions: Mapping[str, str]

    @property
    def packages(self) -> str:
        """The versions as text."""
        return ", ".join(f"{name} {number}" for name, number in self.versions.items())


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Benchmark(Result):
    """All measurements of one run on one machine.

    Attributes:
        command: command line that measured it.
        machine: processor, threads, versions.
        settings: what was measured.
        multiply_adds_per_second: speed of a large square product.
        engines: one entry per batch size and engine.
        disturbance: one entry per batch size.
        growth: the routing layer alone, as each of its sizes grows.
        skipped: sizes of the routing layer that did not fit into memory.
        aims: targets for the paper's MNIST network on two threads.
        answers: comparison of the answers of a trained network; None if they were not compared.
        network: the run that was measured, and the compressed one; None for the paper's network.
    """

    machine: BenchmarkMachine
    settings: Settings
    multiply_adds_per_second: float
    engines: tuple[EngineTime, ...]
    disturbance: tuple[Disturbance, ...]
    growth: tuple[RoutingTime, ...]
    skipped: tuple[Skipped, ...]
    aims: tuple[Aim, ...]
    command: str | None = None
    answers: tuple[Answers, ...] | None = None
    network: Mapping[str, str] | None = None

    def tables(self) -> list[Table]:
        """Return one table per batch size, then disturbance, growth, answers and aims."""
        tables = [self._batch_table(batch) for batch in dict.fromkeys(row.batch for row in self.engines)]
        rows = [
            [row.engine, str(row.batch), f"{row.alone_ms_per_image:.3f}", f"{row.ms_per_image:.3f}"]
            for row in self.disturbance
        ]
        tables.append(
            Table("Alone and in turns with all others", ["engine", "batch", "alone, ms", "in turns, ms"], rows)
        )
        if self.growth:
            tables.append(self._growth_table())
        if self.answers:
            tables.append(self._answers_table(self.answers))
        if self.aims:
            rows = [
                [aim.what, f"{aim.aim:g}{aim.unit}", f"{aim.measured:.2f}{aim.unit}", "met" if aim.met else "not met"]
                for aim in self.aims
            ]
            tables.append(Table("Aims", ["", "aim", "measured", ""], rows))
        return tables

    def sentences(self) -> list[str]:
        """Return what the numbers were measured on, and what the columns mean."""
        machine = self.machine
        place = "in processes of their own" if self.settings.isolated else "all in one process"
        threads = "1 thread" if machine.threads == 1 else f"{machine.threads} threads"
        words = [
            f"{machine.processor}, {machine.cores} cores, {machine.instructions}; {threads}",
            machine.packages,
            f"a large square product: {self.multiply_adds_per_second / 1e9:.1f}·10⁹ multiply-adds per second",
            f"engines take turns, {place}, each with a warm-up call; threads of ONNX Runtime don't spin between calls",
            "layers: stem / PrimaryCaps / routing; peak: multiply-adds of ordinary convolution against that product",
        ]
        busy = "the machine was busy, measure again"
        cause = busy if self.settings.isolated else f"{busy}, or give each engine a process of its own"
        for row in self.disturbance:
            change = row.ms_per_image / row.alone_ms_per_image - 1
            if abs(change) > _DISTURBED:
                more = "more" if change > 0 else "less"
                words.append(
                    f"{row.engine} took {abs(change):.0%} {more} time in turns than alone at batch {row.batch}: {cause}"
                )
        return words + [
            f"{point.axis}: {point.size:,} was not measured: it needs more than half of the free memory"
            for point in self.skipped
        ]

    def _batch_table(self, batch: int) -> Table:
        columns = [
            "engine",
            "ms/image",
            "quartiles",
            "images/s",
            "× plain",
            "peak MB",
            "size MB",
            "layers, %",
            "of peak",
        ]
        rows = [
            [
                row.engine,
                f"{row.ms_per_image:.3f}",
                f"{row.quartiles[0]:.2f}–{row.quartiles[1]:.2f}",
                f"{row.images_per_second:,.0f}",
                f"{row.times_faster:.2f}",
                _megabytes(row.peak_mb),
                f"{row.size_mb:.1f}",
                "–" if row.shares is None else "/".join(f"{100 * share:.0f}" for share in row.shares.values()),
                f"{row.share_of_peak:.0%}",
            ]
            for row in self.engines
            if row.batch == batch
        ]
        return Table(f"Batch {batch}", columns, rows)

    def _growth_table(self) -> Table:
        rows = [
            [
                row.axis,
                f"{row.size:,}",
                row.routing,
                f"{row.ms_per_image:.3f}",
                f"{row.times_faster:.1f}",
                _megabytes(row.peak_mb),
            ]
            for row in self.growth
        ]
        batch = self.settings.growth_batch
        title = f"The routing layer alone, batch {batch} where it is not the batch that grows"
        return Table(title, ["growing", "size", "routing", "ms/image", "× plain", "peak MB"], rows)

    def _answers_table(self, answers: tuple[Answers, ...]) -> Table:
        rows = [
            [
                row.engine,
                f"{row.accuracy:.2%}",
                f"{row.reference_accuracy:.2%}",
                str(row.changed),
                f"{row.largest_difference:.1e}",
                f"{row.alone:.1e}",
            ]
            for row in answers
        ]
        title = f"Answers on {answers[0].images:,} test images, against ordinary convolution in float64"
        return Table(
            title, ["engine", "accuracy", "exact", "changed", "lengths differ by", "alone and in a batch"], rows
        )


def _megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"
