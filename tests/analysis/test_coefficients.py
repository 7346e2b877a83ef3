"""Histograms, the order of positions, and the containers' rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import reference

from fastcaps import CapsNetConfig
from fastcaps.analysis.coefficients import CoefficientHistogram, by_position, normalized_containers
from fastcaps.master import MasterAccumulator


@given(st.integers(1, 5), st.integers(1, 3), st.data())
def test_every_coefficient_is_counted_once_in_its_bin(b, r, data):
    # Tenths of a bin's width away from all edges, and both ends.
    places = data.draw(st.lists(st.integers(0, 9), min_size=b * r * 6, max_size=b * r * 6))
    trace = (torch.tensor(places, dtype=torch.float64).reshape(b, r, 3, 2) + 0.5) / 10
    histogram = CoefficientHistogram(r, bins=10)
    half = b // 2
    histogram.update(trace[:half]).merge(CoefficientHistogram(r, bins=10).update(trace[half:]))
    for k in range(r):
        own = [int(value * 10) for value in trace[:, k].flatten().tolist()]
        assert histogram.counts[k].tolist() == [own.count(bin_) for bin_ in range(10)]
    np.testing.assert_allclose(histogram.shares.sum(1), 1)


def test_the_ends_belong_to_the_outer_bins():
    trace = torch.tensor([0.0, 1.0, 1.0 + 1e-7, 0.1]).reshape(1, 1, 2, 2)
    histogram = CoefficientHistogram(1).update(trace)
    assert histogram.counts.sum() == 4
    assert histogram.counts[0, [0, -1]].tolist() == [1, 2]
    assert histogram.share_around(0.1, 0.05).tolist() == [0.25]


def test_bounds_follow_the_network():
    wide = CoefficientHistogram.of(CapsNetConfig.mnist(lower=-1.0, upper=2.0))
    assert (wide.edges[0], wide.edges[-1], len(wide.counts)) == (-1.0, 2.0, 3)
    soft = CoefficientHistogram.of(CapsNetConfig.mnist(normalization="softmax", iterations=2))
    assert (soft.edges[0], soft.edges[-1], len(soft.counts)) == (0.0, 1.0, 2)


def test_positions_are_ordered_as_the_capsules_are():
    config = CapsNetConfig.for_images(40, 32, 3, classes=4, capsule_types=3)
    height, width = config.grid
    values = np.random.default_rng(0).random((config.lower_capsules, 4))
    maps = by_position(values, config)
    assert maps.shape == (4, 3, height, width)
    for y in range(height):
        for x in range(width):
            for t in range(3):
                assert maps[:, t, y, x].tolist() == values[(y * width + x) * 3 + t].tolist()


def test_containers_are_normalized_row_by_row():
    coefficients = torch.rand(6, 5, 3, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 2, 1, 2])
    master = MasterAccumulator(5, 3).update(coefficients, labels).compute()
    assert master.containers is not None
    rows = normalized_containers(master.containers, master)
    for k in range(3):
        mean = coefficients[labels == k].mean(0).numpy()
        np.testing.assert_allclose(rows[k], np.stack([reference.max_min(row) for row in mean]), atol=1e-12)
    np.testing.assert_allclose(rows.diagonal(axis1=0, axis2=2), master.values.numpy())


def test_errors():
    config = CapsNetConfig.mnist()
    with pytest.raises(ValueError, match=r"coefficients have shape \(1024, 10\), expected \(1152, 10\) for this net"):
        by_position(np.zeros((1024, 10)), config)
    with pytest.raises(ValueError, match=r"the trace has shape \(1, 2, 4, 3\), expected \(batch, 3, i, j\)"):
        CoefficientHistogram(3).update(torch.zeros(1, 2, 4, 3))
