"""Data sets: a training part and a test part with labels, and their provenance."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from fastcaps._progress import progress_bar
from fastcaps._result import without_none
from fastcaps.data import arrays
from fastcaps.data.augment import Augmentation
from fastcaps.data.options import LoadCall
from fastcaps.distributed import current
from fastcaps.nn.config import CapsNetConfig
from fastcaps.runtime.pictures import edge_brightness

if TYPE_CHECKING:
    TorchDataset = Dataset
    ArrayLike = NDArray[Any] | Tensor

# Number of training images whose edge is measured.
_EDGES = 256


@final
class Split(Dataset[tuple[Tensor, int]]):
    """A part of a data set, as a torch dataset: labels in memory, images in memory or read when needed.

    Attributes:
        labels: classes ``(n)``, int64.
        streams: whether reading is slow, so that `batches` reads ahead in a background thread.
    """

    def __init__(
        self,
        labels: Tensor,
        read: Callable[[Tensor], Tensor],
        chosen: Tensor | None = None,
        *,
        streams: bool = False,
    ) -> None:
        """Make a part of the images that ``read`` returns.

        Args:
            labels: ``(n)``.
            read: returns images as bytes ``(b c h w)``, given indices ``(b)``; called in another thread if it streams.
            chosen: index that is passed to ``read`` for each image ``(n)``; 0 to n − 1 when None.
            streams: whether reading is slow, such as from disk.
        """
        self.labels = labels
        self.streams = streams
        self._read = read
        self._chosen = chosen

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image as bytes ``(c h w)``, before any crop, and its label."""
        number = range(len(self))[index]
        return self.images(torch.tensor([number]))[0], int(self.labels[number])

    def __repr__(self) -> str:
        """Return the number of images and where they are."""
        return f"Split({len(self):,} images, {'read when needed' if self.streams else 'in memory'})"

    def images(self, indices: Tensor) -> Tensor:
        """Return the images at indices ``(b)`` as bytes ``(b c h w)``, before any crop."""
        return self._read(indices if self._chosen is None else self._chosen[indices])

    def subset(self, indices: Tensor) -> "Split":
        """Return the images at indices ``(m)``, in this order."""
        chosen = indices if self._chosen is None else self._chosen[indices]
        return Split(self.labels[indices], self._read, chosen, streams=self.streams)

    def joined(self, other: "Split") -> "Split":
        """Return these images and then those of another part of the same set."""
        if self._chosen is None or other._chosen is None:
            raise ValueError("only parts of one folder or subsets of one part can be joined")
        labels, chosen = torch.cat([self.labels, other.labels]), torch.cat([self._chosen, other._chosen])
        return Split(labels, self._read, chosen, streams=self.streams)

    def relabeled(self, labels: Tensor) -> "Split":
        """Return the same images with other labels ``(n)``."""
        return Split(labels, self._read, self._chosen, streams=self.streams)

    def first(self, count: int | None) -> "Split":
        """Return the first images; all when ``count`` is None."""
        return self if count is None else self.subset(torch.arange(min(count, len(self))))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DataSet:
    """A training part and a test part, and the properties that a network needs to know.

    Attributes:
        name: name of the set, or of the folder.
        class_names: names of the classes, in the order of their labels.
        image_shape: ``(c, h, w)`` of the network's input, after cropping.
        train: training images.
        test: test images.
        provenance: origin of the images, as plain values for JSON: ``kind`` is ``"original"``, ``"generated"``,
            ``"folder"``, ``"arrays"`` or ``"torch"``; then hashes, and the recipe of generated images. Independent of
            where the files are.
        augmentation: augmentation of training images; its `test_view` is the view for testing.
        call: arguments with which `load` returns the set again, without ``data_dir``, as plain values for JSON; None
            for a set of arrays or torch datasets.
        background: brightness of the edge of gray images, between 0 and 1; None for color, or if it varies.
        network: entries of the network's configuration that differ from the default.
        training: settings of training that differ from the defaults.
        test_hashes: for a folder without ``train`` and ``test``, the beginning of the SHA-256 of each test image, by
            which they are found again when the folder has grown.
        left_out: files of a folder that can't be decoded and were left out (``skip_broken=True``).
    """

    name: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    train: Split
    test: Split
    provenance: dict[str, Any]
    augmentation: Augmentation
    call: LoadCall | None = None
    background: float | None = None
    network: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    test_hashes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def from_arrays(
        cls,
        images: "ArrayLike",
        labels: "ArrayLike | Sequence[int]",
        test_images: "ArrayLike",
        test_labels: "ArrayLike | Sequence[int]",
        *,
        name: str = "arrays",
        class_names: Sequence[str] | None = None,
        augmentation: Augmentation | None = None,
        background: float | None = None,
    ) -> Self:
        """Return a data set of NumPy arrays or tensors.

        Args:
            images: ``(n c h w)`` or ``(n h w)``, with 1 or 3 channels. Bytes (uint8) are not copied, so don't change
                them afterwards. Floats between 0 and 1 are rounded to the nearest byte, half to even.
            labels: class of each image, from 0, ``(n)``.
            test_images: as ``images``, of the same size.
            test_labels: as ``labels``.
            name: name of the set.
            class_names: names of the classes, in the order of the labels; numbers when None.
            augmentation: augmentation of training images; shifts by up to 1/14 of the shorter side when None.
            background: brightness of the edge of gray images, between 0 and 1; measured when None.
        """
        parts = arrays.from_memory(images, labels, ""), arrays.from_memory(test_images, test_labels, "test_")
        return cls._from_contents("arrays", parts, name, class_names, augmentation, background)

    @classmethod
    def from_torch(
        cls,
        train_dataset: "TorchDataset[Any]",
        test_dataset: "TorchDataset[Any]",
        *,
        name: str = "torch",
        class_names: Sequence[str] | None = None,
        augmentation: Augmentation | None = None,
        background: float | None = None,
    ) -> Self:
        """Return a data set of two map-style torch datasets of pairs (image, label).

        Every image is read once now, with a progress bar, for its label and the fingerprint. Later, images are read by
        index, in a background thread one batch ahead. Images are Pillow images, or tensors or arrays ``(c h w)`` or
        ``(h w)`` as for `from_arrays`. All must have one size, and be the same whenever they are read: leave out random
        transforms.

        Args:
            train_dataset: training images.
            test_dataset: test images.
            name: name of the set.
            class_names: names of the classes, in the order of the labels; when None, the attribute ``classes`` of
                ``train_dataset``, as in torchvision, or else numbers.
            augmentation: as for `from_arrays`.
            background: as for `from_arrays`.
        """
        parts = {"train_dataset": train_dataset, "test_dataset": test_dataset}
        total = sum(arrays.dataset_length(dataset, argument) for argument, dataset in parts.items())
        with progress_bar("reading", total * current().size) as observe:
            train, test = (arrays.from_dataset(dataset, argument, observe) for argument, dataset in parts.items())
        if class_names is None and isinstance(getattr(train_dataset, "classes", None), list | tuple):
            class_names = train_dataset.classes  # type: ignore[attr-defined]
        return cls._from_contents("torch", (train, test), name, class_names, augmentation, background)

    @classmethod
    def _from_contents(
        cls,
        kind: str,
        parts: tuple[arrays.Content, arrays.Content],
        name: str,
        class_names: Sequence[str] | None,
        augmentation: Augmentation | None,
        background: float | None,
    ) -> Self:
        (c, h, w), test_shape = (part.image_shape for part in parts)
        if test_shape != (c, h, w):
            raise ValueError(f"training images have shape {(c, h, w)}, test images {test_shape}, expected the same")
        if background is not None and not 0 <= background <= 1:
            raise ValueError(f"background is {background!r}, expected a brightness between 0 and 1")
        names = _class_names(class_names, *(part.labels for part in parts))
        train, test = (Split(part.labels, part.read, streams=kind == "torch") for part in parts)
        if background is None:
            background = measure_background(train, augmentation)
        if augmentation is None:
            augmentation = Augmentation.shifting(h, w, fill="zero" if background == 0 else "edge")
        return cls(
            name=name,
            class_names=names,
            image_shape=(c, *(augmentation.crop or (h, w))),
            train=train,
            test=test,
            provenance={
                "kind": kind,
                "images": {"train": len(train), "test": len(test)},
                "size": [h, w],
                "channels": c,
                "sha256": {"train": parts[0].sha256, "test": parts[1].sha256},
            },
            augmentation=augmentation,
            background=background,
            network={"resize": (h, w)} if augmentation.crop else {},
        )

    def __repr__(self) -> str:
        """Return name, sizes and origin."""
        shape = "×".join(map(str, self.image_shape))
        return (
            f"DataSet({self.name!r}, {len(self.train):,} training and {len(self.test):,} test images of {shape}, "
            f"{self.classes} classes, {self.provenance['kind']})"
        )

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def generated(self) -> bool:
        """Whether the images were generated; results on generated images have to state this."""
        return bool(self.provenance["kind"] == "generated")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the provenance: the same for the same images."""
        return hashlib.sha256(json.dumps(self.provenance, sort_keys=True).encode()).hexdigest()

    def validation_split(self, held_out: float | int, seed: int = 0) -> tuple[Split, Split]:
        """Hold out some of the training images, stratified by class.

        Args:
            held_out: a fraction between 0 and 1, or a number of images.
            seed: seed of the random choice.

        Returns:
            The images that are left for training, and those held out.
        """
        n = len(self.train)
        count = held_out if isinstance(held_out, int) else round(held_out * n)
        if isinstance(held_out, bool) or not 0 < count < n:
            raise ValueError(
                f"held_out is {held_out!r}, expected a fraction between 0 and 1, or a number from 1 to {n - 1} for "
                f"{n} training images"
            )
        remaining, chosen = stratified(self.train.labels.numpy(), count, seed)
        return self.train.subset(torch.from_numpy(remaining)), self.train.subset(torch.from_numpy(chosen))

    def everything(self) -> Split:
        """Return all images of a folder without ``train`` and ``test``: the training images, then the test images."""
        return self.train.joined(self.test)

    def with_classes(self, class_names: Sequence[str]) -> Self:
        """Return the same images with labels in another order of the same classes."""
        if tuple(class_names) == self.class_names:
            return self
        if set(class_names) != set(self.class_names):
            raise ValueError(
                f"{self.name} has the classes {_listed(self.class_names)}, expected {_listed(class_names)}: give "
                "images of the same classes"
            )
        numbers = torch.tensor([list(class_names).index(name) for name in self.class_names])
        train, test = (part.relabeled(numbers[part.labels]) for part in (self.train, self.test))
        return dataclasses.replace(self, class_names=tuple(class_names), train=train, test=test)

    def augmented(self, *, rotation: float | None = None, zoom: float | None = None) -> Self:
        """Return the same images with more augmentation in training.

        The corners that a rotation uncovers are black if the background is, otherwise the edge is repeated.

        Args:
            rotation: largest rotation in degrees; that of the set when None.
            zoom: largest relative change of height and width, such as 0.1; that of the set when None.
        """
        changes: dict[str, Any] = without_none(rotation=rotation, zoom=zoom)
        if not changes:
            return self
        augmentation = dataclasses.replace(self.augmentation, **changes)
        if augmentation.resamples and self.background != 0:
            augmentation = dataclasses.replace(augmentation, fill="edge")
        call = self.call
        if call is not None:
            call = call | cast("LoadCall", changes)
        return dataclasses.replace(self, augmentation=augmentation, call=call)

    def config(self, **changes: Any) -> CapsNetConfig:
        """Return the configuration of a network for these images: the paper's network if there is one for them.

        Args:
            changes: entries of the configuration, and ``stem`` as for `CapsNetConfig.for_images`, ``"auto"`` by
                default.
        """
        c, h, w = self.image_shape
        # The paper standardizes photographs; the mean of drawings on black is near zero already.
        preset: dict[str, Any] = {
            "height": h,
            "width": w,
            "channels": c,
            "classes": self.classes,
            "class_names": self.class_names,
            "standardize": c == 3,
            "stem": "auto",
        }
        return CapsNetConfig.for_images(**(preset | dict(self.network) | changes))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def measure_background(train: Split, augmentation: Augmentation | None = None) -> float | None:
    """Return the brightness of the edge of gray training images, between 0 and 1; None for color.

    Args:
        train: the images; only some of them are read.
        augmentation: augmentation whose crop is applied first.
    """
    indices = torch.linspace(0, len(train) - 1, min(len(train), _EDGES)).long()
    images = (augmentation or Augmentation()).middle(train.images(indices))
    return edge_brightness(images.numpy()) if images.shape[1] == 1 else None


def _class_names(names: Sequence[str] | None, labels: Tensor, test_labels: Tensor) -> tuple[str, ...]:
    """Return the names of the classes, by default numbers; raise if the labels don't match."""
    if names is None:
        count = int(labels.max()) + 1
        empty = sorted(set(range(count)) - set(labels.tolist()))
        if empty:
            raise ValueError(
                f"no training image has label {empty[0]}, expected labels from 0 to {count - 1} without gaps: renumber "
                "them, or give class_names if there are no images of that class"
            )
        names = tuple(map(str, range(count)))
    if len(names) < 2:
        raise ValueError(f"there is {len(names)} class, expected at least 2")
    for part, numbers in (("training", labels), ("test", test_labels)):
        wrong = torch.nonzero((numbers < 0) | (numbers >= len(names))).flatten()
        if len(wrong):
            raise ValueError(
                f"{part} image {wrong[0]} has label {numbers[wrong[0]]}, expected 0 to {len(names) - 1} for "
                f"{len(names)} classes"
            )
    return tuple(names)


