"""Loggers: where the progress and the metrics of a run go.

A custom logger is a subclass of `Logger` with the methods it needs; see docs/training.md for one that writes to Weights
& Biases. With a ``name`` it can be selected by that name, also on the command line (``fastcaps train --logger NAME``).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, final

from fastcaps._extras import require
from fastcaps._files import write_atomically
from fastcaps._progress import training_progress
from fastcaps._registry import Registry
from fastcaps.training.reports import EpochMetrics, Report
from fastcaps.training.run import Run


class Logger:
    """Base class of loggers; methods that a subclass does not define do nothing.

    In a distributed run only rank 0 logs.

    Attributes:
        name: registers the class under this name.
    """

    name: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        """Register the class, if it has a name."""
        super().__init_subclass__(**options)
        _LOGGERS.register(cls)

    def start(self, run: Run, history: Sequence[EpochMetrics]) -> None:
        """Prepare for a run.

        Args:
            run: the run folder; ``run.settings`` are its settings.
            history: metrics of earlier epochs, if the run is resumed.
        """

    def step(self, report: Report) -> None:
        """Log a step."""

    def epoch(self, metrics: EpochMetrics) -> None:
        """Log an epoch. An epoch that is repeated after a crash is logged again."""

    def finish(self) -> None:
        """Release resources. Called when training ends, also after an error or an interrupt."""


_LOGGERS: Registry[Logger] = Registry("logger")


def get_logger(logger: str | Logger) -> Logger:
    """Return a logger by its name; a logger object is returned unchanged."""
    return _LOGGERS.make(logger) if isinstance(logger, str) else logger


@final
class JsonlLogger(Logger):
    """Writes ``metrics.jsonl`` into the run folder: one line per epoch."""

    name = "jsonl"

    def start(self, run: Run, history: Sequence[EpochMetrics]) -> None:
        """Write the metrics of earlier epochs, and only those."""
        self._file, self._history = run.metrics_file, list(history)
        self._write()

    def epoch(self, metrics: EpochMetrics) -> None:
        """Add a line."""
        self._history.append(metrics)
        self._write()

    def _write(self) -> None:
        lines = "".join(json.dumps(metrics.to_dict()) + "\n" for metrics in self._history)
        write_atomically({self._file: lines.encode()})


@final
class TensorBoardLogger(Logger):
    """Writes TensorBoard events into ``tensorboard/`` in the run folder: one point per epoch."""

    name = "tensorboard"

    def start(self, run: Run, history: Sequence[EpochMetrics]) -> None:
        """Open the event file; events of an epoch that is repeated are purged."""
        require("writing TensorBoard events", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=len(history) + 1)

    def epoch(self, metrics: EpochMetrics) -> None:
        """Write all numbers."""
        for name, value in metrics.to_dict().items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, metrics.epoch)
        self._writer.flush()

    def finish(self) -> None:
        """Close the event file."""
        self._writer.close()


@final
class ConsoleLogger(Logger):
    """Shows progress on stderr: a bar on terminals and in notebooks, otherwise a line every half minute."""

    name = "console"

    def __init__(self, title: str | None = None) -> None:
        """Show progress under a title; the name of the run folder when None."""
        self._title = title

    def start(self, run: Run, history: Sequence[EpochMetrics]) -> None:
        """Show the bar."""
        self._open = ExitStack()
        self._show = self._open.enter_context(training_progress(self._title or run.folder.name))

    def step(self, report: Report) -> None:
        """Move the bar."""
        self._show(report)

    def finish(self) -> None:
        """Close the bar."""
        self._open.close()


@final
class CallbackLogger(Logger):
    """Calls a function with the report of every step."""

    def __init__(self, function: Callable[[Report], object]) -> None:
        self._function = function

    def step(self, report: Report) -> None:
        """Call the function."""
        self._function(report)


@contextmanager
def started(loggers: Sequence[Logger], run: Run, history: Sequence[EpochMetrics]) -> Iterator[None]:
    """Start loggers; finish those that were started when the block ends, also after an error."""
    with ExitStack() as stack:
        for logger in loggers:
            logger.start(run, history)
            stack.callback(logger.finish)
        yield
