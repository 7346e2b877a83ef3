"""Rank capsule types and stem maps: by the energy of their folded contribution, by magnitude, or at random.

The folded network adds up ``s_j = Σ_i A_ijᵀ u_i`` with ``A_ij = C_ij W_ij``, so lower capsule i contributes the energy
``Σ_j E‖A_ijᵀ u_i‖² = Σ_j tr(A_ijᵀ E[u_i u_iᵀ] A_ij)``, and a capsule type that of its capsules at all positions. A stem
map contributes to the channels of a type, before squash, ``E(Σ w·x)²`` with the patches x of this map alone. Its energy
is its share of each kept type, weighted by the energy of the type.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import unfold

from fastcaps.nn import FastCapsNet
from fastcaps.nn.inference import Batches, run_batches

Ranking = Literal["energy", "magnitude", "random"]
RANKINGS: tuple[Ranking, ...] = get_args(Ranking)

# Images whose patches are in memory at a time.
_CHUNK_IMAGES = 16


@dataclass(frozen=True)
class Moments:
    """Second moments of activations, in float64.

    Attributes:
        capsules: ``E[u_i u_iᵀ]`` of the lower capsules ``(i d d)``.
        patches: ``E[x_k x_kᵀ]`` of the patches of each stem map that PrimaryCapsules sees ``(k q q)``, q pixels.
    """

    capsules: Tensor
    patches: Tensor


def measure_moments(network: FastCapsNet, batches: Batches) -> Moments:
    """Return the second moments of lower capsules and of patches of the stem maps.

    Args:
        network: a folded network.
        batches: pairs of images ``(b c h w)`` and labels ``(b)``, as for `fastcaps.accumulate`; a few hundred images
            are enough.
    """
    conv = network.primary.conv
    k, q = conv.in_channels, conv.kernel_size[0] * conv.kernel_size[1]
    capsules = torch.zeros(network.config.lower_capsules, *2 * [network.config.lower_dimension], dtype=torch.float64)
    patches = torch.zeros(k, q, q, dtype=torch.float64)

    def add(images: Tensor, labels: Tensor) -> None:
        for piece in torch.split(images, _CHUNK_IMAGES):
            maps = network.stem(network._checked(piece))
            lower = network.primary(maps)  # (b, i, d)
            capsules.add_(torch.einsum("bid,bif->idf", lower, lower).double().cpu())
            columns = unfold(maps, conv.kernel_size, stride=conv.stride).cpu()
            by_map = columns.view(len(piece), k, q, -1).permute(1, 2, 0, 3).flatten(2)  # (k, q, b·positions)
            patches.add_((by_map @ by_map.transpose(1, 2)).double())

    count = run_batches(network, batches, add)
    if not count:
        raise ValueError("there are no images to rank capsule types by")
    height, width = network.config.grid
    return Moments(capsules / count, patches / (count * height * width))


def rank_types(network: FastCapsNet, by: Ranking, moments: Moments | None = None, seed: int = 0) -> Tensor:
    """Return the importance of each capsule type ``(types)``, float64; larger is more important.

    Args:
        network: a folded network.
        by: ``"energy"`` of the folded contribution, ``"magnitude"`` of kernel and folded weights, or ``"random"``.
        moments: result of `measure_moments`; for the energy only.
        seed: seed of the random order.
    """
    config = network.config
    types, dim = config.capsule_types, config.lower_dimension
    if _checked(by, moments) == "random":
        return torch.rand(types, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    weight = network.routing.weight.detach().cpu().double().view(config.lower_capsules, dim, -1)  # (i, d, j·e)
    if moments is None:
        kernel = network.primary.conv.weight.detach().cpu().double()  # (types·d, k, h, w)
        own: Tensor = kernel.square().sum((1, 2, 3)).view(types, dim).sum(1)
        return own.sqrt() * weight.square().sum((1, 2)).view(-1, types).sum(0).sqrt()
    energy = torch.einsum("idc,idf,ifc->i", weight, moments.capsules, weight)
    return energy.view(-1, types).sum(0)


def rank_maps(
    network: FastCapsNet, by: Ranking, types: Tensor, moments: Moments | None = None, seed: int = 0
) -> Tensor:
    """Return the importance of each stem map for the kept capsule types ``(maps)``, float64.

    Args:
        network: a folded network.
        by: as for `rank_types`; the magnitude of a map is that of its kernels in the stem and in PrimaryCapsules.
        types: indices of the capsule types that are kept ``(m)``.
        moments: as for `rank_types`.
        seed: seed of the random order.
    """
    config, conv = network.config, network.primary.conv
    if _checked(by, moments) == "random":
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(config.stem_channels, dtype=torch.float64, generator=generator)
    kernel = conv.weight.detach().cpu().double()  # (types·d, k, h, w)
    kernel = kernel.view(config.capsule_types, -1, *kernel.shape[1:])[types]  # (m, d, k, h, w)
    if moments is None:
        own: Tensor = network.stem.conv.weight.detach().cpu().double().square().sum((1, 2, 3)).sqrt()
        return own * kernel.square().sum((0, 1, 3, 4)).sqrt()
    pixels = kernel.flatten(3)  # (m, d, k, q)
    energy = torch.stack([torch.einsum("dkq,kqp,dkp->k", one, moments.patches, one) for one in pixels])  # (m, k)
    share = energy / energy.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return rank_types(network, by, moments)[types] @ share


def _checked(by: str, moments: Moments | None) -> str:
    if by not in RANKINGS:
        raise ValueError(f"by is {by!r}, expected one of {', '.join(RANKINGS)}")
    if (by == "energy") != (moments is not None):
        words = "needs" if by == "energy" else "takes no"
        raise ValueError(f"ranking by {by} {words} moments: give what measure_moments returns for energy only")
    return by
