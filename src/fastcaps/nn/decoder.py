"""The reconstruction network (Sabour et al., 2017)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from torch import Tensor, nn


class Decoder(nn.Module):
    """Reconstruct an image between 0 and 1 from class capsules, all but one masked: ``(b j e) → (b c h w)``."""

    def __init__(
        self, in_capsules: int, in_dim: int, image_shape: Sequence[int], hidden: Sequence[int] = (512, 1024)
    ) -> None:
        """Make a decoder.

        Args:
            in_capsules: number of class capsules, j.
            in_dim: dimension of a class capsule, e.
            image_shape: channels, height and width of the images.
            hidden: widths of the hidden layers.
        """
        super().__init__()
        self.image_shape = tuple(image_shape)
        widths = (in_capsules * in_dim, *hidden)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        layers += [nn.Linear(widths[-1], math.prod(self.image_shape)), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers)

    def forward(self, capsules: Tensor, labels: Tensor) -> Tensor:
        """Reconstruct images ``(b c h w)`` from class capsules ``(b j e)`` and the class of each image ``(b)``."""
        mask = nn.functional.one_hot(labels, capsules.shape[1])  # (b, j)
        masked = capsules * mask.unsqueeze(-1)  # (b, j, e)
        return cast(Tensor, self.layers(masked.flatten(1)).unflatten(1, self.image_shape))
