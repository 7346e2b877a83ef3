"""The result of compressing a run, as stored in ``compress.json``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastcaps._result import Result, Table
from fastcaps.compression.pruning import Size
from fastcaps.compression.search import CompressSettings, Ranked, Step


@dataclass(frozen=True, kw_only=True)
class NetworkTime:
    """Milliseconds per image of one network at one batch size.

    Attributes:
        network: a size, ``"whole"`` for the folded network before pruning, or the name of another network.
        batch: images per batch.
        engine: ``"PyTorch"``, ``"ONNX Runtime"`` or ``"ONNX Runtime int8"``.
        ms_per_image: median of the milliseconds per image.
    """

    network: str
    batch: int
    engine: str
    ms_per_image: float


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class CompressionResult(Result):
    """A compressed run.

    Attributes:
        run: the run that was compressed.
        folder: the run folder of the compressed network.
        command: command line that made it.
        settings: settings of the search.
        size: size of the compressed network.
        whole: size of the network that it came from.
        whole_network: measurements of the folded network that it came from; None in files of earlier versions.
        met: whether it loses no more accuracy than allowed.
        reference: accuracy that losses are counted from.
        reference_images: the images of that accuracy.
        source_accuracy: accuracy of the original network on the held-out images.
        held_out: number of held-out images.
        seen: whether the original network was trained on the held-out images.
        steps: all sizes that were tried, from large to small.
        rankings: accuracy after pruning by each ranking, before training.
        times: inference times of all networks that were tried.
        seconds: duration of the call, with the measurement of the times; of the last one if the search was resumed.
    """

    run: str
    folder: str
    command: str | None
    settings: CompressSettings
    size: Size
    whole: Size
    whole_network: Step | None = None
    met: bool
    reference: float
    reference_images: Literal["held-out", "test"] = "held-out"
    source_accuracy: float
    held_out: int
    seen: bool
    steps: tuple[Step, ...]
    rankings: tuple[Ranked, ...]
    times: tuple[NetworkTime, ...]
    seconds: float

    def tables(self) -> Sequence[Table]:
        """Return the rankings, then the sizes."""
        return [self._ranking_table(), self._size_table()]

    def sentences(self) -> Sequence[str]:
        """Return which size was taken and why."""
        step = next(step for step in self.steps if step.size == self.size)
        drop = 100 * (self.reference - step.accuracy)
        limit = self.settings.max_drop
        words = [f"{self.folder}: {self.size}, {step.accuracy:.2%} on {self.held_out:,} held-out images"]
        if self.met:
            words.append(f"it loses {max(drop, 0):.2f} points (limit: {limit:g})")
        else:
            words.append(f"it loses {drop:.2f} points, more than the limit of {limit:g}")
        if self.seen and self.reference_images == "test":
            words.append(
                f"losses are counted from the test accuracy of the original network, {self.reference:.2%}: it was "
                f"trained on the held-out images ({self.source_accuracy:.2%})"
            )
        elif self.seen:
            words.append(
                f"the original network was trained on the held-out images, so its {self.source_accuracy:.2%} there is "
                "too high to count losses from: evaluate it on the test images first"
            )
        return words

    def _ranking_table(self) -> Table:
        sizes = list(dict.fromkeys(row.size for row in self.rankings))
        accuracy = {(row.ranking, row.size): f"{row.accuracy:.2%}" for row in self.rankings}
        names = dict.fromkeys(row.ranking for row in self.rankings)
        rows = [[name, *(accuracy[name, size] for size in sizes)] for name in names]
        columns = ["ranking", *(f"{size.types}, {size.maps}" for size in sizes)]
        return Table("Accuracy after pruning to so many types and maps, before training", columns, rows)

    def _size_table(self) -> Table:
        points = list(dict.fromkeys((time.engine, time.batch) for time in self.times))
        ms = {(time.network, time.engine, time.batch): time.ms_per_image for time in self.times}

        def times(network: str) -> list[str]:
            return [f"{ms[network, *point]:.2f}" if (network, *point) in ms else "–" for point in points]

        def row(step: Step, name: str, pruned: str) -> list[str]:
            weights, products = f"{step.parameters / 1e3:,.0f}", f"{step.multiply_adds / 1e6:.1f}"
            size = f"{step.size.types}, {step.size.maps}"
            return [size, weights, products, pruned, f"{step.accuracy:.2%}", *times(name)]

        rows = [row(self.whole_network, "whole", "")] if self.whole_network else []
        rows += [row(step, str(step.size), f"{step.pruned_accuracy:.2%}") for step in self.steps]
        own = {"whole", *(str(step.size) for step in self.steps)}
        others = dict.fromkeys(time.network for time in self.times if time.network not in own)
        rows += [[name, "", "", "", "", *times(name)] for name in others]
        columns = ["types, maps", "10³ weights", "10⁶ products", "pruned", "trained"]
        columns += [f"{engine} {batch}" for engine, batch in points]
        title = (
            f"Sizes: accuracy on held-out images (original network: {self.source_accuracy:.2%}), ms per image by "
            "engine and batch size"
        )
        return Table(title, columns, rows)
