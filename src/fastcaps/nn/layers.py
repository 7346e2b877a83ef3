"""The parts of a capsule network: stem, PrimaryCaps, class capsules, folded class capsules, decoder (section 2)."""

import math
from contextlib import nullcontext
from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor, nn

from fastcaps.functional import Routing, folded_routing, route_capsules, squash
from fastcaps.nn.config import CapsNetConfig
from fastcaps.nn.convolution import FastConvolution, is_plain
from fastcaps.nn.unfolded import unfolded_conv2d_relu


class Stem(nn.Module):
    """The first convolution with ReLU: images ``(b c h w)`` to feature maps ``(b k h' w')``.

    When the configuration says so, each image is first brought to zero mean and unit variance.
    """

    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__()
        self.standardize = config.standardize
        self.conv = nn.Conv2d(config.channels, config.stem_channels, config.stem_kernel, stride=config.stem_stride)
        # Variance 2 / fan-in (He et al., 2015): ReLU leaves half, so the mean square of the maps is the images'.
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")
        nn.init.zeros_(cast(Tensor, self.conv.bias))

    def forward(self, images: Tensor) -> Tensor:
        """Images ``(b c h w)`` to maps ``(b k h' w')``."""
        if self.standardize:
            images = standardized(images)
        # Patches side by side pay only where they are smaller than what comes of them.
        fits = self.conv.weight[0].numel() < len(self.conv.weight) and is_plain(images)
        if not fits or (images.requires_grad and torch.is_grad_enabled()):
            return torch.relu(self.conv(images))
        return unfolded_conv2d_relu(images, self.conv.weight, cast(Tensor, self.conv.bias), self.conv.stride[0])


class PrimaryCaps(nn.Module):
    """The second convolution, without ReLU, whose channels are grouped to capsules and squashed.

    The ``d`` neighbouring channels ``t·d … t·d + d − 1`` at one position are the capsule of type ``t`` there. The
    capsules are ordered by position, row after row, then by type: ``i = (y · grid width + x) · types + t``.

    Attributes:
        convolution: ``"direct"`` for ordinary convolution, ``"winograd"`` for the one of `fastcaps.nn.winograd`, or
            ``"auto"``, which for maps in float32 takes what is fastest (`choose_tile`), for few images without
            gradient a product with all patches. Anything but eager execution (export, compilation, tracing) gets
            ordinary convolution.
    """

    # Mean square length that capsules have before squashing, for images of unit mean square. Squashed, that is a
    # length of 0.8; for MNIST, whose mean square is 0.1, of 0.3. Neither vanishes.
    START = 4.0

    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__()
        self.lower_dimension = config.lower_dimension
        self.conv = nn.Conv2d(
            config.stem_channels,
            config.capsule_types * config.lower_dimension,
            config.primary_kernel,
            stride=config.primary_stride,
        )
        fan_in = config.stem_channels * config.primary_kernel**2
        nn.init.normal_(self.conv.weight, std=math.sqrt(self.START / (config.lower_dimension * fan_in)))
        nn.init.zeros_(cast(Tensor, self.conv.bias))
        self.convolution: Literal["auto", "direct", "winograd"] = "auto"
        self._fast = FastConvolution()

    def forward(self, maps: Tensor) -> Tensor:
        """Maps ``(b k h' w')`` to lower capsules ``(b i d)``."""
        if self.convolution not in ("auto", "direct", "winograd"):
            raise ValueError(f"convolution is {self.convolution!r}, expected one of auto, direct, winograd")
        channels = None
        if self.convolution != "direct" and is_plain(maps):
            channels = self._fast(maps, self.conv, always=self.convolution == "winograd")
        if channels is None:
            channels = self.conv(maps)  # (b, types·d, grid height, grid width)
        by_position = channels.permute(0, 2, 3, 1)  # (b, grid height, grid width, types·d)
        capsules = by_position.unflatten(3, (-1, self.lower_dimension)).flatten(1, 3)  # (b, i, d)
        return squash(capsules)


