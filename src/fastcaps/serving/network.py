"""A run's network in PyTorch: both routings, what the page shows of them, and reconstructions."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcaps import CapsNet, FastCapsNet, fold
from fastcaps.runtime.session import check_finite
from fastcaps.training import Run

Floats = NDArray[np.float32]


class Output(NamedTuple):
    """Capsules ``(j e)`` and lengths ``(j)`` of one image, and the milliseconds they took."""

    capsules: Floats
    lengths: Floats
    milliseconds: float


@dataclass(frozen=True)
class Exploration:
    """The dynamic routing of one image.

    Attributes:
        dynamic: capsules, lengths and milliseconds of dynamic routing.
        iterations: ``(r y x)``: the coefficients of one class in each iteration, averaged over the capsule types.
        master: ``(y x)``: the same for the master coefficients.
        bounds: bounds of a coefficient.
    """

    dynamic: Output
    iterations: Floats
    master: Floats
    bounds: tuple[float, float]


@final
class TrainedNetwork:
    """The dynamic and the folded network of a run folder, and the master coefficients."""

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        """Read a run folder.

        Args:
            folder: folder with the network and its master coefficients.
            threads: CPU threads of this process; all when None.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        run = Run.open(folder)
        master = run.master()
        self.dynamic: CapsNet = run.model().eval().requires_grad_(False)
        self.fast: FastCapsNet = fold(self.dynamic, master)
        self._master = master.values.float()  # (i, j)

    def lengths(self, routing: str) -> Callable[[NDArray[np.uint8]], Floats]:
        """Return a function from images ``(b c h w)`` to lengths ``(b j)``, with fast or dynamic routing."""
        network = self.dynamic if routing == "dynamic" else self.fast

        @torch.no_grad()
        def function(images: NDArray[np.uint8]) -> Floats:
            lengths: Floats = network(torch.from_numpy(images)).lengths.numpy()
            check_finite(lengths)
            return lengths

        return function

    @torch.no_grad()
    def run(self, image: NDArray[np.uint8], routing: str) -> Output:
        """Classify one image ``(c h w)``."""
        network = self.dynamic if routing == "dynamic" else self.fast
        begun = time.perf_counter()
        output = network(torch.from_numpy(image[None].copy()))
        milliseconds = 1000 * (time.perf_counter() - begun)
        return Output(output.capsules[0].numpy(), output.lengths[0].numpy(), milliseconds)

    @torch.no_grad()
    def explore(self, image: NDArray[np.uint8], label: int) -> Exploration:
        """Route one image ``(c h w)`` and return the coefficients of one class."""
        dynamic = self.run(image, "dynamic")
        layer = self.dynamic.routing
        lower = self.dynamic.lower_capsules(torch.from_numpy(image[None].copy()))  # (1, i, d)
        [(_, steps)] = layer.trace(lower)
        maps = torch.stack([self._grid(step.coefficients[0, :, label]) for step in steps])  # (r, y, x)
        low, high = layer.routing.normalization.bounds
        return Exploration(dynamic, maps.numpy(), self._grid(self._master[:, label]).numpy(), (low, high))

    @torch.no_grad()
    def reconstruct(self, label: int, capsule: Floats) -> NDArray[np.uint8]:
        """Reconstruct the image ``(c h w)`` of a class capsule ``(e)``."""
        config = self.dynamic.config
        capsules = torch.zeros(1, config.classes, config.class_dimension)
        capsules[0, label] = torch.from_numpy(capsule)
        pixels = self.dynamic.reconstruct(capsules, torch.tensor([label]))[0]
        image: NDArray[np.uint8] = (255 * pixels).round().byte().numpy()
        return image

    def _grid(self, coefficients: Tensor) -> Tensor:
        """Average coefficients ``(i)`` over the capsule types ``(y x)``."""
        y, x = self.dynamic.config.grid
        return coefficients.reshape(y, x, -1).mean(-1)
