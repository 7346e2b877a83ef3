"""Convolution without padding, one output at a time."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def convolution(maps: Array, weight: Array, bias: Array, stride: int) -> Array:
    """Maps (b c h w), weights (o c k k) and bias (o) to (b o h' w')."""
    images, channels, height, width = maps.shape
    outputs, _, size, _ = weight.shape
    result = np.zeros((images, outputs, (height - size) // stride + 1, (width - size) // stride + 1))
    for image in range(images):
        for output in range(outputs):
            for y in range(result.shape[2]):
                for x in range(result.shape[3]):
                    total = bias[output]
                    for channel in range(channels):
                        top, left = y * stride, x * stride
                        patch = maps[image, channel, top : top + size, left : left + size]
                        total += float(np.sum(patch * weight[output, channel]))
                    result[image, output, y, x] = total
    return result
