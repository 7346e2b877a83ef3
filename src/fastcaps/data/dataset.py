"""What a data set is to the rest of the library: two parts with labels, and where they come from."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps.data.augment import Augmentation
from fastcaps.nn.config import CapsNetConfig


@final
class Split:
    """A part of a data set: labels in memory, images in memory or read when wanted.

    Attributes:
        labels: class numbers ``(n)``, int64.
        streams: whether images come from disk, so that it pays to read some before they are wanted.
    """

    def __init__(
        self,
        labels: Tensor,
        read: Callable[[Tensor], Tensor],
        chosen: Tensor | None = None,
        *,
        streams: bool = False,
    ) -> None:
        """A part of images that ``read`` gives.

        Args:
            labels: of these images ``(n)``.
            read: from places ``(b)`` to bytes ``(b c h w)``; in another thread when it streams.
            chosen: the place of each image for ``read`` ``(n)``; one after the other when None.
            streams: whether it reads from disk.
        """
        self.labels = labels
        self.streams = streams
        self._read = read
        self._chosen = chosen

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    def images(self, indices: Tensor) -> Tensor:
        """Images of these numbers ``(b)`` as bytes ``(b c h w)``, at the size in which the set has them."""
        return self._read(indices if self._chosen is None else self._chosen[indices])

    def subset(self, indices: Tensor) -> "Split":
        """Only the images of these numbers ``(m)``, in this order."""
        chosen = indices if self._chosen is None else self._chosen[indices]
        return Split(self.labels[indices], self._read, chosen, streams=self.streams)

    def first(self, count: int | None) -> "Split":
        """Only so many; all when None."""
        return self if count is None else self.subset(torch.arange(min(count, len(self))))


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """A training part and a test part, and what one must know of them.

    Attributes:
        name: of the set, or of the folder.
        class_names: in the order of their labels.
        image_shape: ``(c, h, w)`` that the network gets, after cropping.
        train: training images.
        test: test images.
        provenance: where they come from, as plain values for JSON: ``kind`` is ``"original"``,
            ``"generated"`` or ``"folder"``; then hashes, and the recipe of what was generated. The same for
            the same images, wherever they lie.
        augmentation: of training images unless the user wants another; its `test_view` is the view for
            testing.
        call: the arguments with which `load` gives it again, but for ``data_dir``, as plain values for JSON; None for
            a set made by hand.
    """

    name: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    train: Split
    test: Split
    provenance: dict[str, Any]
    augmentation: Augmentation
    call: dict[str, Any] | None = None

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def generated(self) -> bool:
        """Whether the images were made here and results on them must say so."""
        return bool(self.provenance["kind"] == "generated")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the provenance: the same for the same images."""
        return hashlib.sha256(json.dumps(self.provenance, sort_keys=True).encode()).hexdigest()

    def validation_split(self, held_out: float | int, seed: int = 0) -> tuple[Split, Split]:
        """Hold out some of the training images, as many of each class as its share.

        Args:
            held_out: a fraction between 0 and 1, or a number of images.
            seed: of the choice.

        Returns:
            What is left for training, and what is held out.
        """
        n = len(self.train)
        count = held_out if isinstance(held_out, int) else round(held_out * n)
        if isinstance(held_out, bool) or not 0 < count < n:
            raise ValueError(
                f"{held_out!r} of {n} training images can't be held out: "
                f"expected a fraction between 0 and 1, or a number from 1 to {n - 1}"
            )
        rest, held = stratified(self.train.labels.numpy(), count, seed)
        return self.train.subset(torch.from_numpy(rest)), self.train.subset(torch.from_numpy(held))

    def config(self, **changes: Any) -> CapsNetConfig:
        """Return a network's configuration for these images: the paper's where it has one, else of its kind.

        Args:
            changes: entries of the configuration, and ``stem`` as for `CapsNetConfig.for_images`.
        """
        if self.name == "cifar10":
            changes.pop("stem", None)  # its images are small
            return CapsNetConfig.cifar10(**changes)
        c, h, w = self.image_shape
        # Of photographs the paper standardises; drawings on black already have their mean near zero.
        preset: dict[str, Any] = {
            "classes": self.classes,
            "class_names": self.class_names,
            "standardize": c == 3,
        }
        return CapsNetConfig.for_images(h, w, c, **(preset | changes))


def stratified(labels: NDArray[np.int64], count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hold out so many images, of each class its share, at random; both parts stay in the order of the set.

    Where ``count`` and the classes allow, each class has at least one image on both sides.

    Args:
        labels: ``(n)``.
        count: of images to hold out.
        seed: of the choice.

    Returns:
        Numbers of the images that are left, and of those held out.
    """
    _, members = np.unique(labels, return_inverse=True)
    sizes = np.bincount(members)
    share = sizes * (count / len(labels))
    least = np.minimum(1, sizes - 1) if count >= len(sizes) else np.zeros_like(sizes)
    most = np.maximum(sizes - 1, 0) if len(labels) - count >= len(sizes) else sizes
    most = np.maximum(most, least)
    held = np.clip(np.floor(share).astype(np.int64), least, most)
    while held.sum() != count:
        missing = share - held
        if held.sum() < count:
            held[np.argmax(np.where(held < most, missing, -np.inf))] += 1
        else:
            held[np.argmin(np.where(held > least, missing, np.inf))] -= 1
    random = np.random.default_rng(seed)
    chosen = [random.permutation(np.flatnonzero(members == k))[: held[k]] for k in range(len(sizes))]
    out = np.zeros(len(labels), bool)
    out[np.concatenate(chosen)] = True
    return np.flatnonzero(~out), np.flatnonzero(out)
