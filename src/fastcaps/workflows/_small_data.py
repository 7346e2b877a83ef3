"""Training on few images: settings with enough steps, and warnings if a network can't learn or hasn't learned."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fastcaps.data import DataSet
from fastcaps.training.reports import EpochMetrics
from fastcaps.training.schedule import Schedule
from fastcaps.training.settings import TrainSettings

# Steps per epoch for which the batch size of a folder is chosen, and the smallest batch size.
_STEPS, _MIN_BATCH_SIZE = 20, 8
# Minimum number of steps per epoch; fewer cause a warning.
_FEW_STEPS = 5


def folder_settings(data: DataSet, values: Mapping[str, Any]) -> TrainSettings:
    """Return settings for a folder of images; by default the batch size depends on the number of images.

    The learning rate is scaled by the square root of the change in batch size, because steps of Adam get noisier.
    """
    settings = TrainSettings(**values)
    if "batch_size" in values:
        return settings
    held_out = settings.validation if isinstance(settings.validation, int) else settings.validation * len(data.train)
    images_per_step = max(1, (len(data.train) - round(held_out)) // _STEPS)
    size = max(_MIN_BATCH_SIZE, min(settings.batch_size, 2 ** int(math.log2(images_per_step))))
    rate = float(f"{settings.learning_rate * math.sqrt(size / settings.batch_size):.2g}")
    return TrainSettings(**{"learning_rate": rate, **values, "batch_size": size})


def few_steps_warnings(schedule: Schedule) -> tuple[str, ...]:
    """Return a warning if an epoch has too few steps."""
    steps = schedule.steps(0)
    if steps >= _FEW_STEPS or schedule.settings.batch_size == 1:
        return ()
    advice = (
        f"use a smaller batch size than {schedule.settings.batch_size} with a smaller learning rate, or more images"
    )
    return (f"an epoch has {steps} step{'' if steps == 1 else 's'}: {advice}",)


def nothing_learned_warnings(schedule: Schedule, history: Sequence[EpochMetrics]) -> tuple[str, ...]:
    """Return a warning if the last epoch is, within a standard error, no better than always predicting one class."""
    labels, accuracy = schedule.images(len(history) - 1).labels, history[-1].accuracy
    share = float(torch.bincount(labels).max()) / len(labels)
    if accuracy > share + math.sqrt(share * (1 - share) / len(labels)) or accuracy == 1:
        return ()
    return (
        f"the network has learned nothing: its training accuracy of {accuracy:.2%} is no better than always naming the "
        f"most frequent class ({share:.2%}); train for more epochs, or with a smaller batch size or learning rate",
    )
