"""The teacher of a pruned network: the class capsules of the original network on augmented training images."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from fastcaps._files import write_atomically
from fastcaps._tensors import read_tensors
from fastcaps.data import Augmentation, Split, batches, steps_per_epoch
from fastcaps.nn import CapsuleNetwork
from fastcaps.nn.inference import gather_batches
from fastcaps.nn.pretrained import weights_hash


class Lesson(NamedTuple):
    """A batch of images ``(b c h w)``, labels ``(b)`` and the capsules ``(b j e)`` of the teacher."""

    images: Tensor
    labels: Tensor
    capsules: Tensor


class Teacher:
    """Augmented training images with the teacher's capsules, the same for every network that learns from them.

    Augmentation follows from seed, epoch and step, so the capsules of an epoch are computed once and reused by every
    size. They are cached on disk in half precision: 2·j·e bytes per image and epoch.
    """

    def __init__(
        self,
        model: CapsuleNetwork,
        images: Split,
        view: Augmentation,
        *,
        batch_size: int = 128,
        seed: int = 0,
        views: int | None = None,
        folder: Path | None = None,
        observe: Callable[[int], None] = lambda images: None,
    ) -> None:
        """Make a teacher.

        Args:
            model: the network to learn from; not modified.
            images: training images.
            view: their augmentation.
            batch_size: images per step.
            seed: seed of order and augmentation.
            views: number of epochs with new augmentations; later epochs repeat them. None for new ones in every epoch.
            folder: folder to cache the capsules in; when None, they are computed in every epoch.
            observe: called with the number of images whose capsules were just computed.
        """
        self.model, self.images, self.view = model, images, view
        self.batch_size, self.seed, self.views, self.folder = batch_size, seed, views, folder
        self._observe = observe
        labels = hashlib.sha256(images.labels.numpy().tobytes()).hexdigest()
        self.key: dict[str, Any] = {
            "weights": weights_hash(model),
            "labels": labels,
            "augmentation": view.to_dict(),
            "batch_size": batch_size,
            "seed": seed,
        }

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return steps_per_epoch(self.images, self.batch_size)

    def lessons(self, epoch: int, start: int = 0) -> Iterator[Lesson]:
        """Yield the batches of an epoch from a step on.

        Args:
            epoch: counted from 0.
            start: the first step.
        """
        epoch = epoch if self.views is None else epoch % self.views
        capsules = None if self.folder is None else self._stored(epoch)
        for step, (images, labels) in enumerate(self._batches(epoch, start), start):
            if capsules is None:
                answers = self._capsules([(images, labels)])
            else:
                answers = capsules[step * self.batch_size : step * self.batch_size + len(labels)]
            yield Lesson(images, labels, answers.to(images.dtype))

    def _batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        return batches(self.images, self.batch_size, view=self.view, shuffle_seed=self.seed, epoch=epoch, start=start)

    def images_left(self, epochs: int) -> int:
        """Return the number of images of so many epochs, and of those among them whose capsules must be computed."""
        views = epochs if self.views is None else min(self.views, epochs)
        if self.folder is not None:
            views -= sum(self._file(view).is_file() for view in range(views))
        return (epochs + views) * len(self.images)

    def _capsules(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the capsules ``(n j e)`` of the teacher for batches."""
        capsules = gather_batches(
            self.model, batches, lambda images, _: {"capsules": self.model(images).capsules}, observe=self._observe
        )
        return torch.from_numpy(capsules["capsules"])

    def _file(self, epoch: int) -> Path:
        assert self.folder is not None
        return self.folder / f"seed-{self.seed}-epoch-{epoch}.safetensors"

    def _stored(self, epoch: int) -> Tensor:
        """Return the capsules ``(n j e)`` of all images in the order of an epoch; compute and cache them if missing."""
        path, key = self._file(epoch), json.dumps(self.key)
        try:
            metadata, tensors = read_tensors(path)
            if metadata.get("key") == key and "capsules" in tensors:
                return tensors["capsules"]
        except (OSError, ValueError):
            pass
        capsules = self._capsules(self._batches(epoch)).half()
        write_atomically({path: safetensors.torch.save({"capsules": capsules}, metadata={"key": key})})
        return capsules
