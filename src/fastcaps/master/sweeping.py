"""Accumulate many master matrices at once: for every iteration and chain of filters, in two passes over the images.

Each result equals that of `accumulate` with that iteration and those filters. Computing them one by one would take two
passes for each.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from fastcaps.master.accumulator import MasterAccumulator, Selection
from fastcaps.master.filters import Filter, apply_filters
from fastcaps.master.observations import ColumnFiles, NothingToFilterError, Observations, Traced, trace
from fastcaps.master.recording import capsule_layers, class_layer_path
from fastcaps.nn.inference import Batches
from fastcaps.nn.pretrained import weights_hash

# Iteration and name of the chain of filters.
_Key = tuple[int, str]


class Sweep(NamedTuple):
    """Result of `sweep`, by iteration and name of the chain of filters.

    Attributes:
        sums: accumulators with the reports of their filters; `compute` returns the coefficients for any method.
        skipped: reason why a combination has no sums.
    """

    sums: dict[_Key, MasterAccumulator]
    skipped: dict[_Key, str]


def sweep(
    model: nn.Module,
    source: Callable[[], Batches],
    iterations: Sequence[int],
    chains: Mapping[str, Sequence[Filter]],
    *,
    class_layer: str | None = None,
    folder: Path | None = None,
    observe: Callable[[int], None] = lambda images: None,
) -> Sweep:
    """Accumulate for every iteration and every chain of filters, in one pass, or two when there are filters.

    A chain decides by the ground-truth columns of the same iteration whose coefficients are accumulated. A chain that
    leaves a class empty is skipped, and so is one that uses columns at iteration 1, where all coefficients are equal.

    Args:
        model: the trained network; not modified.
        source: returns the batches of a pass, images ``(b c h w)`` and labels ``(b)``, in the same order at each call.
        iterations: iterations of routing, from 1; one more than the network has for the update after the last one.
        chains: filters in their order, by the name of the chain; an empty chain for all images.
        class_layer: path of the layer whose capsules are the classes, as for `accumulate`.
        folder: folder for temporary files without names; the system's when None.
        observe: called with the number of images after each batch, in either pass.
    """
    layers = capsule_layers(model)
    layer = layers[class_layer_path(layers, class_layer)]
    last, model_hash = layer.routing.iterations, weights_hash(model)
    for k in iterations:
        if not 1 <= k <= last + 1:
            raise ValueError(f"iteration is {k}, expected 1 to {last}, or {last + 1} for the update after the last")
    unfiltered = [name for name, filters in chains.items() if not filters]
    filtered = {name: filters for name, filters in chains.items() if filters}
    by_columns = any(one.uses_columns for filters in filtered.values() for one in filters)
    sums = {(k, name): MasterAccumulator.for_layer(layer, k, model_hash) for k in iterations for name in unfiltered}

    def run_pass(receive: Callable[[Traced], None]) -> None:
        trace(model, source(), max(iterations), receive, observe=observe, class_layer=class_layer)

    with ColumnFiles(layer.out_capsules, iterations if by_columns else [], folder) as files:

        def observe_all(traced: Traced) -> None:
            files.add(traced)
            for (k, _), one in sums.items():
                one.update(traced.coefficients[k], traced.labels)

        run_pass(observe_all)
        selections, skipped = _select(filtered, iterations, files)
    for (k, name), selection in selections.items():
        sums[k, name] = MasterAccumulator.for_layer(layer, k, model_hash)
        sums[k, name].filters = tuple(selection.report)
    if selections:
        _accumulate_selected(run_pass, sums, selections)
    return Sweep(sums, skipped)


def _select(
    chains: Mapping[str, Sequence[Filter]], iterations: Sequence[int], files: ColumnFiles
) -> tuple[dict[_Key, Selection], dict[_Key, str]]:
    """Apply every chain at every iteration; return the selections, and the reasons for those that are missing."""
    selections: dict[_Key, Selection] = {}
    skipped: dict[_Key, str] = {}
    for k in iterations:
        observations = Observations(*files.result(k), k)
        for name, filters in chains.items():
            try:
                selections[k, name] = apply_filters(filters, observations)
            except NothingToFilterError as error:
                skipped[k, name] = str(error)
    return selections, skipped


def _accumulate_selected(
    run_pass: Callable[[Callable[[Traced], None]], None],
    sums: Mapping[_Key, MasterAccumulator],
    selections: Mapping[_Key, Selection],
) -> None:
    """Accumulate the images of every selection in one more pass."""
    images = 0

    def receive(traced: Traced) -> None:
        nonlocal images
        for (k, name), selection in selections.items():
            chosen = torch.from_numpy(selection.keep[images : images + len(traced.labels)])
            coefficients = traced.coefficients[k]
            sums[k, name].update(coefficients[chosen.to(coefficients.device)], traced.labels[chosen])
        images += len(traced.labels)

    run_pass(receive)
    first = len(next(iter(selections.values())).keep)
    if images != first:
        raise ValueError(f"the first pass had {first} images, the second {images}: expected the same again")
