"""One pass over the training images for everything that needs them, and files that store its results.

Memory doesn't depend on the number of images: sums per class, a histogram, and the columns of the first hundred.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps._files import write_atomically
from fastcaps._tensors import read_tensors
from fastcaps.analysis.coefficients import CoefficientHistogram
from fastcaps.analysis.correlations import ClassCorrelations
from fastcaps.distributed import SINGLE, World
from fastcaps.functional.labels import checked_labels
from fastcaps.nn import CapsNet
from fastcaps.nn.base import check_capsule_network
from fastcaps.nn.inference import Batches, run_batches

# Version of the collected data: files of another version are not reused.
_FORMAT = 1

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class TrainingPass:
    """The results of a pass over the training images.

    Attributes:
        correlations: sums of the ground-truth columns per class.
        histogram: histogram of all coefficients, per iteration.
        first_columns: ground-truth columns of the first images ``(n i)``, float32.
        first_labels: labels of the same images ``(n)``.
        image_sums: sums of the images per class ``(j c h w)``.
    """

    correlations: ClassCorrelations
    histogram: CoefficientHistogram
    first_columns: NDArray[np.float32]
    first_labels: NDArray[np.int64]
    image_sums: NDArray[np.float64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of images per class ``(j)``."""
        return self.correlations.counts + self.correlations.constant

    @property
    def mean_images(self) -> NDArray[np.float64]:
        """The mean image of each class ``(j c h w)``; black for a class without images."""
        means: NDArray[np.float64] = self.image_sums / np.maximum(self.counts, 1)[:, None, None, None]
        return means

    def to_arrays(self) -> Arrays:
        """Return arrays for a file."""
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
        """Return the object that `to_arrays` converted."""
        classes, lower_capsules = arrays["sums"].shape
        correlations = ClassCorrelations(lower_capsules, classes)
        for name in ("sums", "squares", "counts", "constant"):
            setattr(correlations, name, arrays[name])
        histogram = CoefficientHistogram(len(arrays["histogram"]), *arrays["bounds"].tolist())
        histogram.counts = arrays["histogram"]
        return cls(correlations, histogram, *(arrays[field.name] for field in fields(cls)[2:]))


def collect(
    model: CapsNet,
    batches: Batches,
    first: int = 100,
    observe: Callable[[int], None] = lambda images: None,
    world: World = SINGLE,
) -> TrainingPass:
    """Run the training images through the network once.

    Args:
        model: the trained network.
        batches: images ``(b c h w)`` and labels ``(b)``, without augmentation.
        first: number of images whose individual columns are stored.
        observe: called with the number of images after each batch.
        world: the ranks, each with its own images in their order; all get the same result.
    """
    check_capsule_network(model, "collect")
    config, routing = model.config, model.routing
    correlations = ClassCorrelations(config.lower_capsules, config.classes)
    histogram = CoefficientHistogram.of(config, routing.routing.iterations)
    image_sums = torch.zeros(config.classes, config.channels, config.height, config.width, dtype=torch.float64)
    first_columns = np.empty((0, config.lower_capsules), np.float32)
    first_labels = np.empty(0, np.int64)

    def step(images: Tensor, labels: Tensor) -> None:
        nonlocal first_columns, first_labels
        labels = checked_labels(labels.cpu(), len(images), config.classes)
        lower = model.lower_capsules(images)  # (b, i, d)
        for piece, outputs in routing.trace(lower):
            own = labels[piece]
            trace = torch.stack([output.coefficients for output in outputs], dim=1)  # (b, r, i, j)
            histogram.update(trace)
            columns = trace[torch.arange(len(own)), -1, :, own.to(trace.device)].float().cpu().numpy()  # (b, i)
            correlations.update(columns, own.numpy())
            missing = max(0, first - len(first_labels))
            first_columns = np.concatenate([first_columns, columns[:missing]])
            first_labels = np.concatenate([first_labels, own.numpy()[:missing]])
        image_sums.index_add_(0, labels, images.cpu().double())

    run_batches(model, batches, step, observe=observe)
    first_columns, first_labels = world.all_gather(first_columns), world.all_gather(first_labels)
    if not len(first_labels):
        raise ValueError("there are no training images to analyze")
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
    """Return arrays from the first file that has them for this key; otherwise compute them and write the first file.

    Args:
        places: files to look in; only the first is written.
        key: everything that determines the arrays, as JSON: hashes of weights and images, settings.
        make: computes the arrays.
        tell: called with the file that the arrays were read from.
        world: the ranks; all compute the arrays unless all have found them; only rank 0 writes.
    """
    key_text = json.dumps({"format": _FORMAT, **key}, sort_keys=True)
    stored = _stored(places, key_text, tell)
    if world.all_min(int(stored is not None)) and stored is not None:
        return stored
    arrays = make()
    if world.is_main:
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        metadata = {"key": key_text, "sha256": _hash(contiguous)}
        write_atomically({places[0]: safetensors.numpy.save(contiguous, metadata=metadata)})
    return arrays


def _stored(places: Sequence[Path], key_text: str, tell: Callable[[Path], None]) -> Arrays | None:
    for place in places:
        try:
            metadata, tensors = read_tensors(place)
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        except (OSError, ValueError, TypeError):  # TypeError: a dtype that NumPy does not have
            continue
        if metadata.get("key") == key_text and metadata.get("sha256") == _hash(arrays):
            tell(place)
            return arrays
    return None


def _hash(arrays: Arrays) -> str:
    """Return the SHA-256 of arrays, by which a damaged file is recognized."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.shape} {array.dtype}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
