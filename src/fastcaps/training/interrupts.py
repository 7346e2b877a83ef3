"""Stop a run between two steps when it is interrupted or terminated."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class TrainingInterrupted(KeyboardInterrupt):
    """A run was interrupted, and can be resumed.

    Attributes:
        folder: folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(f"interrupted: workflows.train(resume={str(folder)!r}) resumes the run")
        self.folder = folder


@contextmanager
def stop_between_steps() -> Iterator[threading.Event]:
    """Turn Ctrl-C and SIGTERM into an event that is checked after each step; a second Ctrl-C interrupts at once.

    A second SIGTERM does not: batch systems send it to every process, and launchers forward it.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def request(number: int, frame: Any) -> None:
        if stopped.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopped.set()

    handlers = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
