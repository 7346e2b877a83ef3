"""Labels: one class number per image."""

import torch
from torch import Tensor


def checked_labels(labels: Tensor, images: int, classes: int) -> Tensor:
    """Return labels ``(b)`` as int64; raise ValueError unless they are one integer from 0 to classes − 1 per image.

    Values are only checked on the CPU, because reading them from another device would synchronize.
    """
    if labels.shape != (images,):
        raise ValueError(
            f"labels have shape {tuple(labels.shape)}, expected one class number for each of the {images} images"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels are {labels.dtype}, expected whole numbers")
    labels = labels.long()
    if labels.device.type == "cpu":
        outside = labels[(labels < 0) | (labels >= classes)]
        if len(outside):
            raise ValueError(f"label {int(outside[0])} is outside the classes 0 … {classes - 1}")
    return labels
