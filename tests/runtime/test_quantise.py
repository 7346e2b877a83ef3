"""Bytes for numbers: how far off, and that no processor saturates."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastcaps.runtime.quantise import LARGEST_WEIGHT, Ranges, Scale, quantised_weight

numbers = st.floats(-1e4, 1e4, width=32)


@given(least=numbers, greatest=numbers)
def test_a_range_is_spread_over_a_byte_and_zero_is_exact(least, greatest):
    least, greatest = min(least, greatest), max(least, greatest)
    ranges = Ranges((0, 1), (least, greatest), (0, 0), (0, 0))
    scale, zero = ranges.scale("maps")
    assert scale > 0
    first, last = float(scale) * (0 - int(zero)), float(scale) * (255 - int(zero))
    # The ends are met to half a step, and zero is one of the steps.
    assert first <= min(least, 0) + 0.51 * scale
    assert last >= max(greatest, 0) - 0.51 * scale


def test_an_activation_that_is_always_zero():
    assert Ranges((0, 1), (0, 1), (0, 0), (0, 0)).scale("channels") == Scale(np.float32(1), np.uint8(0))


@given(st.integers(0, 2**31), st.integers(0, 3))
def test_weights_by_channel(seed, axis):
    random = np.random.default_rng(seed)
    weight = random.normal(size=(4, 3, 2, 5)).astype(np.float32)
    weight *= np.expand_dims(10.0 ** random.integers(-3, 4, weight.shape[axis]), tuple(range(1, 4 - axis)))
    weight[0, 0] = 0
    steps, scales = quantised_weight(weight, axis)
    assert steps.dtype == np.int8
    shape = [1] * 4
    shape[axis] = -1
    assert np.all(np.abs(steps * scales.reshape(shape) - weight) <= 0.501 * scales.reshape(shape))
    # Without VNNI two products are added up in sixteen bits.
    assert np.abs(steps.astype(int)).max() <= LARGEST_WEIGHT
    assert 2 * 255 * LARGEST_WEIGHT <= 2**15 - 1
