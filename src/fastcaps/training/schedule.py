"""The epochs of a run: their images, their steps, their learning rates, and when coefficients are accumulated.

Epochs and steps count from 0.
"""

from dataclasses import dataclass
from typing import Self, final

import torch

from fastcaps.data import Split, steps_per_epoch
from fastcaps.data.dataset import stratified
from fastcaps.training.settings import TrainSettings


@final
@dataclass(frozen=True)
class Schedule:
    """The epochs of a run.

    Attributes:
        settings: settings of the run.
        train: training images.
        dynamic_train: training images of the dynamic epochs.
        dynamic_epochs: number of epochs with dynamic routing; all others have fixed coefficients.
    """

    settings: TrainSettings
    train: Split
    dynamic_train: Split
    dynamic_epochs: int

    @classmethod
    def of(cls, settings: TrainSettings, train: Split, *, fixed: bool = False) -> Self:
        """Return the schedule of a run.

        Args:
            settings: settings of the run.
            train: training images.
            fixed: whether coefficients are fixed from the first epoch on.
        """
        dynamic = settings.epochs if settings.dynamic_epochs is None else settings.dynamic_epochs
        return cls(settings, train, _dynamic_part(settings, train), 0 if fixed else dynamic)

    def images(self, epoch: int) -> Split:
        """Return the images of an epoch."""
        return self.dynamic_train if epoch < self.dynamic_epochs else self.train

    def steps(self, epoch: int) -> int:
        """Return the number of steps of an epoch."""
        return steps_per_epoch(self.images(epoch), self.settings.batch_size)

    def rate(self, epoch: int, step: int) -> float:
        """Return the learning rate of a step."""
        return self.settings.rate(self.done(epoch, step), sum(self.steps(k) for k in self._same_weights(epoch)))

    def done(self, epoch: int, step: int) -> int:
        """Return the number of steps before a step, since the weights were initialized."""
        return sum(self.steps(k) for k in self._same_weights(epoch) if k < epoch) + step

    def _same_weights(self, epoch: int) -> range:
        """Return the epochs that train the same weights as an epoch; ``reinit`` draws new ones."""
        epochs = range(self.settings.epochs)
        if not self.settings.reinit:
            return epochs
        return epochs[: self.dynamic_epochs] if epoch < self.dynamic_epochs else epochs[self.dynamic_epochs :]

    def images_left(self, epoch: int, step: int) -> int:
        """Return the number of images that are left to train on before a step."""
        left = sum(len(self.images(k)) for k in range(epoch, self.settings.epochs))
        return max(0, left - step * self.settings.batch_size)

    def accumulates_before(self, epoch: int) -> bool:
        """Return whether coefficients are accumulated before an epoch."""
        since, every = epoch - self.dynamic_epochs, self.settings.refresh_every
        return since == 0 or (since > 0 and every > 0 and since % every == 0)


def _dynamic_part(settings: TrainSettings, train: Split) -> Split:
    if settings.dynamic_fraction == 1:
        return train
    count = max(1, round(settings.dynamic_fraction * len(train)))
    _, chosen = stratified(train.labels.numpy(), count, settings.seed)
    part = train.subset(torch.from_numpy(chosen))
    missing = sorted(set(train.labels.tolist()) - set(part.labels.tolist()))
    if missing:
        raise ValueError(
            f"dynamic_fraction {settings.dynamic_fraction:g} of {len(train)} images has none of class "
            f"{', '.join(map(str, missing))}, and every class is accumulated: take a larger part"
        )
    return part
