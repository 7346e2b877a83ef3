"""Helpers of the workflows: device, network and data of a run, and the share of images of this process."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypedDict, TypeVar

from fastcaps import _hub, distributed
from fastcaps._machine import processors, usable_devices
from fastcaps.bundled import is_bundled
from fastcaps.training.run import Run

if TYPE_CHECKING:
    import torch

    from fastcaps.data import DataSet, Split
    from fastcaps.master import MasterCoefficients
    from fastcaps.nn import CapsNet

P = ParamSpec("P")
R = TypeVar("R")


class ExecutionOptions(TypedDict, total=False):
    """Keyword arguments that all workflows take.

    Attributes:
        data: the data set of the run, required if it was made in Python; the folder where its images are now; or other
            images of the same classes: a data set, its name, or a folder.
        data_dir: folder with the files of the data sets.
        batch_size: images per batch.
        device: ``"auto"`` (default), or a PyTorch device.
        threads: CPU threads during the call; those of the process by default.
        command: command line to store with the result.
    """

    data: "DataSet | str | Path | None"
    data_dir: str | Path | None
    batch_size: int
    device: "str | torch.device"
    threads: int | None
    command: str | None


@dataclass(frozen=True)
class Execution:
    """`ExecutionOptions` with their defaults."""

    data: "DataSet | str | Path | None" = None
    data_dir: str | Path | None = None
    batch_size: int = 128
    device: "str | torch.device" = "auto"
    threads: int | None = None
    command: str | None = None

    def select_device(self) -> "torch.device":
        """Set the number of CPU threads and return the device."""
        return select_device(self.device, self.threads)

    def load_data(self, run: Run, *, test_only: bool = False) -> "DataSet":
        """Return the data set of a run."""
        return run.data(self.data_dir, data=self.data, test_only=test_only)


def restores_threads(workflow: Callable[P, R]) -> Callable[P, R]:
    """Decorate a workflow so that PyTorch has as many threads after it as before."""

    @wraps(workflow)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        torch = sys.modules.get("torch")  # prediction from a file doesn't import it
        threads = None if torch is None else torch.get_num_threads()
        try:
            return workflow(*args, **kwargs)
        finally:
            if torch is not None and torch.get_num_threads() != threads:
                torch.set_num_threads(threads)

    return wrapped


def open_run(run: "str | Path | Run") -> Run:
    """Return a run, given its folder or the name of a bundled network."""
    return run if isinstance(run, Run) else Run.open(run)


def run_name(run: Run) -> str:
    """Return the name of a run in results: that of a bundled network or of a repository on the Hub, or its folder."""
    return _hub.repository(run.folder) or (run.folder.name if is_bundled(run.folder) else str(run.folder))


def select_device(device: "str | torch.device" = "auto", threads: int | None = None) -> "torch.device":
    """Set the number of CPU threads and return the device; processes on one machine share its cores and its GPUs."""
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
        selected = torch.device(device)
        torch.zeros(1, device=selected).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={device!r} can't be used here ({reason}): try {' or '.join(usable_devices())}"
        ) from None
    return selected


def load_run(
    run: Run, execution: Execution, *, master: "MasterCoefficients | None" = None, test_only: bool = False
) -> tuple["CapsNet", "DataSet"]:
    """Return the network of a run on its device, and its data set or only the test images.

    Raises:
        ValueError: the processes of a job have different weights, images or coefficients.
    """
    from fastcaps.nn.pretrained import weights_hash

    world = distributed.current()
    model = run.model().to(execution.select_device())
    data = world.main_first(lambda: execution.load_data(run, test_only=test_only))
    if not world.is_single:
        coefficients = None if master is None else master.values_hash
        world.check_same(weights=weights_hash(model), images=data.fingerprint, coefficients=coefficients)
    return model, data


def check_writable(run: Run) -> None:
    """Raise if a run is bundled or comes from the Hub, so that nothing may be written to it."""
    if is_bundled(run.folder):
        origin = "was loaded from the Hub" if _hub.repository(run.folder) else "comes with fastcaps"
        raise ValueError(f"{run_name(run)} {origin} and is not written to: give another place as out=")


def check_own_images(run: Run, data: "DataSet") -> None:
    """Raise if results of other images would be written into a run; a folder that has grown is allowed."""
    if run.has_others(data):
        raise ValueError(f"{run.images_note(data)}: give another place than the run as out=")


def writing(run: Run, place: Path | None) -> AbstractContextManager[None]:
    """Hold the lock of a run while a file in its folder is written; no lock is needed for other places."""
    inside = place is not None and place.absolute().is_relative_to(run.folder.absolute())
    return run.locked() if inside and distributed.current().is_main else nullcontext()


def share(images: "Split") -> "Split":
    """Return the share of images of this process; all of them if there is only one process."""
    import torch

    return images.subset(torch.arange(len(images))[distributed.current().share(len(images))])
