"""Classify pictures with an exported file or a run; with an exported file PyTorch is not imported."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcaps._extras import require
from fastcaps._images import image_files, no_bombs
from fastcaps._progress import progress_bar, say
from fastcaps._result import Record, Result, Table
from fastcaps.bundled import ONNX, resolve
from fastcaps.runtime.pictures import Invert, TakesImages, inverted, network_input
from fastcaps.runtime.session import check_finite
from fastcaps.training.run import Run
from fastcaps.workflows._common import open_run, restores_threads, select_device

if TYPE_CHECKING:
    from fastcaps.nn import CapsNet, FastCapsNet

Routing = Literal["fast", "dynamic", "both"]
ImageSource = str | Path | bytes | BinaryIO
# A function from bytes (b c h w) to lengths (b j).
_Lengths = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


@dataclass(frozen=True)
class Classification(Record):
    """The two longest class capsules of a picture.

    Attributes:
        label: class of the longest capsule.
        length: length of that capsule.
        runner_up: class of the second longest.
        runner_up_length: length of that capsule.
    """

    label: str = field(metadata={"key": "class"})
    length: float
    runner_up: str
    runner_up_length: float


@dataclass(frozen=True)
class Prediction(Record):
    """Prediction for one picture.

    Attributes:
        image: path or name of the picture.
        inverted: whether light and dark were swapped.
        by_routing: the classification by ``"fast"`` or ``"dynamic"``.
    """

    image: str
    inverted: bool
    by_routing: Mapping[str, Classification] = field(metadata={"flat": True})

    @property
    def label(self) -> str:
        """The predicted class; that of fast routing if both were requested."""
        return next(iter(self.by_routing.values())).label


@dataclass(frozen=True)
class UnreadableImage:
    """A picture that could not be read.

    Attributes:
        image: path or name of the picture.
        error: the reason.
    """

    image: str
    error: str


@dataclass(frozen=True, repr=False, eq=False)
class Predictions(Result):
    """Predictions for several pictures.

    Attributes:
        model: file or run that classified them.
        routing: ``"fast"`` or ``"dynamic"``, or both.
        images: predictions in the order of the given pictures.
        failed: pictures that could not be read.
    """

    model: str
    routing: tuple[str, ...]
    images: tuple[Prediction, ...]
    failed: tuple[UnreadableImage, ...]

    @property
    def labels(self) -> list[str]:
        """The class of each picture that was classified."""
        return [prediction.label for prediction in self.images]

    def tables(self) -> list[Table]:
        """Return one row per picture."""
        columns = ["image", *(word for name in self.routing for word in (name, "length", "runner-up", "length"))]
        rows = []
        for prediction in self.images:
            cells = [prediction.image]
            for best in prediction.by_routing.values():
                cells += [best.label, f"{best.length:.3f}", best.runner_up, f"{best.runner_up_length:.3f}"]
            rows.append([*cells, "yes" if prediction.inverted else "no"])
        return [Table(self.model, [*columns, "inverted"], rows)]


@restores_threads
def predict(
    model: str | Path | Run,
    images: ImageSource | Iterable[ImageSource],
    *,
    routing: Routing | None = None,
    invert: Invert = "auto",
    batch_size: int = 64,
    threads: int | None = None,
) -> Predictions:
    """Classify pictures of any size, gray or color.

    They are prepared in the same way as the test images of the network. Pictures that can't be read are listed in the
    result.

    Args:
        model: an exported file, which runs without PyTorch; a run, its folder, or the name of a bundled network.
        images: paths of files and folders, contents of files as bytes, or binary files.
        routing: ``"fast"``, ``"dynamic"`` or ``"both"``; a file has one of them, a run is fast by default.
        invert: whether to swap light and dark: ``"yes"``, ``"no"``, or ``"auto"``, where the edge of a picture is
            unlike that of the gray training images.
        batch_size: pictures that are read and classified at a time.
        threads: CPU threads; all by default.
    """
    network = _open(model, routing, threads)
    pictures, failed = _list_pictures(
        [images] if isinstance(images, str | Path | bytes) or _is_file(images) else images
    )
    predictions: list[Prediction] = []

    def read(picture: _Picture) -> tuple[NDArray[np.uint8], bool] | UnreadableImage:
        try:
            return inverted(
                network_input(Path(picture.name), network.image, picture.content), network.background, invert
            )
        except FileNotFoundError:
            return UnreadableImage(picture.name, f"{picture.name} does not exist")
        except (ValueError, OSError) as error:
            return UnreadableImage(picture.name, str(error))

    with progress_bar("classifying", len(pictures)) as observe, no_bombs(), ThreadPoolExecutor() as pool:
        for start in range(0, len(pictures), batch_size):
            batch = pictures[start : start + batch_size]
            contents = list(zip(batch, pool.map(read, batch), strict=True))
            failed += [content for _, content in contents if isinstance(content, UnreadableImage)]
            readable = [(picture.name, *content) for picture, content in contents if isinstance(content, tuple)]
            predictions += _classify(network, readable)
            observe(len(batch))
    return Predictions(network.name, tuple(network.lengths), tuple(predictions), tuple(failed))


class _Network(NamedTuple):
    """A network for prediction: the size of its input, and functions that compute lengths, by routing."""

    name: str
    image: TakesImages
    class_names: Sequence[str]
    background: float | None
    lengths: Mapping[str, _Lengths]


class _Picture(NamedTuple):
    """A picture by its path, or its content with a name."""

    name: str
    content: bytes | None


def _classify(network: _Network, pictures: Sequence[tuple[str, NDArray[np.uint8], bool]]) -> list[Prediction]:
    if not pictures:
        return []
    batch = np.stack([pixels for _, pixels, _ in pictures])  # (b, c, h, w)
    lengths = {routing: lengths_of(batch) for routing, lengths_of in network.lengths.items()}  # (b, j)
    for rows in lengths.values():
        check_finite(rows)
    return [
        Prediction(name, swapped, {key: _longest(rows[k], network.class_names) for key, rows in lengths.items()})
        for k, (name, _, swapped) in enumerate(pictures)
    ]


def _longest(lengths: NDArray[np.float32], class_names: Sequence[str]) -> Classification:
    """Return the two longest of the capsules of one picture ``(j)``."""
    first, second = (int(k) for k in (-lengths).argsort(kind="stable")[:2])
    return Classification(class_names[first], float(lengths[first]), class_names[second], float(lengths[second]))


def _is_file(source: Any) -> bool:
    return hasattr(source, "read")


def _list_pictures(images: Any) -> tuple[list[_Picture], list[UnreadableImage]]:
    """Return the pictures of all sources, and the folders without pictures."""
    pictures: list[_Picture] = []
    failed = []
    for number, source in enumerate(images):
        if isinstance(source, bytes):
            pictures.append(_Picture(f"image {number}", source))
        elif _is_file(source):
            # Read in this thread: a background thread that waits for input can't be interrupted.
            pictures.append(_Picture(str(getattr(source, "name", f"image {number}")), source.read()))
        elif Path(source).is_dir():
            inside = image_files(Path(source))
            pictures += [_Picture(str(path), None) for path in inside]
            failed += [] if inside else [UnreadableImage(str(source), f"{source} has no images in it")]
        else:
            pictures.append(_Picture(str(source), None))
    return pictures, failed


def _open(model: str | Path | Run, routing: Routing | None, threads: int | None) -> _Network:
    if not isinstance(model, Run) and (Path(model).is_file() or Path(model).suffix == ".onnx"):
        return _open_exported(model, model, routing, threads)
    name = model.folder if isinstance(model, Run) else model
    if find_spec("torch") is None and routing in (None, "fast"):
        run = Run.open(resolve(name, exported=True))
        if (run.folder / ONNX).is_file():
            say(f"PyTorch is not installed: {name} is used as its int8 file")
            return _open_exported(name, run.folder / ONNX, routing, threads)
    require(f"predict with {name}, no .onnx file,", "torch")
    return _open_trained(name, open_run(model), routing or "fast", threads)


def _open_exported(name: str | Path, file: str | Path, routing: Routing | None, threads: int | None) -> _Network:
    from fastcaps.runtime import load

    predictor = load(file, threads)
    if routing not in (None, predictor.routing):
        raise ValueError(
            f"{file} was exported with {predictor.routing} routing, {routing} was asked for: export that, too, or give "
            "the run folder"
        )
    if predictor.image is None:
        raise ValueError(f"{file} takes inputs of shape {predictor.input_shape}, expected (channels, height, width)")
    lengths: dict[str, _Lengths] = {predictor.routing: predictor.scores}
    return _Network(str(name), predictor.image, predictor.class_names, predictor.background, lengths)


def _open_trained(name: str | Path, run: Run, routing: Routing, threads: int | None) -> _Network:
    from fastcaps.master import fold

    select_device("cpu", threads)
    dynamic = run.model()
    lengths: dict[str, _Lengths] = {}
    if routing in ("fast", "both"):
        lengths["fast"] = _network_lengths(fold(dynamic, run.master()))
    if routing in ("dynamic", "both"):
        lengths["dynamic"] = _network_lengths(dynamic)
    return _Network(str(name), dynamic.config, dynamic.config.class_names, run.background, lengths)


def _network_lengths(network: "CapsNet | FastCapsNet") -> _Lengths:
    import torch

    @torch.no_grad()
    def lengths(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        result: NDArray[np.float32] = network(torch.from_numpy(images)).lengths.numpy()
        return result

    return lengths
