"""Keyword arguments of `fastcaps.data.load`. This module does not import PyTorch."""

from typing import TypedDict


class AugmentationOptions(TypedDict, total=False):
    """Keyword arguments of `fastcaps.data.load` that add to the augmentation of a set.

    Attributes:
        rotation: largest rotation of training images in degrees.
        zoom: largest relative change of their height and width.
    """

    rotation: float | None
    zoom: float | None


class FolderOptions(TypedDict, total=False):
    """Keyword arguments of `fastcaps.data.load` for folders of images.

    Attributes:
        test_fraction: fraction of the images to hold out for testing, if the folder has no ``train`` and ``test``; 0.2
            by default.
        size: height and width, or one number for both, to resize to; by default the most common size of a training
            image, scaled down until no side is longer than 64.
        channels: 1 for gray, 3 for color; by default gray only if all images are.
        skip_broken: decode every file first, and leave out those that can't be decoded.
    """

    test_fraction: float | None
    size: int | tuple[int, int] | None
    channels: int | None
    skip_broken: bool


class LoadCall(FolderOptions, AugmentationOptions, total=False):
    """Arguments with which `fastcaps.data.load` returns a data set again, without ``data_dir``.

    Attributes:
        name_or_folder: name of a set, or a folder of images.
        seed: seed of generated images, or of the choice of test images.
        photographs: folder of photographs for backgrounds.
    """

    name_or_folder: str
    seed: int
    photographs: str
