"""Watching the capsule layers of any module tree while images go through it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from fastcaps.functional import RoutingOutput
from fastcaps.nn.capsnet import CapsNet
from fastcaps.nn.capsules import CapsuleLayer


def capsule_layers(model: nn.Module) -> dict[str, CapsuleLayer]:
    """Return every `CapsuleLayer` of a module tree by its path, in the order of their definition."""
    layers = {path: module for path, module in model.named_modules() if isinstance(module, CapsuleLayer)}
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no CapsuleLayer, expected a model with at least one "
            "(a folded model has none: give the one it was folded from)"
        )
    return layers


def class_layer_path(model: nn.Module, layers: Mapping[str, CapsuleLayer], path: str | None = None) -> str:
    """Return the path of the layer whose capsules are the classes: the given one, or the last that was defined."""
    if isinstance(model, CapsNet):
        return "routing"
    if path is not None and path not in layers:
        raise ValueError(f"class_layer is {path!r}, expected one of {', '.join(map(repr, layers))}")
    return list(layers)[-1] if path is None else path


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and every module back into its own mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def observing(layers: Mapping[str, CapsuleLayer], observer: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Let ``observer(path, lower capsules)`` compute the capsules of these layers in place of their forward pass."""
    occupied = [path for path, layer in layers.items() if layer._observer is not None]
    if occupied:
        raise RuntimeError(
            f"layer {occupied[0]!r} is being recorded already: leave the other record or accumulate first"
        )
    for path, layer in layers.items():
        layer._observer = _bound(observer, path)
    try:
        yield
    finally:
        for layer in layers.values():
            layer._observer = None


def _bound(observer: Callable[[str, Tensor], Tensor], path: str) -> Callable[[Tensor], Tensor]:
    return lambda lower_capsules: observer(path, lower_capsules)


@final
class Recorder:
    """What the capsule layers of a model computed since the last `clear`, by their path.

    Attributes:
        layers: the recorded layers by their path.
    """

    def __init__(self, layers: Mapping[str, CapsuleLayer]) -> None:
        self.layers = dict(layers)
        self._outputs: dict[str, list[RoutingOutput]] = {path: [] for path in layers}

    def clear(self) -> None:
        """Forget everything."""
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

    def _observe(self, path: str, lower_capsules: Tensor) -> Tensor:
        output = self.layers[path].route(lower_capsules)
        self._outputs[path].append(RoutingOutput(output.capsules.detach(), output.coefficients.detach()))
        return output.capsules


@contextmanager
def record(model: nn.Module) -> Iterator[Recorder]:
    """Record capsules and coefficients of every `CapsuleLayer` of a model, which is in evaluation mode meanwhile.

    Everything that goes through the model is kept in memory until `Recorder.clear`.

    Example:
        >>> with fastcaps.record(model) as recorder:  # doctest: +SKIP
        ...     model(images)
        >>> recorder.coefficients["3"]  # doctest: +SKIP
    """
    layers = capsule_layers(model)
    recorder = Recorder(layers)
    with evaluating(model), observing(layers, recorder._observe):
        yield recorder
