"""Bytes for numbers: how far off, and that no processor saturates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcaps.exporting.quantize import CAPSULES, LARGEST_FOLDED, LARGEST_WEIGHT, Ranges, quantized_weight


@given(st.lists(st.just(0.0) | st.floats(2**-90, 1e4, width=32), min_size=2))
def test_ranges_are_spread_over_a_byte_and_zero_is_exact(reach):
    ranges = Ranges(reach[0], np.array(reach[1:], np.float32))
    scale, zero = ranges.maps_scale
    assert zero == 0
    assert scale > 0
    np.testing.assert_allclose(255 * scale, reach[0] or 255, rtol=1e-6)
    np.testing.assert_allclose(127 * ranges.channel_steps, [value or 127 for value in reach[1:]], rtol=1e-6)


def test_components_of_capsules_take_seven_bits():
    steps = np.rint(np.linspace(-1, 1, 101) / CAPSULES.scale) + CAPSULES.zero
    assert (steps.min(), steps.max()) == (1, 127)


@pytest.mark.parametrize(("largest", "met"), [(LARGEST_WEIGHT, 255), (LARGEST_FOLDED, 127)])
def test_two_products_fit_into_sixteen_bits(largest, met):
    assert 2 * largest * met <= 2**15 - 1


@given(st.integers(0, 2**31), st.integers(0, 3), st.sampled_from([LARGEST_WEIGHT, LARGEST_FOLDED]))
def test_weights_by_channel(seed, axis, largest):
    random = np.random.default_rng(seed)
    weight = random.normal(size=(4, 3, 2, 5)).astype(np.float32)
    weight *= np.expand_dims(10.0 ** random.integers(-3, 4, weight.shape[axis]), tuple(range(1, 4 - axis)))
    weight[0, 0] = 0
    steps, scales = quantized_weight(weight, axis, largest)
    assert steps.dtype == np.int8
    shape = [1] * 4
    shape[axis] = -1
    assert np.all(np.abs(steps * scales.reshape(shape) - weight) <= 0.501 * scales.reshape(shape))
    assert np.abs(steps.astype(int)).max() == largest
