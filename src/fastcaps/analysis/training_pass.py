"""One streaming pass over the training images for everything that needs them, and files that keep what it found.

Memory doesn't depend on the number of images: sums by class, a histogram, and the columns of the first hundred.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastcaps._files import write_atomically
from fastcaps.analysis.coefficients import CoefficientHistogram
from fastcaps.analysis.correlations import ClassCorrelations
from fastcaps.distributed import SINGLE, World
from fastcaps.functional import prediction_vectors, routing_trace
from fastcaps.functional.labels import checked_labels
from fastcaps.nn import CapsNet

# Changes when what is collected does, so that files of another version are not taken for this one's.
_FORMAT = 1
# Images whose votes are made at a time: they stay in a processor's cache.
_PIECE = 16

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class TrainingPass:
    """What a pass over the training images found.

    Attributes:
        correlations: sums of their ground-truth columns by class.
        histogram: of all coefficients, for each iteration.
        first_columns: ground-truth columns of the first images ``(n i)``, float32.
        first_labels: of the same ``(n)``.
        image_sums: of the images themselves by class ``(j c h w)``.
    """

    correlations: ClassCorrelations
    histogram: CoefficientHistogram
    first_columns: NDArray[np.float32]
    first_labels: NDArray[np.int64]
    image_sums: NDArray[np.float64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Images of each class ``(j)``."""
        return self.correlations.counts + self.correlations.constant

    @property
    def mean_images(self) -> NDArray[np.float64]:
        """The mean image of each class ``(j c h w)``, black where it has none."""
        means: NDArray[np.float64] = self.image_sums / np.maximum(self.counts, 1)[:, None, None, None]
        return means

    def to_arrays(self) -> Arrays:
        """As arrays for a file."""
        own = self.correlations
        return {
            "sums": own.sums,
            "squares": own.squares,
            "counts": own.counts,
            "constant": own.constant,
            "bounds": np.array([self.histogram.low, self.histogram.high]),
            "histogram": self.histogram.counts,
            "first_columns": self.first_columns,
            "first_labels": self.first_labels,
            "image_sums": self.image_sums,
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """From what `to_arrays` gave."""
        classes, lower_capsules = arrays["sums"].shape
        correlations = ClassCorrelations(lower_capsules, classes)
        for name in ("sums", "squares", "counts", "constant"):
            setattr(correlations, name, arrays[name])
        histogram = CoefficientHistogram(len(arrays["histogram"]), *arrays["bounds"].tolist())
        histogram.counts = arrays["histogram"]
        return cls(correlations, histogram, *(arrays[field.name] for field in fields(cls)[2:]))


@torch.no_grad()
def collect(
    model: CapsNet,
    batches: Iterable[tuple[Tensor, Tensor]],
    first: int = 100,
    observe: Callable[[int], None] = lambda images: None,
    world: World = SINGLE,
) -> TrainingPass:
    """Go through the training images once.

    Args:
        model: the trained network; not touched.
        batches: images ``(b c h w)`` and labels ``(b)``, as the network sees them when it is used: no augmentation.
        first: how many images' columns are kept one by one.
        observe: told how many images were just done.
        world: where each rank has its own images, those of one following those of the rank before; then all get the
            same result.
    """
    config = model.config
    weight, normalization = model.routing.weight, model.routing.routing.normalization
    correlations = ClassCorrelations(config.lower_capsules, config.classes)
    histogram = CoefficientHistogram.of(config)
    image_sums = torch.zeros(config.classes, config.channels, config.height, config.width, dtype=torch.float64)
    columns = [np.empty((0, config.lower_capsules), np.float32)]
    kept = [np.empty(0, np.int64)]
    for images, labels in batches:
        truth = checked_labels(labels.cpu(), len(images), config.classes)
        lower = model.lower_capsules(images.to(weight.device))  # (b, i, d)
        for capsules, own in zip(torch.split(lower, _PIECE), torch.split(truth, _PIECE), strict=True):
            votes = prediction_vectors(capsules, weight)  # (b, i, j, e)
            trace = routing_trace(votes, config.iterations, normalization, bias=model.routing.bias)  # (b, r, i, j)
            histogram.update(trace)
            last = trace[torch.arange(len(own)), -1, :, own.to(trace.device)]  # (b, i)
            found = last.float().cpu().numpy()
            correlations.update(found, own.numpy())
            missing = first - sum(len(part) for part in kept)
            if missing > 0:
                columns.append(found[:missing])
                kept.append(own.numpy()[:missing])
        image_sums.index_add_(0, truth, images.cpu().double())
        observe(len(labels))
    first_columns = world.all_gather(np.concatenate(columns))
    first_labels = world.all_gather(np.concatenate(kept))
    if not len(first_labels):
        raise ValueError("there are no training images to analyse")
    world.all_reduce(image_sums)
    return TrainingPass(
        correlations.all_reduce(world),
        histogram.all_reduce(world),
        first_columns[:first],
        first_labels[:first],
        image_sums.numpy(),
    )


def cached(
    places: Sequence[Path],
    key: Mapping[str, Any],
    make: Callable[[], Arrays],
    tell: Callable[[Path], None],
    world: World = SINGLE,
) -> Arrays:
    """Arrays from the first of these files that has them for the same key; otherwise made, and kept in the first.

    Args:
        places: files to look in; only the first is written.
        key: what decides the arrays, as JSON: hashes of weights and images, settings.
        make: makes them.
        tell: told which file was good.
        world: all of whose ranks take part in making them, unless all find them; only the first writes.
    """
    wanted = json.dumps({"format": _FORMAT, **key}, sort_keys=True)
    found = _kept(places, wanted, tell)
    if world.all_min(int(found is not None)) and found is not None:
        return found
    arrays = make()
    if world.is_main:
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        write_atomically({places[0]: safetensors.numpy.save(contiguous, metadata={"key": wanted})})
    return arrays


def _kept(places: Sequence[Path], wanted: str, tell: Callable[[Path], None]) -> Arrays | None:
    for place in places:
        try:
            with safe_open(place, framework="np") as file:
                if (file.metadata() or {}).get("key") == wanted:
                    arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                    tell(place)
                    return arrays
        except (OSError, SafetensorError):
            continue
    return None
