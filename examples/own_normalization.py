"""A routing normalization of your own: sparsemax, in one class.

    python examples/own_normalization.py

Sparsemax (Martins and Astudillo, 2016) is softmax that can give exact zeros: the nearest point of the simplex. The
class is registered by its name, so configurations, run folders, analyses and reports know it. On the command line:

    export FASTCAPS_PLUGINS=examples/own_normalization.py
    fastcaps train --data digits --out runs/sparse --normalization sparsemax
"""

import torch
from torch import Tensor

import fastcaps
from fastcaps import nn as caps
from fastcaps.data import batches, load
from fastcaps.training import Trainer, TrainSettings

EPOCHS = 5


class Sparsemax(caps.Normalization):
    """Coefficients on the simplex, many of them zero. Its gradient is left to autograd."""

    name = "sparsemax"

    def start(self, classes: int) -> float:
        """Return the coefficient of the first iteration."""
        return 1 / classes

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the coefficients ``(… j)`` of logits ``(… j)``."""
        ordered = logits.sort(-1, descending=True).values
        sums = ordered.cumsum(-1) - 1
        ranks = torch.arange(1, logits.shape[-1] + 1, dtype=logits.dtype, device=logits.device)
        support = (ranks * ordered > sums).sum(-1, keepdim=True)  # how many are not zero
        threshold = sums.gather(-1, support - 1) / support
        return (logits - threshold).clamp_min(0)


def main(out: str = "runs/sparsemax") -> None:
    """Train, accumulate, fold."""
    torch.manual_seed(0)
    data = load("digits")
    view = data.augmentation.test_view
    config = data.config(normalization="sparsemax", stem_channels=32, capsule_types=8)
    model = fastcaps.CapsNet(config)
    Trainer(model, data, TrainSettings(epochs=EPOCHS), out).fit()
    master = fastcaps.accumulate(model, batches(data.train, 256, view=view))
    fast = fastcaps.fold(model, master)
    images, labels = next(iter(batches(data.test, 360, view=view)))
    for name, network in {"dynamic": model, "folded": fast}.items():
        print(f"{name}: test accuracy {(network.predict(images) == labels).double().mean():.1%}")


if __name__ == "__main__":
    main()
