"""Progress of long work on stderr: bars on terminals and in notebooks, lines in logs."""

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastcaps import distributed
from fastcaps._text import printable

if TYPE_CHECKING:
    from fastcaps.training import Report

# Seconds between two lines of a log, and between two updates of a bar in a notebook.
_SECONDS, _BAR_SECONDS = 30, 0.2


@contextmanager
def progress_bar(task: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of all processes on stderr; yield a function to call with the number of items just done.

    Terminals and notebooks show a bar; elsewhere, as in a log file, a line is printed every half minute and at the end.
    """
    console = _stderr()
    if console.is_jupyter:
        with _notebook_bar() as draw:
            yield distributed.current().counting(_count_bar(task, total, draw))
        return
    if not console.is_terminal:
        yield distributed.current().counting(_count_lines(task, total))
        say(f"{task} {total:,}/{total:,}")
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    ) as progress:
        number = progress.add_task(task, total=total)
        yield distributed.current().counting(lambda count: progress.update(number, advance=count))
        progress.update(number, completed=total)


@contextmanager
def training_progress(name: str) -> Iterator[Callable[["Report"], None]]:
    """Show the progress of a training run: a bar on a terminal and in a notebook, otherwise occasional lines."""
    console = _stderr()
    if console.is_jupyter:
        with _notebook_bar() as draw:
            yield lambda report: draw(f"{_doing(name, report)} {_words(report)}", report.step, report.steps)
        return
    if not console.is_terminal:
        yield _lines(name)
        return
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"), console=console
    ) as p:
        number = p.add_task(name, total=None, words="")

        def show(report: "Report") -> None:
            p.update(
                number,
                description=_doing(name, report),
                completed=report.step,
                total=report.steps,
                words=_words(report),
            )

        yield show


def say(words: str) -> None:
    """Print a line on stderr."""
    print(printable(words, "\n"), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return a time such as ``1:02:03``."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


@contextmanager
def _notebook_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar in the output of a cell; yield a function that draws a text, the number done and the total."""
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    last = float("-inf")

    def draw(words: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > _BAR_SECONDS:
            last = time.monotonic()
            bar = f'<progress value="{done}" max="{total}"></progress>'
            handle.update(HTML(f"{bar} {html.escape(printable(words))}"))

    try:
        yield draw
    finally:
        handle.update(HTML(""))


def _count_bar(task: str, total: int, draw: Callable[[str, int, int], None]) -> Callable[[int], None]:
    done = 0

    def show(count: int) -> None:
        nonlocal done
        done += count
        draw(f"{task} {done:,}/{total:,}", done, total)

    return show


def _count_lines(task: str, total: int) -> Callable[[int], None]:
    """Print a line every half minute."""
    last, done = time.monotonic(), 0

    def show(count: int) -> None:
        nonlocal last, done
        done += count
        if time.monotonic() - last > _SECONDS:
            last = time.monotonic()
            say(f"{task} {done:,}/{total:,}")

    return show


def _lines(name: str) -> Callable[["Report"], None]:
    """Print a line at the end of each epoch, and every half minute."""
    last = time.monotonic()

    def show(report: "Report") -> None:
        nonlocal last
        if report.step == report.steps or time.monotonic() - last > _SECONDS:
            last = time.monotonic()
            say(f"{_doing(name, report)} {_words(report)}")

    return show


def _doing(name: str, report: "Report") -> str:
    if report.task != "training":
        return f"{name} {report.task} for epoch {report.epoch}/{report.epochs}"
    return f"{name} epoch {report.epoch}/{report.epochs}"


def _words(report: "Report") -> str:
    if report.task != "training":
        return f"batch {report.step}/{report.steps}"
    return (
        f"step {report.step}/{report.steps} loss {report.loss:.4f} accuracy {report.accuracy:.2%} "
        f"{report.images_per_second:.0f} images/s {duration(report.seconds_left)} left"
    )


def _stderr() -> Any:
    from rich.console import Console

    return Console(stderr=True)
