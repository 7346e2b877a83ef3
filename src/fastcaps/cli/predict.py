"""``fastcaps predict``: what is on these pictures? With an exported file PyTorch isn't needed, and not imported."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from fastcaps._extras import require
from fastcaps._progress import progress_bar
from fastcaps.bundled import ONNX, resolve
from fastcaps.cli._common import Json, Threads, command, print_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastcaps.runtime.pictures import TakesImages

    Lengths = Callable[[NDArray[np.uint8]], NDArray[np.float32]]

# Pictures decoded and classified at a time.
_PIECE = 64


class _Network(NamedTuple):
    """What classifies: the ways of routing it was asked for, each from bytes ``(b c h w)`` to lengths ``(b j)``."""

    image: "TakesImages"
    class_names: Sequence[str]
    background: float | None
    ways: "dict[str, Lengths]"


@command
def predict(
    model: Annotated[
        Path,
        typer.Argument(help="A file from fastcaps export, a run folder, or a network that comes with fastcaps."),
    ],
    images: Annotated[list[str], typer.Argument(help="Image files, folders of them, or - for standard input.")],
    routing: Annotated[
        Literal["fast", "dynamic", "both"] | None,
        typer.Option(help="A file has one of them; a run is fast unless asked otherwise."),
    ] = None,
    invert: Annotated[
        Literal["auto", "yes", "no"],
        typer.Option(help="Swap light and dark; auto does if the edge is unlike that of the (grey) training images."),
    ] = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Classify pictures: the class, its capsule's length, and the runner-up.

    Pictures of any size, grey or colour, are brought to the network's input as its test images were. Those that can't
    be read are named at the end, and the exit code is 1 then.

    Example:  fastcaps predict mnist.onnx scans/ seven.png
    """
    import numpy as np

    from fastcaps._images import no_bombs
    from fastcaps.runtime.pictures import inverted, network_input

    network = _opened(model, routing, threads)
    results: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []

    paths = _listed(images, failed)
    # Not in the pool: a thread that waits for input can't be interrupted.
    given = sys.stdin.buffer.read() if _STDIN in paths else None

    def read(path: Path) -> "tuple[NDArray[np.uint8], bool] | str":
        try:
            content = given if path == _STDIN else None
            name = Path("standard input") if path == _STDIN else path
            return inverted(network_input(name, network.image, content), network.background, invert)
        except FileNotFoundError:
            return f"{path} does not exist"
        except (ValueError, OSError) as error:
            return str(error)

    with progress_bar("classifying", len(paths)) as observe, no_bombs(), ThreadPoolExecutor() as pool:
        for start in range(0, len(paths), _PIECE):
            piece = paths[start : start + _PIECE]
            found = []
            for path, picture in zip(piece, pool.map(read, piece), strict=True):
                if isinstance(picture, str):
                    failed.append({"image": str(path), "error": picture})
                else:
                    found.append((path, *picture))
            if found:
                batch = np.stack([pixels for _, pixels, _ in found])  # (b, c, h, w)
                answers = {name: way(batch) for name, way in network.ways.items()}
                for k, (path, _, turned) in enumerate(found):
                    best = {name: _best(lengths[k], network.class_names) for name, lengths in answers.items()}
                    results.append({"image": str(path), "inverted": turned, **best})
            observe(len(piece))
    if as_json:
        print_json({"model": str(model), "routing": list(network.ways), "images": results, "failed": failed})
    else:
        _print(results, list(network.ways))
    count = sum(result["inverted"] for result in results)
    if count and not as_json:
        typer.echo(f"{count} of {len(results)} pictures were inverted ({_REASON[invert]})", err=True)
    for failure in failed:
        typer.echo(f"error: {failure['error']}", err=True)
    if failed:
        raise typer.Exit(1)


_STDIN = Path("-")
_REASON = {
    "auto": "their edge is unlike the training images'; --invert no keeps them as they are",
    "yes": "--invert yes",
}


def _listed(images: Sequence[str], failed: list[dict[str, str]]) -> list[Path]:
    """The files of all arguments; a folder without images has failed."""
    from fastcaps._images import image_files

    paths: list[Path] = []
    for image in dict.fromkeys(images):
        path = Path(image)
        if not path.is_dir():
            paths.append(path)
            continue
        inside = image_files(path)
        paths += inside
        if not inside:
            failed.append({"image": image, "error": f"{image} has no images in it"})
    return paths


def _best(lengths: "NDArray[np.float32]", class_names: Sequence[str]) -> dict[str, Any]:
    """The two longest of one image's capsules ``(j)``."""
    first, second = (int(k) for k in (-lengths).argsort(kind="stable")[:2])
    return {
        "class": class_names[first],
        "length": float(lengths[first]),
        "runner_up": class_names[second],
        "runner_up_length": float(lengths[second]),
    }


def _print(results: list[dict[str, Any]], ways: list[str]) -> None:
    """One line a picture; no table, which would cut long names."""
    if not results:
        return
    header = ["image", *(word for name in ways for word in (name, "length", "runner-up", "length")), "inverted"]
    rows = [header]
    for result in results:
        cells = [result["image"]]
        for name in ways:
            best = result[name]
            cells += [best["class"], f"{best['length']:.3f}", best["runner_up"], f"{best['runner_up_length']:.3f}"]
        rows.append([*cells, "yes" if result["inverted"] else "no"])
    widths = [max(len(row[k]) for row in rows) for k in range(len(header))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _opened(model: Path, routing: str | None, threads: int | None) -> _Network:
    if model.is_file() or model.suffix == ".onnx":
        return _exported(model, routing, threads)
    quantized = resolve(model) / ONNX
    if find_spec("torch") is None and routing in (None, "fast") and quantized.is_file():
        typer.echo(f"PyTorch is not installed: {model} is used as the int8 file that comes with fastcaps", err=True)
        return _exported(quantized, routing, threads)
    require(f"fastcaps predict with {model}, no .onnx file,", "torch")
    return _trained(model, routing or "fast", threads)


def _exported(model: Path, routing: str | None, threads: int | None) -> _Network:
    from fastcaps.runtime import load

    predictor = load(model, threads)
    if routing not in (None, predictor.routing):
        raise ValueError(
            f"{model} was exported with {predictor.routing} routing, --routing {routing} was asked for: export that, "
            "too, or give the run folder"
        )
    if predictor.image is None:
        raise ValueError(f"{model} takes inputs of shape {predictor.input_shape}, expected (channels, height, width)")
    ways: dict[str, Lengths] = {predictor.routing: predictor.scores}
    return _Network(predictor.image, predictor.class_names, predictor.background, ways)


def _trained(model: Path, routing: str, threads: int | None) -> _Network:
    import torch

    from fastcaps import CapsNet, FastCapsNet, fold
    from fastcaps.training import Run
    from fastcaps.workflows._common import select_device

    select_device("cpu", threads)

    def way(network: CapsNet | FastCapsNet) -> "Lengths":
        @torch.no_grad()
        def lengths(images: "NDArray[np.uint8]") -> "NDArray[np.float32]":
            found: NDArray[np.float32] = network(torch.from_numpy(images)).lengths.numpy()
            return found

        return lengths

    run = Run.open(resolve(model))
    dynamic = run.model()
    ways: dict[str, Lengths] = {}
    if routing in ("fast", "both"):
        ways["fast"] = way(fold(dynamic, run.master()))
    if routing in ("dynamic", "both"):
        ways["dynamic"] = way(dynamic)
    return _Network(dynamic.config, dynamic.config.class_names, run.background, ways)
