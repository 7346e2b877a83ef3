"""The networks that a server answers with: opened by name, by exported file, or by run folder."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastcaps._extras import require
from fastcaps.bundled import ONNX, names_expected, resolve
from fastcaps.runtime import Predictor, load
from fastcaps.runtime.pictures import TakesImages
from fastcaps.serving.answers import InputSize, Model

if TYPE_CHECKING:
    from fastcaps.serving.network import TrainedNetwork

Lengths = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A network with a name.

    Attributes:
        name: name in addresses.
        routing: default routing.
        engine: name of the engine that computes it, for display.
        image: how a picture becomes an input.
        class_names: names of the classes, in the order of the lengths.
        background: brightness of the edge of the training images; None if it does not apply.
        card: all information about it, as JSON.
        predictor: predictor for inference without PyTorch; None for a run folder without an exported file.
        folder: folder of the run, for what needs PyTorch; None for a bare file, or if PyTorch is not installed.
        threads: CPU threads per call.
    """

    name: str
    routing: str
    engine: str
    image: TakesImages
    class_names: tuple[str, ...]
    background: float | None
    card: dict[str, Any] = field(repr=False)
    predictor: Predictor | None = field(repr=False)
    folder: Path | None = None
    threads: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def routings(self) -> tuple[str, ...]:
        """The routings that it supports; the default first."""
        others = ("fast", "dynamic") if self.folder is not None else ()
        return tuple(dict.fromkeys((self.routing, *others)))

    @property
    def data(self) -> str | None:
        """Name of the data set it was trained with, if known."""
        name = self.card.get("data") or self.card.get("provenance", {}).get("data")
        return name if isinstance(name, str) else None

    @property
    def network(self) -> "TrainedNetwork":
        """The network in PyTorch, loaded when first used."""
        with self._lock:
            return self._network

    @cached_property
    def _network(self) -> "TrainedNetwork":
        from fastcaps.serving.network import TrainedNetwork

        if self.folder is None:
            raise ValueError(f"{self.name} has no run folder, or PyTorch is not installed")
        return TrainedNetwork(self.folder, self.threads)

    def lengths(self, routing: str) -> Lengths:
        """Return a function from images ``(b c h w)`` to lengths ``(b j)``."""
        if self.predictor is not None and routing == self.routing:
            return self.predictor.scores
        # Loaded on first use: PyTorch takes seconds and hundreds of megabytes.
        return lambda images: self.network.lengths(routing)(images)

    def summary(self) -> Model:
        """Return what a client has to know to use it."""
        size = InputSize(self.image.channels, self.image.height, self.image.width)
        explore = self.folder is not None
        return Model(self.name, self.routing, list(self.routings), self.engine, size, list(self.class_names), explore)


def open_models(
    arguments: Iterable[str], *, threads: int | None = None, pytorch: bool = True
) -> dict[str, ServedModel]:
    """Open several networks; see `open_model`."""
    models: dict[str, ServedModel] = {}
    for argument in arguments:
        model = open_model(argument, threads=threads, pytorch=pytorch)
        if model.name in models:
            raise ValueError(f"two networks are called {model.name}: give one another name, as other={argument}")
        models[model.name] = model
    return models


def open_model(argument: str, *, threads: int | None = None, pytorch: bool = True) -> ServedModel:
    """Open a network.

    Args:
        argument: the name of a bundled network, an exported file or a run folder; ``name=`` before it names it.
        threads: CPU threads per call; all when None.
        pytorch: offer what needs PyTorch, if it is installed.
    """
    label, _, rest = argument.partition("=") if not Path(argument).exists() else ("", "", "")
    path = Path(rest or argument)
    name = label if rest else path.stem if path.suffix == ".onnx" else path.resolve().name
    if not name or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ValueError(f"{name!r} can't be part of an address: name the network, as digits={path}")
    if path.is_file() or path.suffix == ".onnx":
        return _exported(name, load(path, threads), None, threads)
    explore = pytorch and find_spec("torch") is not None
    folder = resolve(path, exported=not explore)
    if not (folder / "run.json").is_file():
        raise FileNotFoundError(
            f"{path} is no file that fastcaps export made, no run folder and not {names_expected(path)}"
        )
    if (folder / ONNX).is_file():
        explore = explore and (folder / "master.safetensors").is_file()
        return _exported(name, load(folder / ONNX, threads), folder if explore else None, threads)
    require(f"fastcaps serve {path}, which has no exported file,", "torch")
    return _trained(name, folder, threads)


def _exported(name: str, predictor: Predictor, folder: Path | None, threads: int | None) -> ServedModel:
    if predictor.image is None:
        raise ValueError(f"{name} takes inputs of shape {predictor.input_shape}, expected (channels, height, width)")
    return ServedModel(
        name=name,
        routing=predictor.routing,
        engine=f"ONNX Runtime, {predictor.precision}",
        image=predictor.image,
        class_names=predictor.class_names,
        background=predictor.background,
        card=predictor.about.to_dict(),
        predictor=predictor,
        folder=folder,
        threads=threads,
    )


def _trained(name: str, folder: Path, threads: int | None) -> ServedModel:
    from fastcaps.training import Run

    run = Run.open(folder)
    about, config = run.about, run.about.config
    model = ServedModel(
        name=name,
        routing="fast",
        engine="PyTorch, float32",
        image=config,
        class_names=config.class_names,
        background=run.background,
        card={"data": about.data.name, "config": config.to_dict(), "accuracy": about.evaluation},
        predictor=None,
        folder=folder,
        threads=threads,
    )
    model.lengths("fast")(np.zeros((1, config.channels, config.height, config.width), np.uint8))
    return model
