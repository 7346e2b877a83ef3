"""Convolutions as one matrix product, where ordinary convolution spends its time on reordering data.

The stem: with one or three channels, a convolution has little to sum over. The patches under the kernel are copied side
by side, which for so few channels takes little memory beside the result. One product writes the maps, after ReLU, in
the memory order ``(h w b o)`` that the next layer expects.

PrimaryCaps of a few images: ordinary convolution reorders a kernel of twenty megabytes in every call. Here it is cached
in the order of the patches.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Outputs of the stem computed at a time.
CHUNK_ELEMENTS = 2**18

# Entries of patches of PrimaryCaps copied at a time.
PATCH_ELEMENTS = 2**22


def im2col_conv2d_relu(images: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Return ``relu(conv2d(images, weight, bias, stride))``; differentiable once, on weight and bias only.

    Args:
        images: ``(b c h w)``, without gradient.
        weight: ``(o c k k)``.
        bias: ``(o)``.
        stride: of the convolution.

    Returns:
        ``(b o h' w')``, in memory ``(h' w' b o)``.
    """
    if images.requires_grad and torch.is_grad_enabled():
        raise ValueError("images require a gradient, expected none: use ordinary convolution")
    maps: Tensor = _Im2colConvRelu.apply(  # type: ignore[no-untyped-call]
        images, weight, bias, stride
    )  # (h', w', b, o)
    return maps.permute(2, 3, 0, 1)  # (b, o, h', w')


def im2col_kernel(weight: Tensor) -> Tensor:
    """Return a kernel ``(o c k k)`` in the order of `im2col_conv2d`, ``(o k k c)``."""
    return weight.permute(0, 2, 3, 1).contiguous()


def im2col_conv2d(maps: Tensor, kernel: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """Return ``conv2d(maps, weight, bias, stride)`` without gradient.

    Args:
        maps: ``(b c h w)`` in any memory order; channels last is fastest.
        kernel: ``(o k k c)``, from `im2col_kernel`.
        bias: ``(o)``.
        stride: of the convolution.

    Returns:
        ``(b o h' w')``, in memory ``(b h' w' o)``.
    """
    o, size = kernel.shape[:2]
    with torch.no_grad():
        windows = maps.permute(0, 2, 3, 1).unfold(1, size, stride).unfold(2, size, stride)  # (b, h', w', c, k, k)
        ordered = windows.permute(0, 1, 2, 4, 5, 3)  # (b, h', w', k, k, c)
        result = maps.new_empty(*ordered.shape[:3], o)
        matrix = kernel.flatten(1).t()  # (k·k·c, o)
        images = max(1, PATCH_ELEMENTS // max(1, ordered.shape[1:].numel()))
        for some, out in zip(torch.split(ordered, images), torch.split(result, images), strict=True):
            torch.mm(some.reshape(-1, len(matrix)), matrix, out=out.view(-1, o))
        if bias is not None:
            result += bias
    return result.permute(0, 3, 1, 2)  # (b, o, h', w')


def _patches(images: Tensor, size: int, stride: int) -> Tensor:
    """Return the patches of images ``(b c h w)`` at each position, and a 1 for the bias: ``(h' w' b c·k·k+1)``."""
    windows = images.unfold(2, size, stride).unfold(3, size, stride)  # (b, c, h', w', k, k)
    ordered = windows.permute(2, 3, 0, 1, 4, 5)  # (h', w', b, c, k, k)
    patches = images.new_empty(*ordered.shape[:3], ordered.shape[3:].numel() + 1)
    patches[..., :-1].view(ordered.shape).copy_(ordered)
    patches[..., -1] = 1
    return patches


def _pieces(patches: Tensor, outputs: int) -> list[slice]:
    """Return rows of positions whose outputs together stay in the cache of the processor until ReLU."""
    rows = max(1, CHUNK_ELEMENTS // max(1, patches.shape[1:3].numel() * outputs))
    return [slice(start, start + rows) for start in range(0, len(patches), rows)]


class _Im2colConvRelu(torch.autograd.Function):
    """Images ``(b c h w)``, weights ``(o c k k)`` and bias ``(o)`` to ``(h' w' b o)``."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        patches = _patches(images, weight.shape[-1], stride)  # (h', w', b, c·k·k+1)
        matrix = torch.cat([weight.flatten(1), bias.unsqueeze(1)], 1).t()  # (c·k·k+1, o)
        maps = images.new_empty(*patches.shape[:3], len(weight))  # (h', w', b, o)
        for rows in _pieces(patches, len(weight)):
            torch.mm(patches[rows].flatten(0, 2), matrix, out=maps[rows].flatten(0, 2))
            maps[rows].relu_()
        ctx.stride = stride
        ctx.save_for_backward(images, weight, maps)
        return maps

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_maps: Tensor) -> tuple[None, Tensor, Tensor, None]:
        images, weight, maps = ctx.saved_tensors
        patches = _patches(images, weight.shape[-1], ctx.stride)  # (h', w', b, c·k·k+1)
        on_matrix = weight.new_zeros(patches.shape[3], len(weight))  # (c·k·k+1, o)
        # In pieces, so that the gradient before ReLU is never held whole.
        for rows in _pieces(patches, len(weight)):
            before_relu = torch.ops.aten.threshold_backward(on_maps[rows], maps[rows], 0)
            on_matrix.addmm_(patches[rows].flatten(0, 2).t(), before_relu.flatten(0, 2))
        on_weight = on_matrix[:-1].t().contiguous()  # (o, c·k·k)
        return None, on_weight.view_as(weight), on_matrix[-1], None
