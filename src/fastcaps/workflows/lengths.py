"""Compare the lengths of class capsules with dynamic routing and without it, on images of the classes and on others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

from fastcaps._files import check_output, json_bytes, write_atomically
from fastcaps._progress import progress_bar
from fastcaps.analysis import rejection
from fastcaps.analysis.rejection import LengthComparison
from fastcaps.data import batches, load
from fastcaps.master import fold
from fastcaps.nn import CapsNet, CapsuleNetwork, FastCapsNet
from fastcaps.training.run import Run
from fastcaps.workflows._common import Execution, ExecutionOptions, load_run, open_run, restores_threads


@restores_threads
def compare_lengths(
    run: str | Path | Run,
    outside: str | Path = "fashion_mnist",
    *,
    runs: Mapping[str, str | Path | Run] | None = None,
    limit: int | None = None,
    result_file: str | Path | None = None,
    **options: Unpack[ExecutionOptions],
) -> LengthComparison:
    """Compare the lengths of dynamic, master and uniform coefficients of a run, and of the folded networks of others.

    Long capsules of the wrong classes spoil thresholds: the result also says how well the longest capsule of an image
    tells images of the classes from other images.

    Args:
        run: a run, its folder, or the name of a bundled network.
        outside: data set of images of no class, by name or folder; its images have the size of the network's.
        runs: other runs with the same classes, by the name of their row.
        limit: number of test images of each data set, from the first; all by default.
        result_file: JSON file to write.
        options: see `ExecutionOptions`.
    """
    if result_file is not None:
        check_output(result_file, ".json")
    opened, execution = open_run(run), Execution(**options)
    model, own = load_run(opened, execution, test_only=True)
    networks: dict[str, CapsuleNetwork] = {"dynamic": model, "master": fold(model, opened.master())}
    networks["uniform"] = fold(model, "uniform")
    for name, other in (runs or {}).items():
        if name in networks:
            raise ValueError(f"there is a row {name!r} already: give the run another name")
        networks[name] = _folded(open_run(other), model)
    others = load(str(outside), data_dir=execution.data_dir, test_only=True)
    if others.image_shape != own.image_shape:
        raise ValueError(
            f"{others.name} has images of {others.image_shape}, {own.name} of {own.image_shape}: expected "
            "images of one shape"
        )
    tests, strangers = own.test.first(limit), others.test.first(limit)
    view, size = own.augmentation.test_view, execution.batch_size
    with progress_bar("images", len(networks) * (len(tests) + len(strangers))) as observe:
        rows = rejection.compare_lengths(
            networks, lambda: batches(tests, size, view=view), lambda: batches(strangers, size, view=view), observe
        )
    comparison = LengthComparison(
        data=own.name,
        outside=others.name,
        images=len(tests),
        outside_images=len(strangers),
        rows=rows,
        command=execution.command,
    )
    if result_file is not None:
        write_atomically({Path(result_file): json_bytes(comparison.to_dict())})
    return comparison


def _folded(run: Run, model: CapsNet) -> FastCapsNet:
    """Return the folded network of a run, on the device of a network with the same input and classes."""
    for name in ("channels", "height", "width", "class_names"):
        own, expected = getattr(run.about.config, name), getattr(model.config, name)
        if own != expected:
            raise ValueError(f"the network of {run.folder} has {name} {own}, expected {expected} as the first one")
    return fold(run.model(), run.master()).to(model.routing.weight.device)