class ClassCaps(nn.Module):
    """The routing layer: votes of all lower capsules for all classes, routed by agreement.

    How the weights start decides whether Max-Min training starts at all. Let them have standard deviation σ, so
    that a vote has τ = σ‖u‖ in each of its e directions. The first iteration adds up the votes of all i lower capsules
    with the same coefficient c₀ (1 for Max-Min, 1/j for softmax): a sum of length ``c₀ τ √(i · e)``. From the
    second on, Max-Min gives each capsule a large coefficient where its vote agrees, however small the agreement: the
    covariance of the two is about 0.3 (q − p) τ (for ten normal numbers, 0.9 / their mean range of 3.08), and i of them
    add up to ``0.3 (q − p) τ i`` in one direction. So σ is chosen to make the length of both together that of a lower
    capsule, for any number of them. Softmax does nothing of the kind while agreements are small, and they stay so if
    no vote is longer than its capsule: σ is at most 1 / √e. With a fixed σ, lengths grow with i: at 0.1 the 1152
    capsules of the MNIST network start where squash has no slope, and the loss never moves.

    With fixed coefficients nothing agrees with anything at the start: sums have length ``τ √(e · Σᵢ C²)``.
    """

    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__()
        self.iterations = config.iterations
        self.normalization = cast(Literal["max_min", "softmax"], config.normalization)
        self.lower, self.upper = config.lower, config.upper
        i, j, e = config.lower_capsules, config.classes, config.class_dimension
        self.weight = nn.Parameter(torch.empty(i, config.lower_dimension, j, e))
        at_random = math.sqrt(i * e) * (1.0 if config.normalization == "max_min" else 1.0 / j)
        routed = config.normalization == "max_min" and config.iterations > 1
        in_agreement = 0.3 * (config.upper - config.lower) * i if routed else 0.0
        self._draw(math.hypot(at_random, in_agreement))

    def draw_for(self, fixed: Tensor) -> None:
        """Draw the weights anew, for a network that is to be trained with these coefficients ``(i j)``."""
        squares = float(fixed.double().square().sum(0).mean())
        self._draw(math.sqrt(squares * self.weight.shape[3]))

    def _draw(self, gain: float) -> None:
        """Draw weights that turn lower capsules of length l into sums of length l, given the gain for σ = 1."""
        nn.init.normal_(self.weight, std=1 / max(gain, math.sqrt(self.weight.shape[3])))

    def forward(self, lower_capsules: Tensor, iterations: int | None = None) -> Routing:
        """Lower capsules ``(b i d)`` to class capsules ``(b j e)`` and coefficients ``(b i j)``."""
        # Routing is in the precision of the weights, whatever autocast made of the lower capsules.
        device = self.weight.device.type
        known = torch.amp.is_autocast_available(device)  # not of "meta"
        with torch.autocast(device, enabled=False) if known else nullcontext():
            return route_capsules(
                lower_capsules.to(self.weight.dtype),
                self.weight,
                self.iterations if iterations is None else iterations,
                self.normalization,
                self.lower,
                self.upper,
            )


class FoldedCaps(nn.Module):
    """The routing layer with its coefficients multiplied into the weights: one matrix product and squash."""

    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__()
        self.classes = config.classes
        inputs = config.lower_capsules * config.lower_dimension
        self.weight = nn.Parameter(torch.empty(inputs, config.classes * config.class_dimension))

    def forward(self, lower_capsules: Tensor) -> Tensor:
        """Lower capsules ``(b i d)`` to class capsules ``(b j e)``."""
        parts = torch.get_num_threads() if is_plain(lower_capsules) else 1
        return folded_routing(lower_capsules, self.weight, self.classes, parts)


class Decoder(nn.Module):
    """The reconstruction network: class capsules, all but one masked, to an image between 0 and 1."""

    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__()
        self.image_shape = (config.channels, config.height, config.width)
        widths = (config.classes * config.class_dimension, *config.decoder)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        layers += [nn.Linear(widths[-1], math.prod(self.image_shape)), nn.Sigmoid()]
        self.layers = nn.Sequential(*layers)

    def forward(self, capsules: Tensor, labels: Tensor) -> Tensor:
        """Class capsules ``(b j e)`` and the class to keep of each ``(b)`` to images ``(b c h w)``."""
        keep = nn.functional.one_hot(labels, capsules.shape[1])  # (b, j)
        masked = capsules * keep.unsqueeze(-1)  # (b, j, e)
        return cast(Tensor, self.layers(masked.flatten(1)).unflatten(1, self.image_shape))


def standardized(images: Tensor) -> Tensor:
    """Each image ``(b c h w)`` with zero mean and unit variance over its own pixels and channels.

    The divisor is at least ``1 / √(pixels · channels)``, so that a flat image stays flat.
    """
    pixels = images.flatten(1)  # (b, c·h·w)
    centred = pixels - pixels.mean(1, keepdim=True)
    variance = centred.square().mean(1, keepdim=True)  # (b, 1)
    # Bounded before the root, whose slope at zero is infinite.
    return (centred / variance.clamp_min(1 / pixels.shape[1]).sqrt()).view_as(images)
