"""Fast convolutions for processors: Winograd's method, im2col, and the choice between them."""

from fastcaps.kernels.compiled import compiled_conv2d, compiled_conv2d_relu
from fastcaps.kernels.convolution import FastConvolution, is_changed, is_simple
from fastcaps.kernels.im2col import im2col_conv2d, im2col_conv2d_relu, im2col_kernel
from fastcaps.kernels.winograd import order_for_training

__all__ = [
    "FastConvolution",
    "is_changed",
    "is_simple",
    "compiled_conv2d",
    "compiled_conv2d_relu",
    "im2col_conv2d",
    "im2col_conv2d_relu",
    "im2col_kernel",
    "order_for_training",
]
