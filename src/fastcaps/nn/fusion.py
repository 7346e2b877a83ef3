"""Merging BatchNorm into the convolution beside it, for networks that are not trained any more."""

import copy
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fastcaps.nn.convolutional import PrimaryCapsules, Stem


def fuse_batch_norm(model: nn.Module) -> None:
    """Merge every BatchNorm that stands directly before or after a convolution into it, in place, where that is exact.

    Neighbors are those in `torch.nn.Sequential`, and the parts of `Stem` and `PrimaryCapsules`. A BatchNorm after a
    convolution can always be merged. One before it can be merged if the convolution has no padding: padding adds zeros
    that the BatchNorm would have shifted. In a Sequential `torch.nn.Identity` takes the place of a merged BatchNorm, so
    that paths stay what they are. A BatchNorm without running statistics stays.
    """
    for module in model.modules():
        if isinstance(module, Stem | PrimaryCapsules) and module.norm is not None:
            module.conv, module.norm = fuse_conv_bn_eval(module.conv.eval(), module.norm.eval()), None
        elif isinstance(module, nn.Sequential):
            _fuse_neighbors(module)


def _fuse_neighbors(layers: nn.Sequential) -> None:
    for index in range(len(layers) - 1):
        first, second = layers[index], layers[index + 1]
        if isinstance(first, nn.Conv2d) and _is_fixed(second):
            layers[index] = fuse_conv_bn_eval(first.eval(), second.eval())
            layers[index + 1] = nn.Identity()
        elif _is_fixed(first) and isinstance(second, nn.Conv2d) and _has_no_padding(second) and second.groups == 1:
            layers[index] = nn.Identity()
            layers[index + 1] = _fuse_before(first, second)


def _is_fixed(module: nn.Module) -> TypeGuard[nn.BatchNorm2d]:
    return isinstance(module, nn.BatchNorm2d) and module.running_mean is not None


def _has_no_padding(conv: nn.Conv2d) -> bool:
    return conv.padding in ("valid", (0, 0))


@torch.no_grad()
def _fuse_before(norm: nn.BatchNorm2d, conv: nn.Conv2d) -> nn.Conv2d:
    """``conv(norm(x))`` as one convolution: as norm(x) = scale · x + shift, scale its kernel and shift its bias."""
    assert isinstance(norm.running_mean, Tensor)
    assert isinstance(norm.running_var, Tensor)
    scale = torch.rsqrt(norm.running_var + norm.eps)  # (c)
    scale = scale if norm.weight is None else scale * norm.weight
    shift = -norm.running_mean * scale  # (c)
    shift = shift if norm.bias is None else shift + norm.bias
    fused = copy.deepcopy(conv).eval()
    fused.weight.copy_(conv.weight * scale[:, None, None])
    added = torch.einsum("ochw,c->o", conv.weight, shift)
    fused.bias = nn.Parameter(added if conv.bias is None else conv.bias + added)
    return fused
