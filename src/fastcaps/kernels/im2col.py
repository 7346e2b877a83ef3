"""Convolutions as one matrix product, where ordinary convolution spends its time on reordering data.

The stem: with one or three channels, a convolution has little to sum over. The patches under the kernel are copied side
by side, which for so few channels takes little memory beside the result. One product writes the maps, after ReLU, in
the memory order ``(h w b o)`` that the next layer expects.

PrimaryCaps of a few images: ordinary convolution reorders a kernel of twenty megabytes in every call. Here it is cached
in the order of the patches.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastcaps._products import large_products

# Outputs of the stem computed at a time.
CHUNK_ELEMENTS = 2**19

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


class _Patches:
    """The patches of images ``(b c h w)`` at each position, and a 1 for the bias.

    They are copied a few rows of positions at a time, so that they are still in the cache of the processor when they
    are multiplied, and their outputs until ReLU. Images come last, so that numbers are copied many at a time.
    """

    def __init__(self, images: Tensor, weight: Tensor, stride: int) -> None:
        outputs, size = len(weight), weight.shape[-1]
        windows = images.permute(1, 2, 3, 0).contiguous().unfold(1, size, stride).unfold(2, size, stride)
        self._ordered = windows.permute(0, 4, 5, 1, 2, 3)  # (c, k, k, h', w', b)
        self.shape = self._ordered.shape[3:]  # (h', w', b)
        self._row = self.shape[1:].numel()
        self._rows = max(1, min(self.shape[0], CHUNK_ELEMENTS // max(1, self._row * outputs)))
        self._copy = images.new_ones(weight[0].numel() + 1, self._rows * self._row)  # (c·k·k+1, n)

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows of positions, and their patches ``(n c·k·k+1)``, valid until the next are requested."""
        for start in range(0, self.shape[0], self._rows):
            some = self._ordered[:, :, :, start : start + self._rows]
            copy = self._copy[:, : some.shape[3] * self._row]
            copy[:-1].view(some.shape).copy_(some)
            yield slice(start, start + self._rows), copy.t()


class _Im2colConvRelu(torch.autograd.Function):
    """Images ``(b c h w)``, weights ``(o c k k)`` and bias ``(o)`` to ``(h' w' b o)``."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        all_patches = _Patches(images, weight, stride)
        matrix = torch.cat([weight.flatten(1), bias.unsqueeze(1)], 1).t()  # (c·k·k+1, o)
        maps = images.new_empty(*all_patches.shape, len(weight))  # (h', w', b, o)
        for rows, patches in all_patches:
            with large_products():
                torch.mm(patches, matrix, out=maps[rows].flatten(0, 2))
            maps[rows].relu_()
        ctx.stride = stride
        ctx.save_for_backward(images, weight, maps)
        return maps

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_maps: Tensor) -> tuple[None, Tensor, Tensor, None]:
        images, weight, maps = ctx.saved_tensors
        on_matrix = weight.new_zeros(weight[0].numel() + 1, len(weight))  # (c·k·k+1, o)
        # In pieces, so that the gradient before ReLU is never held whole.
        for rows, patches in _Patches(images, weight, ctx.stride):
            before_relu = torch.ops.aten.threshold_backward(on_maps[rows], maps[rows], 0)
            with large_products():
                on_matrix.addmm_(patches.t(), before_relu.flatten(0, 2))
        on_weight = on_matrix[:-1].t().contiguous()  # (o, c·k·k)
        return None, on_weight.view_as(weight), on_matrix[-1], None
