"""Efficient-CapsNet (Mazzia et al., 2021): the alternative for users who want a small, fast capsule network.

Written from the paper: four convolutions with ReLU and BatchNorm, a depthwise convolution that leaves one position, 16
capsules of 8 numbers, and self-attention in place of routing iterations.
"""

from typing import cast

import torch
from torch import Tensor, nn

from fastcaps.nn import CapsNetConfig

_CONVOLUTIONS = ((32, 5, 1), (64, 3, 1), (64, 3, 1), (128, 3, 2))
_CAPSULES, _DIMENSION = 16, 8


class EfficientCapsNet(nn.Module):
    """Map images ``(b c h w)``, bytes or floating-point between 0 and 1, to class capsules ``(b j e)``.

    For MNIST it has 161 thousand parameters, as in the paper.
    """

    def __init__(self, config: CapsNetConfig) -> None:
        """Make the network for the images and classes of a configuration; e is 16, as in the paper."""
        super().__init__()
        layers: list[nn.Module] = []
        channels, height, width = config.channels, config.height, config.width
        for outputs, kernel, stride in _CONVOLUTIONS:
            layers += [nn.Conv2d(channels, outputs, kernel, stride), nn.ReLU(), nn.BatchNorm2d(outputs)]
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            channels = outputs
        if min(height, width) < 1:
            raise ValueError(f"images of {config.height}×{config.width} are too small for Efficient-CapsNet")
        layers.append(nn.Conv2d(channels, _CAPSULES * _DIMENSION, (height, width), groups=channels))
        self.layers = nn.Sequential(*layers)
        self.routing = SelfAttentionRouting(_CAPSULES, _DIMENSION, config.classes, 16)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class capsules ``(b j e)`` of images."""
        if images.dtype == torch.uint8:
            images = images.to(torch.float32) / 255
        channels = self.layers(images)  # (b, i·d, 1, 1)
        lower = squash(channels.reshape(channels.shape[0], _CAPSULES, _DIMENSION))  # (b, i, d)
        return cast(Tensor, self.routing(lower))


class SelfAttentionRouting(nn.Module):
    """Coefficients from the agreement of the votes with each other, without iterations: ``(b i d) → (b j e)``.

    ``c_ij = softmax_j(Σ_k û_ij · û_kj / √e) + b_ij``, ``v_j = squash(Σ_i c_ij û_ij)``.
    """

    def __init__(self, in_capsules: int, in_dim: int, out_capsules: int, out_dim: int) -> None:
        super().__init__()
        self.out_capsules, self.out_dim = out_capsules, out_dim
        self.weight = nn.Parameter(torch.empty(in_capsules, in_dim, out_capsules * out_dim))
        self.bias = nn.Parameter(torch.zeros(in_capsules, out_capsules, 1))
        nn.init.normal_(self.weight, std=(2 / in_dim) ** 0.5)

    def forward(self, lower: Tensor) -> Tensor:
        """Return the class capsules of lower capsules."""
        by_capsule = lower.transpose(0, 1) @ self.weight  # (i, b, j·e)
        votes = by_capsule.transpose(0, 1).reshape(lower.shape[0], lower.shape[1], self.out_capsules, self.out_dim)
        # The sum over k of û_ij · û_kj is û_ij · Σ_k û_kj, so no matrix of all pairs is needed.
        agreement = (votes * votes.sum(1, keepdim=True)).sum(-1, keepdim=True)  # (b, i, j, 1)
        coefficients = torch.softmax(agreement / self.out_dim**0.5, 2) + self.bias  # (b, i, j, 1)
        return squash((coefficients * votes).sum(1))  # (b, j, e)


def squash(s: Tensor) -> Tensor:
    """Shorten vectors ``(… e)`` as Efficient-CapsNet does: ``v = (1 − exp(−‖s‖)) · s / ‖s‖``."""
    length: Tensor = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    return (1 - torch.exp(-length)) * s / (length + 1e-7)
