"""What is about to be trained on a folder of images: its size, the network, the memory, and the time per epoch."""

from collections.abc import Sequence
from typing import final

from fastcaps._progress import duration, say
from fastcaps.data import DataSet
from fastcaps.nn import CapsNet
from fastcaps.training.loggers import Logger
from fastcaps.training.reports import EpochMetrics, Report
from fastcaps.training.run import Run
from fastcaps.training.settings import TrainSettings

# Of the peak of memory, measured with networks of 8 and 21 million parameters: the libraries and the buffers of
# convolution and routing; per parameter the weights, gradients, moments of Adam and a checkpoint that is written; and
# copies of the stem's maps.
_BASE_BYTES, _PARAMETER_BYTES, _MAP_COPIES = 6e8, 40, 2
# Steps after which the time per epoch is said; the first one is slower than the others.
_STEPS = 5


def expected_bytes(model: CapsNet, batch_size: int) -> float:
    """Return about how much memory training needs."""
    config = model.config
    height, width = config.stem_size
    maps = 4 * height * width * config.stem_channels * batch_size
    return _BASE_BYTES + _PARAMETER_BYTES * _parameters(model) + _MAP_COPIES * maps


@final
class FolderSummary(Logger):
    """Says before the first step what is trained, and after some steps how long an epoch takes."""

    def __init__(self, data: DataSet, model: CapsNet, settings: TrainSettings) -> None:
        self._data, self._model, self._settings = data, model, settings
        self._steps = 0

    def start(self, run: Run, history: Sequence[EpochMetrics]) -> None:
        """Say sizes, memory and steps."""
        data, model, size = self._data, self._model, self._settings.batch_size
        millions = _parameters(model) / 1e6
        shape = "×".join(map(str, data.image_shape))
        say(
            f"{data.name}: {len(data.train):,} training and {len(data.test):,} test images of {shape}, {data.classes} "
            f"classes; {model.config.lower_capsules:,} lower capsules, {millions:.1f} million parameters; "
            f"about {expected_bytes(model, size) / 1e9:.1f} GB of memory with {size} images per step, at a "
            f"learning rate of {self._settings.learning_rate:g}"
        )

    def step(self, report: Report) -> None:
        """Say the time per epoch, once."""
        self._steps += 1
        if report.task == "training" and self._steps == min(_STEPS, report.steps) and report.images_per_second:
            seconds = report.steps * self._settings.batch_size / report.images_per_second
            left = duration(report.seconds_left)
            say(f"{self._data.name}: about {duration(seconds)} per epoch, {left} for what is left of {report.epochs}")


def _parameters(model: CapsNet) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
