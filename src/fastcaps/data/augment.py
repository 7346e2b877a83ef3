"""Augmentation: random changes of images in training, and a center crop in testing.

Plain PyTorch on whole batches. The random changes of an image are determined by eight uniform numbers. `augment` draws
them from a generator, `fastcaps.data.batches` derives them from seed, epoch and step, so that they are reproducible.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from fastcaps._result import Record

# Uniform numbers per image: vertical shift, horizontal shift, flip, brightness, contrast; and, drawn after those of all
# images, rotation, vertical zoom, horizontal zoom.
_CHANCES, _RESAMPLING_CHANCES = 5, 3


@dataclass(frozen=True, kw_only=True)
class Augmentation(Record):
    """Random changes of training images. Only the crop applies to test images, too.

    Attributes:
        shift: largest shift in pixels, vertically and horizontally.
        fill: pixels that a shift, a rotation or a zoom uncovers: ``"zero"`` (black), or ``"edge"`` (the outermost
            pixels, repeated).
        crop: height and width of the crop, at a random place in training, in the middle in testing.
        flip: whether to mirror half of the images horizontally.
        brightness: largest change, added to all pixels.
        contrast: largest relative change of the distance from the mean of a channel.
        rotation: largest rotation in degrees, in both directions, about the middle of the image.
        zoom: largest relative change of height and of width, such as 0.1 for 90 to 110 %.
    """

    shift: int = 0
    fill: str = "zero"
    crop: tuple[int, int] | None = None
    flip: bool = False
    brightness: float = 0.0
    contrast: float = 0.0
    rotation: float = 0.0
    zoom: float = 0.0

    def __post_init__(self) -> None:
        """Convert lists from JSON to tuples, then check all values."""
        if self.crop is not None:
            object.__setattr__(self, "crop", tuple(self.crop))
        if type(self.shift) is not int or self.shift < 0:
            raise ValueError(f"shift is {self.shift!r}, expected a whole number of pixels, at least 0")
        if self.fill not in ("zero", "edge"):
            raise ValueError(f"fill is {self.fill!r}, expected zero or edge")
        if self.crop is not None and (
            len(self.crop) != 2 or any(type(side) is not int or side < 1 for side in self.crop)
        ):
            raise ValueError(f"crop is {self.crop!r}, expected height and width of at least 1")
        for name, most, expected in (
            ("brightness", 1, "0 to 1"),
            ("contrast", 1, "0 to 1"),
            ("rotation", 180, "0 to 180 degrees"),
            ("zoom", 0.9, "a relative change of 0 to 0.9"),
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= most:
                raise ValueError(f"{name} is {value!r}, expected {expected}")

    @classmethod
    def shifting(cls, height: int, width: int, fill: str) -> Self:
        """Return an augmentation that shifts by up to 1/14 of the shorter side, such as 2 of 28 pixels for MNIST."""
        return cls(shift=max(1, round(min(height, width) / 14)), fill=fill)

    def augment(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Change images ``(b c h w)``, floats between 0 and 1 or bytes, at random.

        Returns:
            ``(b c h' w')`` of the size of the crop, float32 between 0 and 1.
        """
        shapes = self.chance_shapes(len(images))
        parts = [torch.rand(shape, dtype=torch.float64, generator=generator) for shape in shapes]
        return self.apply(images, torch.cat(parts, 1))

    def chance_shapes(self, count: int) -> list[tuple[int, int]]:
        """Return the shapes of the uniform numbers to draw for images, and to concatenate for `apply`."""
        return [(count, _CHANCES), (count, _RESAMPLING_CHANCES)] if self.resamples else [(count, _CHANCES)]

    @property
    def resamples(self) -> bool:
        """Whether images are rotated or zoomed."""
        return bool(self.rotation or self.zoom)

    def apply(self, images: Tensor, chances: Tensor) -> Tensor:
        """Augment images with given uniform numbers, on any device: ``(b 5)``, or ``(b 8)`` to rotate or zoom."""
        h, w = self._checked(images)
        if chances.shape != (len(images), expected := sum(number for _, number in self.chance_shapes(len(images)))):
            raise ValueError(f"chances have shape {tuple(chances.shape)}, expected ({len(images)}, {expected})")
        if self.resamples and len(images):
            images = self._resampled(images, chances[:, _CHANCES:])
        # Not every device has float64, so only values derived from the numbers are moved to the device.
        device = images.device
        if self.shift:
            margins = (self.shift,) * 4
            # PyTorch repeats the edges of floating-point images only.
            images = pad(images, margins) if self.fill == "zero" else pad(as_float(images), margins, "replicate")
        windows = images.unfold(2, h, 1).unfold(3, w, 1)  # (b, c, rows, columns, h, w)
        row = (chances[:, 0] * windows.shape[2]).long().to(device)
        column = (chances[:, 1] * windows.shape[3]).long().to(device)
        views = as_float(windows[torch.arange(len(images), device=device), :, row, column])  # (b, c, h, w)
        if self.flip:
            views = torch.where((chances[:, 2] < 0.5).to(device)[:, None, None, None], views.flip(3), views)
        if self.brightness:
            views = views + self._spread(chances[:, 3], self.brightness).to(device)
        if self.contrast:
            mean = views.mean((2, 3), keepdim=True)
            views = mean + (views - mean) * (1 + self._spread(chances[:, 4], self.contrast).to(device))
        return views.clamp_(0, 1) if self.brightness or self.contrast else views

    def test_view(self, images: Tensor) -> Tensor:
        """Return the middle of images ``(b c h w)``, floats between 0 and 1 or bytes, as float32."""
        return as_float(self.middle(images))

    def middle(self, images: Tensor) -> Tensor:
        """Return the middle of images ``(b c h w)`` of any type, as the crop leaves it in testing."""
        h, w = self._checked(images)
        top, left = (images.shape[2] - h) // 2, (images.shape[3] - w) // 2
        return images[:, :, top : top + h, left : left + w]

    @classmethod
    def stored(cls, values: dict[str, Any], source: str) -> dict[str, Any]:
        """Raise ValueError for unknown entries."""
        unknown = sorted(set(values) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"{source} has unknown entries: {', '.join(unknown)}")
        return values

    def _checked(self, images: Tensor) -> tuple[int, int]:
        """Check images, and return height and width of the result."""
        if images.ndim != 4:
            raise ValueError(f"images have shape {tuple(images.shape)}, expected (batch, channels, height, width)")
        h, w = self.crop or images.shape[2:]
        if h > images.shape[2] or w > images.shape[3]:
            raise ValueError(
                f"a crop of {h}×{w} doesn't fit into images of {images.shape[2]}×{images.shape[3]}: "
                "make it smaller or the images larger"
            )
        return h, w

    def _resampled(self, images: Tensor, chances: Tensor) -> Tensor:
        """Rotate and zoom images by uniform numbers ``(b 3)``, with bilinear interpolation."""
        spread = 2 * chances - 1
        angle = spread[:, 0] * math.radians(self.rotation)
        (zoom_y, zoom_x), (h, w) = (1 + self.zoom * spread[:, 1:]).unbind(1), images.shape[2:]
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        # From a place in the result to its place in the image. Both are in units of half a side.
        x = torch.stack((cos / zoom_x, -sin * (h / w) / zoom_x, zero), 1)
        y = torch.stack((sin * (w / h) / zoom_y, cos / zoom_y, zero), 1)
        places = torch.stack((x, y), 1).float().to(images.device)
        grid = affine_grid(places, list(images.shape), align_corners=False)  # (b, h, w, 2)
        if self.fill == "edge":
            # No place is outside the middles of the outermost pixels. Not every device can repeat them by itself.
            farthest = grid.new_tensor((1 - 1 / w, 1 - 1 / h))
            grid = grid.clamp(-farthest, farthest)
        return grid_sample(as_float(images), grid, align_corners=False)

    @staticmethod
    def _spread(chances: Tensor, largest: float) -> Tensor:
        """Scale uniform numbers ``(b)`` from 0…1 to −largest…largest, for images ``(b c h w)``."""
        return ((2 * chances - 1) * largest).float()[:, None, None, None]


def as_float(images: Tensor) -> Tensor:
    """Return images, bytes or floats, as contiguous float32 between 0 and 1."""
    if images.dtype == torch.uint8:
        return images.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
    return images.to(torch.float32).clamp(0, 1)
