"""A start for the filters of a stem that is taken from images: whitened principal components of their patches.

Neighboring pixels are much alike. Random filters therefore see the same few components of a patch, brightness above
all, and their maps are nearly copies of each other; what tells images apart has to be learned against that. Filters
along the principal components, each scaled to the same strength, give maps that are uncorrelated from the first step
on. Coates and Ng (2011) whiten patches for networks of one layer, Page (2019) and Jordan (arXiv 2404.00498) the first
layer of ordinary networks; each component comes with its negative, so that ReLU loses neither half.
"""

import torch
from torch import Tensor

from fastcaps.nn.convolutional import Stem
from fastcaps.nn.inference import evaluating

# Strength of a component, relative to the mean of all, below which it is scaled up less than to the strength of the
# others: the weakest components are noise.
_FLOOR = 0.1
# Images at a time, whose patches fit into memory.
_IMAGES = 50


def whiten_stem(stem: Stem, images: Tensor) -> None:
    """Replace the filters of the last convolution of a stem; its bias becomes 0.

    The strongest principal components of the patches that the convolution sees are taken, one for every two maps. The
    two filters of a component are negatives of each other. Where there are more than two maps per component, the
    other filters remain.

    Args:
        stem: the stem; its other convolutions stay as they are.
        images: ``(b c h w)``, between 0 and 1; a few hundred are enough.
    """
    weight = stem.conv.weight
    moments = patch_moments(stem, images)
    strengths, components = torch.linalg.eigh(moments)  # weakest first; a column per component
    mean = float(strengths.mean())
    if not mean > 0:
        raise ValueError(
            f"the {len(images)} images are flat, expected images with differences between pixels: give other images, "
            "or start with random filters"
        )
    scales = (strengths.clamp_min(0) + _FLOOR * mean).rsqrt()
    filters = (components * scales).t().flip(0)[: len(weight) // 2]  # (n, c·k·k)
    pairs = torch.cat([filters, -filters])
    with torch.no_grad():
        weight[: len(pairs)] = pairs.view(-1, *weight.shape[1:]).to(weight)
        if stem.conv.bias is not None:
            stem.conv.bias.zero_()


def patch_moments(stem: Stem, images: Tensor) -> Tensor:
    """Return the mean product of every two inputs of a filter, over all patches: ``(c·k·k c·k·k)``, in float64."""
    weight, (size, _), (stride, _) = stem.conv.weight, stem.conv.kernel_size, stem.conv.stride
    entries, count = weight[0].numel(), 0
    moments = torch.zeros(entries, entries, dtype=torch.float64)
    with evaluating(stem), torch.no_grad():
        for some in torch.split(images, _IMAGES):
            maps = stem.inputs(some.to(weight)).cpu()
            windows = maps.unfold(2, size, stride).unfold(3, size, stride)  # (b, c, h', w', k, k)
            patches = windows.permute(0, 2, 3, 1, 4, 5).reshape(-1, entries).double()
            moments.addmm_(patches.t(), patches)
            count += len(patches)
    return moments / max(count, 1)
