"""Compare accuracy and speed of engines on the same test images; takes seconds."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastcaps._result import Result, Table
from fastcaps.benchmark.agreement import engine_lengths
from fastcaps.benchmark.engines import Engine


@dataclass(frozen=True, kw_only=True)
class EngineAnswers:
    """Answers and speed of one engine.

    Attributes:
        engine: its name.
        correct: number of correct answers.
        accuracy: fraction of correct answers.
        changed: number of answers that differ from those of the first engine.
        images_per_second: speed at the median of all batches.
        times_faster: speedup over the first engine.
        size_mb: size of its weights in MB; for ONNX, of the whole file.
    """

    engine: str
    correct: int
    accuracy: float
    changed: int
    images_per_second: float
    times_faster: float
    size_mb: float


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class SideBySide(Result):
    """Engines side by side.

    Attributes:
        network: its name.
        images: number of test images.
        batch_size: images per batch.
        threads: CPU threads.
        engines: one entry per engine; the others are compared with the first.
    """

    network: str
    images: int
    batch_size: int
    threads: int
    engines: tuple[EngineAnswers, ...]

    def tables(self) -> list[Table]:
        """Return one row per engine."""
        rows = [
            [
                row.engine,
                f"{row.accuracy:.2%}",
                str(row.changed) if number else "",
                f"{row.images_per_second:,.0f}",
                f"{row.times_faster:.1f}×",
                f"{row.size_mb:.1f}",
            ]
            for number, row in enumerate(self.engines)
        ]
        threads = f"{self.threads} {'thread' if self.threads == 1 else 'threads'}"
        title = f"{self.network}: {self.images:,} test images in batches of {self.batch_size}, {threads}"
        return [Table(title, ["engine", "accuracy", "answers changed", "images/s", "speed", "MB"], rows)]

    def sentences(self) -> list[str]:
        """Return how much faster the fastest engine is, and how many answers it changes."""
        first, best = self.engines[0], max(self.engines, key=lambda row: row.times_faster)
        changed = f"{best.changed:,} of {self.images:,} answers {'changes' if best.changed == 1 else 'change'}"
        return [f"{best.engine} is {best.times_faster:.1f} times as fast as {first.engine}; {changed}."]


@torch.no_grad()
def side_by_side(
    network: str,
    engines: Mapping[str, Engine],
    tests: Iterable[tuple[Tensor, Tensor]],
    observe: Callable[[int], None] = lambda images: None,
) -> SideBySide:
    """Run every engine on every batch in turn, so that other load affects all of them.

    Args:
        network: name for the table.
        engines: engines by name; the others are compared with the first.
        tests: batches of images, bytes ``(b c h w)``, and labels ``(b)``.
        observe: called with the number of images after each batch.
    """
    batches = list(tests)
    if not batches:
        raise ValueError("there are no images to run the engines on")
    answers: dict[str, list[np.ndarray]] = {name: [] for name in engines}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for images, _ in batches:
        for name, engine in engines.items():
            if not answers[name]:
                engine.run(images)  # the first call is a warmup
            begun = time.perf_counter()
            lengths = engine_lengths(engine, images)
            seconds[name].append((time.perf_counter() - begun) / len(images))
            answers[name].append(lengths.argmax(1))
        observe(len(images))
    labels = np.concatenate([batch.numpy() for _, batch in batches])
    predicted = {name: np.concatenate(parts) for name, parts in answers.items()}
    per_image = {name: float(np.median(turns)) for name, turns in seconds.items()}
    first = next(iter(engines))
    rows = tuple(
        EngineAnswers(
            engine=name,
            correct=int((predicted[name] == labels).sum()),
            accuracy=float((predicted[name] == labels).mean()),
            changed=int((predicted[name] != predicted[first]).sum()),
            images_per_second=1 / per_image[name],
            times_faster=per_image[first] / per_image[name],
            size_mb=engine.size / 1e6,
        )
        for name, engine in engines.items()
    )
    return SideBySide(
        network=network,
        images=len(labels),
        batch_size=len(batches[0][1]),
        threads=torch.get_num_threads(),
        engines=rows,
    )
