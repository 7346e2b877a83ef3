"""What all subcommands share: how they fail, what they print where, options that mean the same everywhere."""

import functools
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from fastcaps import distributed
from fastcaps._extras import require
from fastcaps._machine import processors
from fastcaps._version import __version__
from fastcaps.bundled import is_bundled

if TYPE_CHECKING:
    import torch

    from fastcaps.data import DataSet, Split
    from fastcaps.master import MasterCoefficients
    from fastcaps.nn import CapsNet
    from fastcaps.training import Report, Run

RunArgument = Annotated[
    Path, typer.Argument(help="A run folder, or a network that comes with fastcaps.", metavar="RUN")
]
DataDir = Annotated[Path | None, typer.Option(help="A folder that has the data sets' files.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Of the processor; all by default.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

P = ParamSpec("P")
R = TypeVar("R")


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function a subcommand that fails with one line: exit code 1, or 130 when interrupted.

    It works in one process and refuses to be started in several. With ``FASTCAPS_TRACEBACK=1`` in the environment the
    traceback is shown instead.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with _one_line():
            size = distributed.launched()[1]
            if size > 1:
                raise ValueError(
                    f"fastcaps {function.__name__} works in one process, {size} were started: leave torchrun out"
                )
            return function(*args, **kwargs)

    return wrapped


def distributed_command(function: Callable[P, R]) -> Callable[P, R]:
    """The same for a subcommand that several processes may share: of what all have to say, one says it."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with _one_line():
            if distributed.launched()[1] == 1:
                return function(*args, **kwargs)
            require(f"fastcaps {function.__name__} in several processes", "torch")
            with distributed.init_distributed() as world, _one_line(world):
                world.check_same(command=sys.argv[1:], version=__version__)
                return function(*args, **kwargs)

    return wrapped


def quiet() -> None:
    """Let only the first of several processes print; errors that others alone have go by `_one_line`."""
    if distributed.launched()[0] > 0:
        # Open until the process ends.
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123


@contextmanager
def _one_line(world: distributed.World = distributed.SINGLE) -> Iterator[None]:
    """Turn errors into one line, said once, and an exit code."""
    try:
        yield
    except distributed.EndedElsewhereError as error:
        raise typer.Exit(error.code) from None
    except distributed.JoiningError as error:
        # Each has its own to say, and nobody to ask whether it was said.
        typer.echo(f"error: {error}", file=sys.__stderr__)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        _say("interrupted", world, 130)
        raise typer.Exit(130) from None
    except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
        words = explained(error, world)
        if words is None or os.environ.get("FASTCAPS_TRACEBACK") == "1":
            world.end(1)
            if not world.is_single:
                sys.stderr = sys.__stderr__
            raise
        _say(f"error: {words}", world, 1)
        raise typer.Exit(1) from None
    except typer.BadParameter:
        raise
    except Exception:
        # A fault of ours, which must not go unseen because another than the first process has it.
        world.end(1)
        if distributed.launched()[0] > 0:
            sys.stderr = sys.__stderr__
        raise


def _say(words: str, world: distributed.World, code: int) -> None:
    world.end(code)
    if world.is_single:
        typer.echo(words, err=True)
        wait_for_the_first()
    elif world.is_first_to_say(words):
        typer.echo(words, file=sys.__stderr__)


def wait_for_the_first() -> None:
    """In another process than the first, wait to be ended.

    The first is about to say why it ends, and the launcher would stop it at once if another ended before.
    """
    if distributed.launched()[0] > 0:
        time.sleep(30)


def explained(error: Exception, world: distributed.World = distributed.SINGLE) -> str | None:
    """What an error says in the user's terms; None for one that is nobody's input."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error):
        return "this needs more memory than there is: choose a smaller network, smaller images or a smaller batch"
    try:
        lost = world.lost_another(error)
    except distributed.EndedElsewhereError as ended:
        raise typer.Exit(ended.code) from None
    if lost:
        return (
            "another process of this job has died or doesn't answer any more: see above what it said, then start again "
            "(fastcaps train goes on from its checkpoint with --resume)"
        )
    if isinstance(error, RuntimeError):
        return None
    return str(error)


def print_json(value: Any) -> None:
    """A result for machines, on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A result for people, on standard output; all columns but the first are aligned right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 120
    Console(width=width).print(table)


def chosen(**options: Any) -> dict[str, Any]:
    """Only the options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def this_command() -> str:
    """The command line, without the folder of the data, which is another elsewhere."""
    from fastcaps.training.result import without_data_dir

    return without_data_dir(shlex.join(["fastcaps", *sys.argv[1:]]))


def check_not_bundled(run: Path, folder: Path) -> None:
    """Refuse to write into a folder of the package; ``run`` is what the user called it."""
    if is_bundled(folder):
        raise ValueError(f"{run} comes with fastcaps and is not written to: say where with --out")


def set_up(device: str, threads: int | None) -> "torch.device":
    """Set the number of threads and find the device; processes on one machine share its cores and its GPUs."""
    import torch

    world = distributed.current()
    if threads is not None:
        torch.set_num_threads(threads)
    elif not world.is_single:
        torch.set_num_threads(max(1, processors() // world.local_size))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not world.is_single:
        device = f"cuda:{world.local_rank}"
    try:
        found = torch.device(device)
        torch.zeros(1, device=found).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {device!r} can't be used here ({reason}): try cpu, or auto") from None
    return found


def run_and_data(
    run: "Run",
    device: "torch.device",
    data_dir: Path | None,
    *,
    master: "MasterCoefficients | None" = None,
    test_only: bool = False,
) -> tuple["CapsNet", "DataSet"]:
    """A run's network and its data, or only the test part of these.

    Refused when the processes of a job find others, or have other coefficients.
    """
    from fastcaps.nn.pretrained import weights_hash

    world = distributed.current()
    model = run.model().to(device)
    data = world.main_first(lambda: run.data(data_dir, test_only=test_only))
    if not world.is_single:
        coefficients = None if master is None else master.values_hash
        world.check_same(weights=weights_hash(model), images=data.fingerprint, coefficients=coefficients)
    return model, data


def share(images: "Split") -> "Split":
    """The part of images that this process looks at: all when it is alone."""
    import torch

    return images.subset(torch.arange(len(images))[distributed.current().share(len(images))])


@contextmanager
def counted(task: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, of all processes together; what it gives is told how many were just done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=_stderr()
    ) as progress:
        number = progress.add_task(task, total=total)
        yield distributed.current().counting(lambda count: progress.update(number, advance=count))
        progress.update(number, completed=total)


@contextmanager
def training_progress(name: str) -> Iterator[Callable[["Report"], None]]:
    """Progress of a training run on stderr: a bar on a terminal, otherwise a line now and then."""
    console = _stderr()
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


def _lines(name: str) -> Callable[["Report"], None]:
    """A line at the end of each epoch, and every half minute."""
    last = time.monotonic()

    def show(report: "Report") -> None:
        nonlocal last
        if report.step == report.steps or time.monotonic() - last > 30:
            last = time.monotonic()
            typer.echo(f"{_doing(name, report)} {_words(report)}", err=True)

    return show


def _doing(name: str, report: "Report") -> str:
    if report.task != "training":
        return f"{name} {report.task} for epoch {report.epoch}/{report.epochs}"
    return f"{name} epoch {report.epoch}/{report.epochs}"


def _words(report: "Report") -> str:
    if report.task != "training":
        return f"batch {report.step}/{report.steps}"
    left = int(report.seconds_left)
    return (
        f"step {report.step}/{report.steps} loss {report.loss:.4f} accuracy {report.accuracy:.2%} "
        f"{report.images_per_second:.0f} images/s {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
    )


def _stderr() -> Any:
    from rich.console import Console

    return Console(stderr=True)
