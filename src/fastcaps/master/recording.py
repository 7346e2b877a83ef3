"""Observe the capsule layers of any module tree while it processes images."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from fastcaps.functional import RoutingOutput
from fastcaps.nn.capsules import CapsuleLayer
from fastcaps.nn.inference import evaluating


def capsule_layers(model: nn.Module) -> dict[str, CapsuleLayer]:
    """Return every `CapsuleLayer` of a module tree by its path, in the order of their definition."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model is {type(model).__name__}, expected a torch.nn.Module")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"the model is wrapped in {type(model).__name__}, expected the model itself: give model.module"
        )
    layers = {path: module for path, module in model.named_modules() if isinstance(module, CapsuleLayer)}
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no CapsuleLayer, expected a model with at least one "
            "(a folded model has none: give the one it was folded from)"
        )
    return layers


def class_layer_path(layers: Mapping[str, CapsuleLayer], path: str | None = None) -> str:
    """Return the path of the layer whose capsules are the classes: the given one, or the last that was defined."""
    if path is not None and path not in layers:
        raise ValueError(f"class_layer is {path!r}, expected one of {', '.join(map(repr, layers))}")
    return list(layers)[-1] if path is None else path


@final
class PassCheck:
    """Check that each capsule layer sees every image of a pass once, the class layer last."""

    def __init__(self, layers: Mapping[str, CapsuleLayer], class_layer: str) -> None:
        self._class_layer = class_layer
        self._rows = dict.fromkeys(layers, 0)
        self._last = class_layer

    def start(self, path: str, lower_capsules: Tensor) -> int:
        """Record that a layer gets lower capsules ``(b i d)``; return the index of their first image."""
        first = self._rows[path]
        self._rows[path] += lower_capsules.shape[0]
        self._last = path
        return first

    def finish(self, images: int) -> None:
        """Raise if a layer saw another number of images than the pass has, or if the class layer was not last."""
        for path, count in self._rows.items():
            if count != images:
                raise ValueError(
                    f"layer {path!r} was given {count} rows of capsules for {images} images, expected one per image: "
                    "a layer that is used twice, not at all, or on parts of images can't be folded"
                )
            self._rows[path] = 0
        if self._last != self._class_layer:
            raise ValueError(
                f"layer {self._class_layer!r} was taken for the class layer, but {self._last!r} was computed after it: "
                f"pass class_layer={self._last!r}"
            )


@contextmanager
def observing(layers: Mapping[str, CapsuleLayer], observer: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Let ``observer(path, lower capsules)`` compute the capsules of these layers in place of their forward pass."""
    with _attached("_observer", layers, observer):
        yield


@contextmanager
def _attached(
    attribute: Literal["_observer", "_recorder"], layers: Mapping[str, CapsuleLayer], function: Callable[..., Any]
) -> Iterator[None]:
    for path, layer in layers.items():
        if layer._observer is not None or layer._recorder is not None:
            raise RuntimeError(f"layer {path!r} is being recorded already: leave the other record or accumulate first")
    for path, layer in layers.items():
        setattr(layer, attribute, partial(function, path))
    try:
        yield
    finally:
        for layer in layers.values():
            setattr(layer, attribute, None)


@final
class Recorder:
    """Output of the capsule layers of a model since the last `clear`, by their path.

    Attributes:
        layers: the recorded layers by their path.
    """

    def __init__(self, layers: Mapping[str, CapsuleLayer]) -> None:
        self.layers = dict(layers)
        self._outputs: dict[str, list[RoutingOutput]] = {path: [] for path in layers}

    def clear(self) -> None:
        """Discard all recordings."""
        for outputs in self._outputs.values():
            outputs.clear()

    @property
    def capsules(self) -> dict[str, Tensor]:
        """Capsules ``(b j e)`` of each layer that was used."""
        return {
            path: torch.cat([one.capsules for one in outputs]) for path, outputs in self._outputs.items() if outputs
        }

    @property
    def coefficients(self) -> dict[str, Tensor]:
        """Coefficients ``(b i j)`` of each layer that was used."""
        return {
            path: torch.cat([one.coefficients for one in outputs]) for path, outputs in self._outputs.items() if outputs
        }

    def _add(self, path: str, output: RoutingOutput) -> None:
        self._outputs[path].append(RoutingOutput(output.capsules.detach(), output.coefficients.detach()))


@contextmanager
def record(model: nn.Module) -> Iterator[Recorder]:
    """Record capsules and coefficients of every `CapsuleLayer` of a model, in evaluation mode.

    All recordings stay in memory until `Recorder.clear`.

    Example:
        >>> with fastcaps.record(model) as recorder:  # doctest: +SKIP
        ...     model(images)
        >>> recorder.coefficients["3"]  # doctest: +SKIP
    """
    layers = capsule_layers(model)
    recorder = Recorder(layers)
    with evaluating(model), _attached("_recorder", layers, recorder._add):
        yield recorder
