"""What the workflows share: the device, the network and the data of a run, and this process's part of the images."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcaps import distributed
from fastcaps._machine import processors
from fastcaps.training.run import Run

if TYPE_CHECKING:
    import torch

    from fastcaps.data import DataSet, Split
    from fastcaps.master import MasterCoefficients
    from fastcaps.nn import CapsNet


def open_run(run: "str | Path | Run") -> Run:
    """Return a run, given its folder or the name of a bundled network."""
    return run if isinstance(run, Run) else Run.open(run)


def given(**options: Any) -> dict[str, Any]:
    """Return only the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


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
        raise ValueError(f"device {device!r} can't be used here ({reason}): try cpu, or auto") from None
    return selected


def load_run(
    run: "Run",
    device: "torch.device",
    data_dir: str | Path | None,
    *,
    master: "MasterCoefficients | None" = None,
    test_only: bool = False,
) -> tuple["CapsNet", "DataSet"]:
    """Return the network of a run and its data set, or only the test part of this.

    Refused when the processes of a job have different ones, or different coefficients.
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
    """Return the images of this process: all of them where there is one process."""
    import torch

    return images.subset(torch.arange(len(images))[distributed.current().share(len(images))])
