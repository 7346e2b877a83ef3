"""Merge BatchNorm into adjacent convolutions, for networks that are not trained any more."""

import copy
from typing import TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fastcaps.kernels import is_changed
from fastcaps.nn.convolutional import PrimaryCapsules, Stem


def fuse_batch_norm(model: nn.Module, *, sequential: bool = False) -> None:
    """Merge BatchNorm layers into adjacent convolutions, in place, if the result is exactly the same function.

    A BatchNorm without running statistics is kept, and so is one next to a convolution with hooks or parametrizations.

    Args:
        model: a module in evaluation mode.
        sequential: also merge neighbors in `torch.nn.Sequential`, not only in `Stem` and `PrimaryCapsules`. That is
            exact as long as each Sequential is called as a whole. A BatchNorm before a convolution is merged if the
            convolution has no padding: padding adds zeros that the BatchNorm would have shifted. `torch.nn.Identity`
            takes the place of a merged BatchNorm, so that the paths of modules stay the same.
    """
    for module in model.modules():
        if isinstance(module, Stem | PrimaryCapsules):
            for block in module.layers if isinstance(module, Stem) else ():
                _fuse_neighbors(cast(nn.Sequential, block))
            if _is_plain(module.conv) and _is_fixed(module.norm):
                module.conv, module.norm = fuse_conv_bn_eval(module.conv.eval(), module.norm.eval()), None
        elif sequential and type(module) is nn.Sequential:
            _fuse_neighbors(module)


def _fuse_neighbors(layers: nn.Sequential) -> None:
    for index in range(len(layers) - 1):
        first, second = layers[index], layers[index + 1]
        if _is_plain(first) and _is_fixed(second):
            layers[index] = fuse_conv_bn_eval(first.eval(), second.eval())
            layers[index + 1] = nn.Identity()
        elif _is_fixed(first) and _is_plain(second) and _has_no_padding(second) and second.groups == 1:
            layers[index] = nn.Identity()
            layers[index + 1] = _fuse_before(first, second)


def _is_plain(module: nn.Module | None) -> TypeGuard[nn.Conv2d]:
    return type(module) is nn.Conv2d and not is_changed(module)


def _is_fixed(module: nn.Module | None) -> TypeGuard[nn.BatchNorm2d]:
    return type(module) is nn.BatchNorm2d and module.running_mean is not None and not is_changed(module)


def _has_no_padding(conv: nn.Conv2d) -> bool:
    return conv.padding in ("valid", (0, 0))


@torch.no_grad()
def _fuse_before(norm: nn.BatchNorm2d, conv: nn.Conv2d) -> nn.Conv2d:
    """Return ``conv(norm(x))`` as one convolution: norm(x) = scale · x + shift scales kernel and bias."""
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
