"""The choice of a fast convolution for a layer, and the cache of its transformed kernel."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fastcaps._tracing import is_plain
from fastcaps.kernels import winograd
from fastcaps.kernels.im2col import im2col_conv2d, im2col_kernel

# A cached kernel is checked against every 251st weight: a prime, so that the sample includes every channel. A small
# kernel is compared completely.
_SAMPLE = 251
_FEW = 2**17


def is_changed(module: nn.Module) -> bool:
    """Return whether hooks or parametrizations change what a module computes."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "parametrizations")
    return any(getattr(module, name, None) for name in hooks)


def is_simple(conv: nn.Conv2d) -> bool:
    """Return whether a convolution has a square kernel, one stride, and no padding, dilation, groups or hooks."""
    plain = type(conv) is nn.Conv2d and conv.padding in ((0, 0), "valid") and conv.dilation == (1, 1)
    plain = plain and not is_changed(conv)
    return plain and conv.groups == 1 and conv.stride[0] == conv.stride[1] and len(set(conv.kernel_size)) == 1


class _Cached(NamedTuple):
    key: tuple[Any, ...]
    sample: Tensor
    kernel: Tensor


class FastConvolution:
    """Compute an `nn.Conv2d` by Winograd's method, or for few images by im2col; not part of the state of the network.

    Without gradients, the kernel is transformed once and cached until the weights change. A change shows in their
    version, address, type or device. Writing to ``weight.data`` changes none of these; a sample of the values detects
    it for all but single entries of large kernels. Buffers are cached, too. Copies and pickles contain neither.
    """

    def __init__(self) -> None:
        self._cached: dict[int | None, _Cached] = {}
        self._pool = winograd.WorkspacePool()

    def __call__(self, maps: Tensor, conv: nn.Conv2d, *, always: bool = False) -> Tensor | None:
        """Return ``conv(maps)``, or None where ordinary convolution is faster or the only choice.

        Args:
            maps: ``(b c h w)``.
            conv: a convolution; only one that `is_simple` is computed here.
            always: use Winograd's method even if another is faster.

        Returns:
            ``(b o h' w')``, in memory ``(b h' w' o)``.
        """
        if not is_simple(conv):
            return None
        return self.convolve(maps, conv.weight, conv.bias, conv.stride[0], always=always)

    def convolve(
        self, maps: Tensor, weight: Tensor, bias: Tensor | None, stride: int, *, always: bool = False
    ) -> Tensor | None:
        """Return the same, given weights ``(o c k k)``, bias ``(o)`` and stride."""
        if not is_plain(weight) or weight.dtype != maps.dtype or maps.ndim != 4:
            return None
        needs = [tensor.requires_grad for tensor in (maps, weight, bias) if tensor is not None]
        training = torch.is_grad_enabled() and any(needs)
        # Users of float64 need exact results.
        if not always and maps.dtype != torch.float32:
            return None
        o, c, size, _ = weight.shape
        side = (maps.shape[2], maps.shape[3])
        if always:
            tile = winograd.best_tile(size, stride, side)
        else:
            tile = winograd.choose_tile(size, stride, side, c, o, len(maps), maps.device, training)
        if training:
            self._cached.clear()
            if tile is None:
                return None
            return winograd.winograd_conv2d(maps, weight, bias, stride, tile, self._pool)
        # Weights made in inference mode have no version counter.
        if weight.is_inference():
            return None
        if tile is None:
            few = 0 < len(maps) <= winograd.FEW and not always and maps.shape[1] == c and min(side) >= size
            return im2col_conv2d(maps, self._kernel(weight, stride, None), bias, stride) if few else None
        kernel = self._kernel(weight, stride, tile)
        return winograd.winograd_conv2d_transformed(maps, kernel, bias, size, tile, self._pool)

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: the cache can be recomputed."""
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start with an empty cache."""
        self.__init__()  # type: ignore[misc]

    def _kernel(self, weight: Tensor, stride: int, tile: int | None) -> Tensor:
        """Return the kernel transformed for a tile, or for im2col when ``tile`` is None."""
        key = (weight._version, weight.data_ptr(), weight.dtype, weight.shape, weight.stride(), stride)
        in_memory = weight.detach().as_strided((weight.numel(),), (1,))
        sample = in_memory if len(in_memory) <= _FEW else in_memory[::_SAMPLE]
        cached = self._cached.get(tile)
        if cached is None or cached.key != key or not torch.equal(cached.sample, sample):
            exact = weight.detach()
            kernel = im2col_kernel(exact) if tile is None else winograd.transform_kernel(exact, stride, tile)
            cached = self._cached[tile] = _Cached(key, sample.clone(), kernel)
        return cached.kernel
