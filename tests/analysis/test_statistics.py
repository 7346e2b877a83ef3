"""Intervals and paired tests against values worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcaps.analysis import compare, proportion_interval


@given(st.integers(1, 5000), st.data())
def test_wilsons_interval_solves_its_equation(total, data):
    count = data.draw(st.integers(0, total))
    low, high = proportion_interval(count, total)
    share = count / total
    assert 0 <= low <= share <= high <= 1
    for bound in (low, high):
        if 1e-9 < bound < 1 - 1e-9 and abs(bound - share) > 1e-12:
            z = abs(share - bound) / math.sqrt(bound * (1 - bound) / total)
            assert z == pytest.approx(1.959964, rel=1e-5)


def test_mcnemar_counts_the_images_that_change_sides():
    truth = np.zeros(100, np.int64)
    old, new = truth.copy(), truth.copy()
    old[:3] = 1  # three that are wrong and become right
    new[3:13] = 1  # ten that were right and become wrong
    old[13], new[13] = 1, 2  # wrong in both ways
    comparison = compare(old, new, truth)
    assert (comparison.changed, comparison.gained, comparison.lost) == (14, 3, 10)
    assert comparison.difference == pytest.approx(-0.07)
    expected = 2 * sum(math.comb(13, k) for k in range(4)) / 2**13
    assert comparison.p_value == pytest.approx(expected)
    low, high = comparison.interval
    assert low < -0.07 < high
    same = compare(old, old, truth)
    assert (same.changed, same.p_value, same.difference) == (0, 1.0, 0.0)
    assert same.interval[0] < 0 < same.interval[1]


def test_errors():
    with pytest.raises(ValueError, match="3 of 2 is no proportion: expected a count from 0 to a total of at least 1"):
        proportion_interval(3, 2)
    with pytest.raises(ValueError, match=r"answers have shapes \(3,\) and \(2,\), the truth \(3,\): expected the same"):
        compare(np.zeros(3, np.int64), np.zeros(2, np.int64), np.zeros(3, np.int64))
