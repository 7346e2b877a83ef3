"""From images to lower capsules: the stem and PrimaryCapsules (paper, section 2)."""

import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from fastcaps._tracing import is_compiled, is_plain
from fastcaps.functional import squash
from fastcaps.kernels import (
    FastConvolution,
    compiled_conv2d,
    compiled_conv2d_relu,
    im2col_conv2d_relu,
    is_simple,
)


class Stem(nn.Module):
    """The convolutions before PrimaryCapsules, each with ReLU: images ``(b c h w)`` to feature maps ``(b k h' w')``.

    The paper's stem is one convolution. Strided convolutions in front of it make large images small.

    Attributes:
        layers: the convolutions in front, with ReLU; empty in the paper's network.
        conv: the last convolution.
        norm: BatchNorm between the last convolution and its ReLU, or None.
        standardize: whether each image is first shifted and scaled to zero mean and unit variance.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 256,
        kernel_size: int = 9,
        stride: int = 1,
        *,
        layers: Sequence[tuple[int, int, int]] = (),
        batch_norm: bool = False,
        standardize: bool = False,
    ) -> None:
        """Make a stem; no convolution has padding.

        Args:
            in_channels: channels of the images.
            out_channels: feature maps of the last convolution.
            kernel_size: side of its kernel.
            stride: its stride.
            layers: channels, kernel size and stride of each convolution in front of it.
            batch_norm: whether a BatchNorm follows each convolution; `fastcaps.fold` merges it into the convolution.
            standardize: whether each image is first shifted and scaled to zero mean and unit variance.
        """
        super().__init__()
        self.standardize = standardize
        self.layers = nn.Sequential()
        for channels, side, step in layers:
            block: list[nn.Module] = [_he_convolution(in_channels, channels, side, step)]
            block += [nn.BatchNorm2d(channels)] if batch_norm else []
            self.layers.append(nn.Sequential(*block, nn.ReLU()))
            in_channels = channels
        self.conv = _he_convolution(in_channels, out_channels, kernel_size, stride)
        self.norm = nn.BatchNorm2d(out_channels) if batch_norm else None

    def forward(self, images: Tensor) -> Tensor:
        """Convolve images ``(b c h w)`` to maps ``(b k h' w')``."""
        maps = self.inputs(images)
        if self.norm is not None:
            return torch.relu(self.norm(self.conv(maps)))
        # Patches side by side pay only where they are not much larger than the result.
        fits = is_simple(self.conv) and self.conv.bias is not None
        fits = fits and self.conv.weight[0].numel() <= 2 * len(self.conv.weight)
        needs_gradient = torch.is_grad_enabled() and (maps.requires_grad or self.conv.weight.requires_grad)
        if fits and is_compiled(maps) and not needs_gradient:
            return compiled_conv2d_relu(maps, self.conv.weight, cast(Tensor, self.conv.bias), self.conv.stride[0])
        if not fits or not is_plain(maps) or (maps.requires_grad and torch.is_grad_enabled()):
            return torch.relu(self.conv(maps))
        return im2col_conv2d_relu(maps, self.conv.weight, cast(Tensor, self.conv.bias), self.conv.stride[0])

    def inputs(self, images: Tensor) -> Tensor:
        """Return the input of the last convolution for images ``(b c h w)``."""
        maps: Tensor = self.layers(standardized(images) if self.standardize else images)
        return maps


class PrimaryCapsules(nn.Module):
    """A convolution without ReLU, whose channels are grouped to capsules and squashed: ``(b k h w) → (b i d)``.

    The ``d`` neighboring channels ``t·d … t·d + d − 1`` at one position are the capsule of type ``t`` there. The
    capsules are ordered by position, row after row, then by type: ``i = (y · grid width + x) · types + t``.

    Attributes:
        conv: the convolution.
        norm: BatchNorm behind it, or None.
        convolution: ``"direct"`` for ordinary convolution, ``"winograd"`` for `fastcaps.kernels.winograd`, or
            ``"auto"``, which for maps in float32 takes what is fastest (`choose_tile`), for few images without
            gradient a product with all patches. Compilation gets the same as one operator; exporting and tracing get
            ordinary convolution.
    """

    # Mean square length that capsules have before squashing, for images of unit mean square. Squashed, that is a
    # length of 0.8; for MNIST, whose mean square is 0.1, of 0.3. Neither vanishes.
    START = 4.0

    def __init__(
        self,
        in_channels: int,
        types: int,
        dim: int,
        kernel_size: int,
        stride: int = 1,
        *,
        batch_norm: bool = False,
    ) -> None:
        """Make a layer; its convolution has no padding.

        Args:
            in_channels: channels of the feature maps.
            types: capsules at each position.
            dim: numbers per capsule, d.
            kernel_size: side of the kernel.
            stride: of the convolution.
            batch_norm: whether a BatchNorm follows the convolution; `fastcaps.fold` merges it into the convolution.
        """
        super().__init__()
        self.types, self.dim = types, dim
        self.conv = nn.Conv2d(in_channels, types * dim, kernel_size, stride=stride)
        self.norm = nn.BatchNorm2d(types * dim) if batch_norm else None
        self.convolution: Literal["auto", "direct", "winograd"] = "auto"
        self._fast = FastConvolution()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize the weights and set the bias to 0."""
        nn.init.normal_(self.conv.weight, std=math.sqrt(self.START / (self.dim * self.conv.weight[0].numel())))
        nn.init.zeros_(cast(Tensor, self.conv.bias))
        if self.norm is not None:
            self.norm.reset_parameters()

    def forward(self, maps: Tensor) -> Tensor:
        """Convolve maps ``(b k h w)`` to lower capsules ``(b i d)``."""
        if self.convolution not in ("auto", "direct", "winograd"):
            raise ValueError(f"convolution is {self.convolution!r}, expected one of auto, direct, winograd")
        if maps.ndim != 4:
            raise ValueError(f"maps have shape {tuple(maps.shape)}, expected (batch, {self.conv.in_channels}, h, w)")
        channels = None
        always = self.convolution == "winograd"
        if self.convolution != "direct" and is_plain(maps):
            channels = self._fast(maps, self.conv, always=always)
        elif self.convolution != "direct" and is_compiled(maps) and is_simple(self.conv):
            channels = compiled_conv2d(maps, self.conv, always=always)
        if channels is None:
            channels = self.conv(maps)  # (b, types·d, grid height, grid width)
        if self.norm is not None:
            channels = self.norm(channels)
        by_position = channels.permute(0, 2, 3, 1)  # (b, grid height, grid width, types·d)
        capsules = by_position.unflatten(3, (-1, self.dim)).flatten(1, 3)  # (b, i, d)
        return squash(capsules)

    def extra_repr(self) -> str:
        """Return the types and dimension."""
        return f"types={self.types}, dim={self.dim}, convolution={self.convolution}"


def standardized(images: Tensor) -> Tensor:
    """Return each image ``(b c h w)`` with zero mean and unit variance over its own pixels and channels.

    The divisor is at least ``1 / √(pixels · channels)``, so that a flat image stays flat.
    """
    pixels = images.flatten(1)  # (b, c·h·w)
    centered = pixels - pixels.mean(1, keepdim=True)
    variance = centered.square().mean(1, keepdim=True)  # (b, 1)
    # Bounded before the root, whose slope at zero is infinite.
    return (centered / variance.clamp_min(1 / pixels.shape[1]).sqrt()).view_as(images)


def _he_convolution(in_channels: int, out_channels: int, kernel_size: int, stride: int) -> nn.Conv2d:
    """Return a convolution with weights of variance 2 / fan-in (He et al., 2015).

    ReLU leaves half of the variance, so the mean square of the maps is that of the images.
    """
    conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    nn.init.zeros_(cast(Tensor, conv.bias))
    return conv
