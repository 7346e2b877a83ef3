"""Run batches through a model without gradients: the common loop of accumulation, evaluation and export."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcaps.distributed import SINGLE, World

if TYPE_CHECKING:
    from fastcaps.nn.base import CapsuleNetwork

Batches = Iterable[tuple[Tensor, Tensor]]


def run_batches(
    model: nn.Module,
    batches: Batches,
    step: Callable[[Tensor, Tensor], object],
    *,
    observe: Callable[[int], None] = lambda images: None,
) -> int:
    """Call ``step(inputs, labels)`` for every batch, with the model in evaluation mode and without gradients.

    Args:
        model: determines the device; its mode is restored afterwards, also after an error.
        batches: pairs of inputs ``(b …)`` and labels ``(b)``, such as a DataLoader.
        step: called with both on the device of the model.
        observe: called with the number of images after each batch.

    Returns:
        The number of images.
    """
    images, device = 0, device_of(model)
    with evaluating(model), torch.no_grad():
        for batch in batches:
            inputs, labels = checked_batch(batch)
            step(inputs.to(device), labels.to(device))
            images += len(labels)
            observe(len(labels))
    return images


def count_correct(
    model: "CapsuleNetwork", batches: Batches, *, observe: Callable[[int], None] = lambda images: None
) -> tuple[int, int]:
    """Return the number of images that a network classifies correctly, and the number of all.

    Arguments as for `run_batches`.
    """
    correct = torch.tensor(0)

    def step(inputs: Tensor, labels: Tensor) -> None:
        correct.add_((model.predict(inputs) == labels).sum().cpu())

    images = run_batches(model, batches, step, observe=observe)
    return int(correct), images


def gather_batches(
    model: nn.Module,
    batches: Batches,
    step: Callable[[Tensor, Tensor], Mapping[str, Tensor]],
    *,
    observe: Callable[[int], None] = lambda images: None,
    world: World = SINGLE,
) -> dict[str, NDArray[Any]]:
    """Run batches, and concatenate the results of ``step`` over all batches and ranks.

    Args:
        model: as for `run_batches`.
        batches: as for `run_batches`; results of several ranks are concatenated by rank.
        step: returns tensors ``(b …)`` by name, given inputs and labels.
        observe: as for `run_batches`.
        world: the ranks; all get the same result.

    Returns:
        Arrays ``(n …)`` by name, and the labels under ``"labels"``.
    """
    parts: dict[str, list[NDArray[Any]]] = {}

    def keep(inputs: Tensor, labels: Tensor) -> None:
        for name, tensor in {"labels": labels, **step(inputs, labels)}.items():
            parts.setdefault(name, []).append(tensor.detach().cpu().numpy())

    run_batches(model, batches, keep, observe=observe)
    own = {name: [str(arrays[0].dtype), arrays[0].shape[1:]] for name, arrays in parts.items()}
    # A rank without images must learn the names, shapes and types of the others.
    lines = world.all_gather(np.frombuffer(json.dumps(own).encode() + b"\n", np.uint8)).tobytes().splitlines()
    layout = next((entry for entry in map(json.loads, lines) if entry), None)
    if layout is None:
        raise ValueError("there are no images, expected at least one")
    return {
        name: world.all_gather(np.concatenate([np.empty((0, *shape), kind), *parts.get(name, [])]))
        for name, (kind, shape) in layout.items()
    }


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


def checked_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """Return inputs ``(b …)`` and labels ``(b)`` of a batch; raise if it is not such a pair."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)} entries" if isinstance(batch, tuple | list) else ""
        raise ValueError(
            f"a batch is a {type(batch).__name__}{size}, expected a pair of inputs (b, …) and labels (b): give an "
            "iterable of such pairs, such as a DataLoader"
        )
    inputs, labels = batch
    if not isinstance(inputs, Tensor | np.ndarray):
        raise ValueError(f"the inputs of a batch are a {type(inputs).__name__}, expected a tensor (b, …)")
    inputs, labels = torch.as_tensor(inputs), torch.as_tensor(labels)
    if not inputs.ndim or labels.shape != inputs.shape[:1]:
        raise ValueError(
            f"a batch has inputs of shape {tuple(inputs.shape)} and labels of shape {tuple(labels.shape)}, expected "
            "one label per input"
        )
    return inputs, labels


def device_of(model: nn.Module) -> torch.device:
    """Return the device for the inputs of a model: that of its first parameter."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
