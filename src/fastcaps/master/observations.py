"""The input of filters: label, lengths of the class capsules, and ground-truth column of each training image.

The ground-truth column of an image is the column of its coefficient matrix that belongs to its label, ``(i)``. The
columns of all images are in a temporary file, in half precision (138 MB for MNIST), and are read in chunks; only a few
coefficient matrices are in memory at a time.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Literal, NamedTuple, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcaps.distributed import SINGLE, World
from fastcaps.functional import RoutingOutput
from fastcaps.functional.labels import checked_labels
from fastcaps.master.accumulator import checked_iteration
from fastcaps.master.recording import PassCheck, capsule_layers, class_layer_path, observing
from fastcaps.nn.inference import Batches, run_batches

# Bytes of columns that are returned at a time, as float32.
CHUNK_BYTES = 4 * 2**20
# Images whose lower capsules are computed at a time.
_PIECE = 64


class NothingToFilterError(ValueError):
    """A filter has nothing to decide by, or would leave no image of a class."""


@final
class Observations:
    """Observations of the images that the filters have kept so far.

    Attributes:
        labels: ``(n)``, int64.
        lengths: lengths of the class capsules after dynamic routing ``(n j)``, float32.
        iteration: iteration of routing that the columns come from.
    """

    def __init__(
        self,
        labels: NDArray[np.int64],
        lengths: NDArray[np.float32],
        columns: NDArray[np.floating] | None = None,
        iteration: int = 3,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Combine labels, lengths and columns.

        Args:
            labels: ``(n)``.
            lengths: ``(n j)``.
            columns: ``(m i)``, in memory or mapped from a file; None if no filter uses them.
            iteration: iteration of routing that the columns come from.
            rows: row of each image in ``columns`` ``(n)``; 0 to n − 1 when None.
        """
        self.labels, self.lengths, self.iteration = labels, lengths, iteration
        self._columns = columns
        self._rows = np.arange(len(labels)) if rows is None else rows

    def __repr__(self) -> str:
        """Return the number of images."""
        columns = "without columns" if self._columns is None else f"columns of iteration {self.iteration}"
        return f"Observations({len(self.labels):,} images, {columns})"

    @classmethod
    def collect(
        cls,
        model: nn.Module,
        batches: Batches,
        *,
        iteration: int | Literal["final"] | None = None,
        class_layer: str | None = None,
        columns: bool = True,
        folder: Path | None = None,
        observe: Callable[[int], None] = lambda images: None,
        world: World = SINGLE,
    ) -> Self:
        """Run the training images through a trained network once.

        Args:
            model: the trained network; not modified.
            batches: inputs ``(b …)`` and labels ``(b)``, as for `accumulate`.
            iteration: iteration of routing that the columns come from, as for `accumulate`. The lengths are always
                those of the network's last iteration.
            class_layer: path of the layer whose capsules are the classes, as for `accumulate`.
            columns: whether a filter uses the columns.
            folder: folder for the temporary file; the system's folder for temporary files when None. The file has no
                name and is removed with this object, however the process ends.
            observe: called with the number of images after each batch.
            world: the ranks, each with its own images, concatenated by rank. All ranks get the labels and lengths of
                all images, rank 0 also their columns.
        """
        layers = capsule_layers(model)
        layer = layers[class_layer_path(layers, class_layer)]
        number = checked_iteration(layer.routing, iteration)
        with ColumnFiles(layer.out_capsules, [number] if columns else [], folder) as files:
            trace(model, batches, number, files.add, observe=observe, class_layer=class_layer)
            return cls(*files.result(number, world), number)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.lengths.shape[1])

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of images per class ``(j)``."""
        return np.bincount(self.labels, minlength=self.classes)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether dynamic routing classifies each image correctly ``(n)``."""
        return np.asarray(self.lengths.argmax(1) == self.labels)

    def of_class(self, label: int) -> NDArray[np.int64]:
        """Return the indices of the images of a class ``(m)``."""
        return np.flatnonzero(self.labels == label)

    def columns(
        self, numbers: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield the ground-truth columns of images in chunks, so that memory doesn't grow with their number.

        Args:
            numbers: indices of the images ``(m)``; all when None.

        Yields:
            Indices ``(b)`` and columns ``(b i)``.
        """
        numbers = np.arange(len(self)) if numbers is None else numbers
        return self._chunks(self._stored_columns(), numbers)

    def class_sums(self) -> NDArray[np.float64]:
        """Return the sum of the columns of each class ``(j i)``; divided by `counts`, it is their mean."""
        sums = np.zeros((self.classes, self._stored_columns().shape[1]))
        for numbers, columns in self.columns():
            labels = self.labels[numbers]
            for label in np.unique(labels):
                sums[label] += columns[labels == label].sum(0, dtype=np.float64)
        return sums

    def subset(self, keep: NDArray[np.bool_]) -> "Observations":
        """Return only the images for which ``keep (n)`` is true; the columns are shared."""
        return Observations(self.labels[keep], self.lengths[keep], self._columns, self.iteration, self._rows[keep])

    def _stored_columns(self) -> NDArray[np.floating]:
        if self._columns is None:
            if self.iteration == 1:
                raise NothingToFilterError(
                    "ground-truth columns are all equal at iteration 1: take a later iteration, or a filter that "
                    "doesn't go by them"
                )
            raise ValueError("ground-truth columns were not kept: collect them with columns=True")
        return self._columns

    def _chunks(
        self, columns: NDArray[np.floating], numbers: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        size = max(1, CHUNK_BYTES // (4 * columns.shape[1]))
        for start in range(0, len(numbers), size):
            part = numbers[start : start + size]
            yield part, columns[self._rows[part]].astype(np.float32)


class Traced(NamedTuple):
    """A chunk of images: labels ``(b)``, lengths ``(b j)`` of the network, coefficients ``(b i j)`` by iteration."""

    labels: Tensor
    lengths: Tensor
    coefficients: Mapping[int, Tensor]


def trace(
    model: nn.Module,
    batches: Batches,
    iterations: int,
    receive: Callable[[Traced], None],
    *,
    observe: Callable[[int], None] = lambda images: None,
    class_layer: str | None = None,
) -> None:
    """Run images through a model and pass every iteration of the class layer to a function.

    Args:
        model: any module with capsule layers; it runs in evaluation mode.
        batches: inputs ``(b …)`` and labels ``(b)``.
        iterations: number of iterations to trace; the layer's own number if that is larger.
        receive: called with chunks of images, in order; the coefficients of all iterations of a chunk fit into memory.
        observe: called with the number of images after each batch.
        class_layer: path of the layer whose capsules are the classes; the last by default.
    """
    layers = capsule_layers(model)
    path = class_layer_path(layers, class_layer)
    layer = layers[path]
    last, classes = layer.routing.iterations, layer.out_capsules
    check = PassCheck(layers, path)
    current_labels = torch.empty(0, dtype=torch.int64)

    def observer(current: str, lower_capsules: Tensor) -> Tensor:
        first = check.start(current, lower_capsules)
        own = current_labels[first : first + len(lower_capsules)]
        if current != path or len(own) != len(lower_capsules):  # `check.finish` raises for a wrong number
            return layers[current].route(lower_capsules).capsules
        capsules = [lower_capsules.new_empty(0, classes, layer.out_dim)]
        for piece, outputs in layer.trace(lower_capsules, max(iterations, last)):
            receive(_traced(own[piece], outputs, last))
            capsules.append(outputs[last - 1].capsules)
        return torch.cat(capsules)

    def step(inputs: Tensor, labels: Tensor) -> None:
        nonlocal current_labels
        labels = checked_labels(labels.cpu(), len(inputs), classes)
        for chunk, chunk_labels in zip(torch.split(inputs, _PIECE), torch.split(labels, _PIECE), strict=True):
            current_labels = chunk_labels
            model(chunk)
            check.finish(len(chunk))

    with observing(layers, observer):
        run_batches(model, batches, step, observe=observe)


def _traced(labels: Tensor, outputs: Sequence[RoutingOutput], last: int) -> Traced:
    lengths = torch.linalg.vector_norm(outputs[last - 1].capsules, dim=-1)  # (b, j)
    return Traced(labels, lengths.cpu(), {k: output.coefficients for k, output in enumerate(outputs, 1)})


@final
class ColumnFiles(ExitStack):
    """Collect labels and lengths in memory, and the ground-truth columns of iterations in temporary files."""

    def __init__(self, classes: int, iterations: Iterable[int], folder: Path | None) -> None:
        super().__init__()
        self._folder = folder
        # Files without a name: nothing is left behind, however the process ends. Columns of iteration 1 are all equal.
        self._files: dict[int, IO[bytes]] = {
            k: self.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - closed by the stack
            for k in iterations
            if k > 1
        }
        self._labels = [np.empty(0, np.int64)]
        self._lengths = [np.empty((0, classes), np.float32)]
        self._images = 0

    def add(self, traced: Traced) -> None:
        """Add a chunk of images."""
        self._check_finite(traced.lengths)
        self._labels.append(traced.labels.numpy())
        self._lengths.append(traced.lengths.float().numpy())
        for iteration, file in self._files.items():
            coefficients = traced.coefficients[iteration]  # (b, i, j)
            labels = traced.labels.to(coefficients.device)
            own = coefficients[torch.arange(len(labels), device=labels.device), :, labels].half()  # (b, i)
            self._check_finite(own)
            file.write(own.cpu().numpy().tobytes())
        self._images += len(traced.labels)

    def _check_finite(self, values: Tensor) -> None:
        """Raise ValueError if values ``(b …)`` are not finite, so that no filter could decide."""
        broken = ~values.isfinite().all(1)
        if broken.any():
            number = self._images + int(broken.nonzero()[0])
            raise ValueError(
                f"coefficients or capsules of image {number} are not numbers that half precision holds "
                f"(at most {torch.finfo(torch.half).max:.0f}): check the network's weights"
            )

    def result(
        self, iteration: int, world: World = SINGLE
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.floating] | None]:
        """Return labels ``(n)``, lengths ``(n j)`` and columns ``(n i)`` of an iteration; None where not stored."""
        labels = world.all_gather(np.concatenate(self._labels))
        lengths = world.all_gather(np.concatenate(self._lengths))
        if not len(labels):
            raise ValueError("no images were given: expected at least one of each class")
        columns = None
        if iteration in self._files:
            file = self._files[iteration]
            if not world.is_single:
                file = self._gathered(file, world)
            file.flush()
            if world.is_main:
                # The map outlives the closed file; the disk space is freed with the map.
                columns = np.memmap(file, np.float16, "r").reshape(len(labels), -1)
        return labels, lengths, columns

    def _gathered(self, file: IO[bytes], world: World) -> IO[bytes]:
        """Return a file that on rank 0 holds the files of all ranks, concatenated."""
        joined: IO[bytes] = self.enter_context(tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115 - by the stack
        sizes = world.all_gather(np.array([file.tell()]))
        file.seek(0)
        for rank, size in enumerate(sizes.tolist()):
            for _ in range(0, size, CHUNK_BYTES):
                own = file.read(CHUNK_BYTES) if rank == world.rank else b""
                chunk = world.all_gather(np.frombuffer(own, np.uint8))
                if world.is_main:
                    joined.write(chunk.tobytes())
        return joined
