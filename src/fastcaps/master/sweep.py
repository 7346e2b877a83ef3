"""Many masters at once: the sums for every wanted iteration and chain of filters, in two passes over the images.

Each is what `accumulate` with that iteration and those filters gives; comparing them one by one would take two passes
for every one of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcaps.master.accumulator import MasterAccumulator
from fastcaps.master.filters import Filter, apply_filters
from fastcaps.master.observations import ColumnFiles, NothingToFilterError, Observations, Traced, trace
from fastcaps.master.recording import capsule_layers, class_layer_path
from fastcaps.nn.pretrained import weights_hash


class Sweep(NamedTuple):
    """What `sweep` gives, by iteration and name of the chain of filters.

    Attributes:
        sums: each with the report of its filters; its `compute` gives the coefficients by every method.
        skipped: why there are none.
    """

    sums: dict[tuple[int, str], MasterAccumulator]
    skipped: dict[tuple[int, str], str]


def sweep(
    model: nn.Module,
    source: Callable[[], Iterable[tuple[Tensor, Tensor]]],
    iterations: Sequence[int],
    chains: Mapping[str, Sequence[Filter]],
    *,
    class_layer: str | None = None,
    folder: Path | None = None,
    observe: Callable[[int], None] = lambda images: None,
) -> Sweep:
    """Accumulate for every iteration and every chain of filters, in one pass, or two when there are filters.

    A chain decides by the ground-truth columns of the iteration whose coefficients it is for. One that leaves a class
    empty is skipped, and so is one that goes by columns at iteration 1, where all coefficients are equal.

    Args:
        model: the trained network; not touched.
        source: gives the batches of a pass, images ``(b c h w)`` and labels ``(b)``, the same in the same order again.
        iterations: of routing, from 1; one more than the network has for those of the update after its last.
        chains: filters in their order, by the chain's name; none for all images.
        class_layer: path of the layer whose capsules are the classes, as for `accumulate`.
        folder: for temporary files without names; the system's when None.
        observe: told how many images were just done, in either pass.
    """
    layers = capsule_layers(model)
    layer = layers[class_layer_path(model, layers, class_layer)]
    last, model_hash = layer.routing.iterations, weights_hash(model)
    for k in iterations:
        if not 1 <= k <= last + 1:
            raise ValueError(f"iteration is {k}, expected 1 to {last}, or {last + 1} for the update after the last")
    unfiltered = [name for name, filters in chains.items() if not filters]
    filtered = {name: filters for name, filters in chains.items() if filters}
    by_columns = any(one.uses_columns for filters in filtered.values() for one in filters)
    sums = {(k, name): MasterAccumulator.for_layer(layer, k, model_hash) for k in iterations for name in unfiltered}
    skipped: dict[tuple[int, str], str] = {}
    masks: dict[tuple[int, str], NDArray[np.bool_]] = {}
    with ColumnFiles(layer.out_capsules, iterations if by_columns else [], folder) as files:

        def observe_all(traced: Traced) -> None:
            files.add(traced)
            for (k, _), one in sums.items():
                one.update(traced.coefficients[k], traced.labels)

        trace(model, source(), max(iterations), observe_all, observe=observe, class_layer=class_layer)
        for k in iterations:
            observations = Observations(*files.result(k), k)
            for name, filters in filtered.items():
                try:
                    masks[k, name], report = apply_filters(filters, observations)
                except NothingToFilterError as error:
                    skipped[k, name] = str(error)
                    continue
                sums[k, name] = MasterAccumulator.for_layer(layer, k, model_hash)
                sums[k, name].filters = report
    if masks:
        seen = 0

        def observe_chosen(traced: Traced) -> None:
            nonlocal seen
            for (k, name), mask in masks.items():
                chosen = torch.from_numpy(mask[seen : seen + len(traced.labels)])
                coefficients = traced.coefficients[k]
                sums[k, name].update(coefficients[chosen.to(coefficients.device)], traced.labels[chosen])
            seen += len(traced.labels)

        trace(model, source(), max(iterations), observe_chosen, observe=observe, class_layer=class_layer)
        first = len(next(iter(masks.values())))
        if seen != first:
            raise ValueError(f"the first pass had {first} images, the second {seen}: expected the same again")
    return Sweep(sums, skipped)
