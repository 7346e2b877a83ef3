"""A start for the filters of a stem that is taken from images: whitened principal components of their patches.

Neighboring pixels are similar. The maps of random filters therefore mostly show the same few components of a patch,
above all its brightness. Filters along the principal components, each scaled to the same strength, give maps that are
orthogonal to each other from the first step on. Coates and Ng (2011) whiten the patches of single-layer networks; Page
(2019) and Jordan (arXiv 2404.00498) start the first layer of convolutional networks this way. Each component comes with
its negative, so that ReLU loses neither half.
"""

import torch
from torch import Tensor

from fastcaps.nn.convolutional import Stem
from fastcaps.nn.inference import evaluating

# Strength of a component, relative to the mean of all, that is added before scaling: weak components are noise.
_FLOOR = 0.1
# Components below this strength, relative to the mean, are rounding errors.
_WEAKEST = 1e-6
# Largest number of inputs of a filter: decomposing the matrix of their products takes half a minute.
MAX_ENTRIES = 4096
# Number of patches, and at least this many per input of a filter.
_PATCHES, _PATCHES_PER_ENTRY = 300_000, 20
# Images at a time.
_IMAGES = 50


def whiten_stem(stem: Stem, images: Tensor) -> None:
    """Replace the filters of the last convolution of a stem; its bias becomes 0.

    The strongest principal components of the patches are taken, one for every two maps. The two filters of a component
    are negatives of each other. Where there are more than two maps per component, the other filters remain.

    Args:
        stem: the stem; its other convolutions stay as they are.
        images: ``(b c h w)``, between 0 and 1; a few hundred are enough.
    """
    weight = stem.conv.weight
    strengths, components = torch.linalg.eigh(patch_moments(stem, images))  # weakest first; a column per component
    mean = float(strengths.mean())
    if not mean > 0:
        raise ValueError(
            f"all inputs of the stem are 0 for the {len(images)} images, expected images that are neither black nor, "
            "where the network standardizes them, flat: give other images, or start with random filters"
        )
    strong = strengths > _WEAKEST * mean
    filters = (components[:, strong] / (strengths[strong] + _FLOOR * mean).sqrt()).t().flip(0)  # (n, c·k·k)
    filters = filters[: len(weight) // 2]
    pairs = torch.cat([filters, -filters])
    with torch.no_grad():
        weight[: len(pairs)] = pairs.view(-1, *weight.shape[1:]).to(weight)
        if stem.conv.bias is not None:
            stem.conv.bias.zero_()


def patch_moments(stem: Stem, images: Tensor) -> Tensor:
    """Return the mean product of every two inputs of a filter: ``(c·k·k c·k·k)``, in float64.

    Where the images have more patches than needed, they are taken at regular intervals.
    """
    weight, (size, _), (stride, _) = stem.conv.weight, stem.conv.kernel_size, stem.conv.stride
    entries, count = weight[0].numel(), 0
    if entries > MAX_ENTRIES:
        raise ValueError(
            f"a filter of the last convolution of the stem has {entries:,} inputs ({weight.shape[1]} channels of "
            f"{size}×{size}), expected at most {MAX_ENTRIES:,} to whiten them: start with random filters"
        )
    moments = torch.zeros(entries, entries, dtype=torch.float64)
    limit = max(_PATCHES, _PATCHES_PER_ENTRY * entries)
    with evaluating(stem), torch.no_grad():
        for chunk in torch.split(images, _IMAGES):
            maps = stem.inputs(chunk.to(weight)).cpu()
            windows = maps.unfold(2, size, stride).unfold(3, size, stride)  # (b, c, h', w', k, k)
            windows = windows.permute(0, 2, 3, 1, 4, 5)  # (b, h', w', c, k, k)
            positions = windows.shape[:3].numel()
            step = -(-positions // len(chunk) * len(images) // limit)
            chosen = torch.unravel_index(torch.arange(0, positions, step), windows.shape[:3])
            patches = windows[chosen].flatten(1).double()  # (n, c·k·k)
            moments.addmm_(patches.t(), patches)
            count += len(patches)
    return moments / max(count, 1)
