"""Steps of Adam on the objective, in one process or in several processes that share each batch."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fastcaps.distributed import World
from fastcaps.kernels import order_for_training
from fastcaps.master import MasterCoefficients
from fastcaps.nn import CapsNet
from fastcaps.nn.averaging import WeightAverage
from fastcaps.nn.whitening import whiten_stem
from fastcaps.training.objective import Objective
from fastcaps.training.settings import TrainSettings

# Capsules are saturated, with no gradient left to learn from, if their mean length exceeds the first value for as many
# consecutive steps as the second.
_SATURATED, _PATIENCE = 0.99, 50


@dataclass(frozen=True)
class Step:
    """Result of a step, over all processes.

    Attributes:
        loss: mean loss per image.
        images: size of the batch.
        correct: number of images classified correctly.
        length: mean length of the class capsules.
        stopped: whether a process was asked to stop.
    """

    loss: float
    images: int
    correct: float
    length: float
    stopped: bool


@final
class Optimization:
    """A network, its objective and Adam.

    Attributes:
        adam: the optimizer.
        average: average of the weights; None without averaging.
    """

    def __init__(self, model: CapsNet, settings: TrainSettings, world: World) -> None:
        self.adam = _adam(model, settings)
        self._model, self._settings, self._world = model, settings, world
        self._objective: nn.Module = Objective(model, settings)
        self.average = WeightAverage(model, settings.averaging) if settings.averaging else None

    def distribute(self) -> None:
        """Average gradients over all processes from now on."""
        if not self._world.is_single and not isinstance(self._objective, DistributedDataParallel):
            # Looking for unused parameters keeps PyTorch from reordering the sums after the first step: gradients are
            # added up in the same order in every run.
            self._objective = DistributedDataParallel(self._objective, find_unused_parameters=True)

    def reinitialize(self, master: MasterCoefficients) -> None:
        """Reinitialize the weights for these coefficients, and reset the moments of Adam."""
        with torch.random.fork_rng():
            torch.manual_seed(self._settings.seed)
            fresh = CapsNet(self._model.config)
            fresh.routing.reset_parameters(master.values)
            self._model.load_state_dict(fresh.state_dict())
        self.adam = _adam(self._model, self._settings)
        self._restart_average()

    def whiten_stem(self, images: Tensor) -> None:
        """Start the filters of the stem as principal components of patches; all processes get those of the first."""
        whiten_stem(self._model.stem, images)
        self._world.broadcast(self._model.stem.conv.weight.data)
        self._restart_average()

    def _restart_average(self) -> None:
        if self.average is not None:
            self.average = WeightAverage(self._model, self._settings.averaging)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the network its averaged weights for a while, if there are any: on all ranks those of the first."""
        with nullcontext() if self.average is None else self._shared_average().applied():
            yield

    def use_average(self) -> None:
        """Give the network its averaged weights for good, if there are any."""
        if self.average is not None:
            self._model.load_state_dict(self._shared_average().state)

    def _shared_average(self) -> WeightAverage:
        """Return the average of the first rank. Statistics of BatchNorm differ between ranks after a step."""
        assert self.average is not None
        self._world.broadcast(*self.average.state.values())
        return self.average

    def step(self, batch: tuple[Tensor, Tensor], total: int, rate: float, fixed: Tensor | None, stopped: bool) -> Step:
        """Take one step.

        Args:
            batch: images ``(b c h w)`` and labels ``(b)`` of this process.
            total: number of images in the batches of all processes.
            rate: learning rate.
            fixed: coefficients ``(i j)`` in place of dynamic routing.
            stopped: whether this process was asked to stop.
        """
        images, labels = batch
        for group in self.adam.param_groups:
            group["lr"] = rate * group["factor"]
        loss, lengths = self._objective(images, labels, fixed)
        if not self._world.is_single:
            # Gradients are averaged over processes, but the loss is a mean over the images of this process.
            loss = loss * (self._world.size * len(labels) / total)
        self.adam.zero_grad()
        torch.autograd.backward(loss)
        self.adam.step()
        correct = float((lengths.argmax(1) == labels).sum())
        if self._world.is_single:
            return Step(float(loss.detach()), total, correct, float(lengths.mean()), stopped)
        sums = torch.tensor(
            [float(loss.detach()) / self._world.size, correct, float(lengths.sum()), float(stopped)],
            dtype=torch.float64,
        )
        self._world.all_reduce_now(sums)
        mean, correct, length, requests = sums.tolist()
        return Step(mean, total, correct, length / (total * lengths.shape[1]), requests > 0)

    @contextmanager
    def kernels_ordered(self) -> Iterator[None]:
        """Keep the kernel of PrimaryCaps in the memory order of Winograd's method, which runs on a CPU only."""
        primary = self._model.primary
        if primary.convolution == "direct" or primary.conv.weight.device.type != "cpu":
            yield
            return
        self._reorder_kernel(order_for_training)
        try:
            yield
        finally:
            self._reorder_kernel(Tensor.contiguous)

    def _reorder_kernel(self, order: Callable[[Tensor], Tensor]) -> None:
        weight, name = self._model.primary.conv.weight, "primary.conv.weight"
        # The gradient must have the order of the weights.
        weight.data, weight.grad = order(weight.data), None
        if self.average is not None:
            self.average.state[name] = order(self.average.state[name])

    @contextmanager
    def routing_only(self) -> Iterator[None]:
        """Train the weights of the routing layer alone."""
        own = {id(parameter) for parameter in self._model.routing.parameters()}
        others = [entry for entry in self._model.parameters() if id(entry) not in own and entry.requires_grad]
        for parameter in others:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)

    def check_step(self, step: Step, saturated: int, where: str) -> int:
        """Raise if the run can't learn any more; return the number of consecutive steps with saturated capsules."""
        if not math.isfinite(step.loss):
            raise ValueError(f"the loss became {step.loss} {where}: {self._advice()}")
        saturated = saturated + 1 if step.length > _SATURATED else 0
        if saturated >= _PATIENCE:
            raise ValueError(
                f"the capsules have saturated {where}: their mean length was {step.length:.3f}, above {_SATURATED} for "
                f"{_PATIENCE} steps, where nothing is learned: {self._advice()}"
            )
        return saturated

    def check_weights(self, where: str) -> None:
        """Raise if a weight is not finite, so that broken weights are never saved."""
        for name, parameter in self._model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise ValueError(f"the weights {name} are not finite any more {where}: {self._advice()}")

    def _advice(self) -> str:
        rate, warmup = self._settings.learning_rate, self._settings.warmup
        return f"lower learning_rate={rate:g} or raise warmup={warmup}, and start again"


def _adam(model: CapsNet, settings: TrainSettings) -> torch.optim.Adam:
    """Return Adam with a group per parameter, in the order of the model, and the factor of its learning rate."""
    groups = [
        {"params": [parameter], "factor": settings.primary_rate if name.startswith("primary.") else 1.0}
        for name, parameter in model.named_parameters()
    ]
    return torch.optim.Adam(groups, lr=settings.learning_rate, fused=True)