def stratified(labels: NDArray[np.int64], count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hold out random images, stratified by class; both parts keep the order of the set.

    If ``count`` and the classes allow, each class has at least one image in both parts.

    Args:
        labels: ``(n)``.
        count: number of images to hold out.
        seed: seed of the random choice.

    Returns:
        Indices of the images that are left, and of those held out.
    """
    _, members = np.unique(labels, return_inverse=True)
    sizes = np.bincount(members)
    share = sizes * (count / len(labels))
    lower = np.minimum(1, sizes - 1) if count >= len(sizes) else np.zeros_like(sizes)
    upper = np.maximum(sizes - 1, 0) if len(labels) - count >= len(sizes) else sizes
    upper = np.maximum(upper, lower)
    held_out = np.clip(np.floor(share).astype(np.int64), lower, upper)
    while held_out.sum() != count:
        missing = share - held_out
        if held_out.sum() < count:
            held_out[np.argmax(np.where(held_out < upper, missing, -np.inf))] += 1
        else:
            held_out[np.argmin(np.where(held_out > lower, missing, np.inf))] -= 1
    random = np.random.default_rng(seed)
    chosen = [random.permutation(np.flatnonzero(members == k))[: held_out[k]] for k in range(len(sizes))]
    out = np.zeros(len(labels), bool)
    out[np.concatenate(chosen)] = True
    return np.flatnonzero(~out), np.flatnonzero(out)
