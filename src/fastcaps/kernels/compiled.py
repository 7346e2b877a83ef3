"""The fast convolution as one opaque operator for ``torch.compile``.

Exporters get ordinary convolution, so that their output runs without fastcaps.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from fastcaps.kernels.convolution import FastConvolution
from fastcaps.kernels.im2col import im2col_conv2d_relu

# Maximum number of convolutions whose transformed kernels are cached, by the address of their weights.
_MOST_CACHED = 8
_cached: "OrderedDict[int, FastConvolution]" = OrderedDict()


@torch.library.custom_op("fastcaps::conv2d", mutates_args=())
def _conv2d(maps: Tensor, weight: Tensor, bias: Tensor | None, stride: int, always: bool) -> Tensor:
    """Return ``(b h' w' o)``."""
    fast = _cached.setdefault(weight.data_ptr(), FastConvolution())
    _cached.move_to_end(weight.data_ptr())
    if len(_cached) > _MOST_CACHED:
        _cached.popitem(last=False)
    with torch.no_grad():
        channels = fast.convolve(maps.detach(), weight.detach(), bias, stride, always=always)
        if channels is None:
            channels = torch.nn.functional.conv2d(maps, weight, bias, stride)
        return channels.permute(0, 2, 3, 1).contiguous()


@_conv2d.register_fake
def _(maps: Tensor, weight: Tensor, bias: Tensor | None, stride: int, always: bool) -> Tensor:
    size = weight.shape[2]
    height, width = ((side - size) // stride + 1 for side in maps.shape[2:])
    return maps.new_empty(maps.shape[0], height, width, weight.shape[0])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    maps, weight, bias, ctx.stride, _ = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(maps, weight)


def _backward(ctx: Any, on_result: Tensor) -> tuple[Tensor | None, ...]:
    maps, weight = ctx.saved_tensors
    needed = [*ctx.needs_input_grad[:2], ctx.has_bias and ctx.needs_input_grad[2]]
    gradients = torch.ops.aten.convolution_backward(
        on_result.permute(0, 3, 1, 2),
        maps,
        weight,
        [len(weight)] if ctx.has_bias else None,
        [ctx.stride] * 2,
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
        needed,
    )
    return (*(gradient if wanted else None for gradient, wanted in zip(gradients, needed, strict=True)), None, None)


_conv2d.register_autograd(_backward, setup_context=_save)


def compiled_conv2d(maps: Tensor, conv: torch.nn.Conv2d, *, always: bool = False) -> Tensor:
    """Return ``conv(maps)`` as one operator.

    Args:
        maps: ``(b c h w)``.
        conv: a convolution without padding, dilation and groups.
        always: as for `FastConvolution`.

    Returns:
        ``(b o h' w')``, in memory ``(b h' w' o)``.
    """
    by_position: Tensor = _conv2d(maps, conv.weight, conv.bias, conv.stride[0], always)  # (b, h', w', o)
    return by_position.permute(0, 3, 1, 2)


@torch.library.custom_op("fastcaps::conv2d_relu", mutates_args=())
def _conv2d_relu(images: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Return ``(h' w' b o)``; without gradient."""
    with torch.no_grad():
        return im2col_conv2d_relu(images.detach(), weight, bias, stride).permute(2, 3, 0, 1).contiguous()


@_conv2d_relu.register_fake
def _(images: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    height, width = ((side - weight.shape[2]) // stride + 1 for side in images.shape[2:])
    return images.new_empty(height, width, images.shape[0], weight.shape[0])


def compiled_conv2d_relu(images: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Return the result of `im2col_conv2d_relu` as one operator, without gradient."""
    by_position: Tensor = _conv2d_relu(images, weight, bias, stride)  # (h', w', b, o)
    return by_position.permute(2, 3, 0, 1)
