"""Summary of a training on a folder of images: number of images, network, memory, and time per epoch."""

from collections.abc import Sequence
from typing import final

from fastcaps._progress import duration, say
from fastcaps.data import DataSet
from fastcaps.nn import CapsNet
from fastcaps.training.loggers import Logger
from fastcaps.training.reports import EpochMetrics, Report
from fastcaps.training.run import Run
from fastcaps.training.settings import TrainSettings

# Parts of the peak memory, measured with networks of 8 and 21 million parameters: libraries and the buffers of
# convolution and routing; bytes per parameter for weights, gradients, moments of Adam and the checkpoint being written;
# and the number of copies of the stem's maps.
_BASE_BYTES, _PARAMETER_BYTES, _MAP_COPIES = 6e8, 40, 2
# Steps after which the time per epoch is printed; the first step is slower than the others.
_STEPS = 5


def expected_bytes(model: CapsNet, batch_size: int) -> float:
    """Return an estimate of the memory that training needs."""
    config = model.config
    height, width = config.stem_size
    maps = 4 * height * width * config.stem_channels * batch_size
    return _BASE_BYTES + _PARAMETER_BYTES * _parameters(model) + _MAP_COPIES * maps


@final
class FolderSummary(Logger):
    """Print what is trained before the first step, and the time per epoch after a few steps."""

    def __init__(self, data: DataSet, model: CapsNet, settings: TrainSettings) -> None:
        self._data, self._model, self._settings = data, model, settings
        self._steps = 0

    def start(self, run: Run, history: Sequence[EpochMetrics]) -> None:
        """Print sizes and memory."""
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
        """Print the time per epoch, once."""
        self._steps += 1
        if report.task == "training" and self._steps == min(_STEPS, report.steps) and report.images_per_second:
            seconds = report.steps * self._settings.batch_size / report.images_per_second
            left = duration(report.seconds_left)
            say(f"{self._data.name}: about {duration(seconds)} per epoch, {left} for what is left of {report.epochs}")


def _parameters(model: CapsNet) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
