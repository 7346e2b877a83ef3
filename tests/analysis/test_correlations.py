"""Mean correlations in linear time against all pairs formed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests import reference

from fastcaps.analysis.correlations import (
    ClassCorrelations,
    mean_within_and_between,
    neighbors,
    pairwise_correlations,
    standardized_columns,
)


@st.composite
def labeled_columns(draw):
    """Columns of few different values, so that constant ones come up, with labels of up to four classes."""
    n, i = draw(st.integers(1, 9)), draw(st.integers(2, 6))
    # Sixteenths: exact in float32, and far enough apart that Pearson's denominator is not all rounding.
    columns = draw(arrays.arrays(np.int64, (n, i), elements=st.integers(0, 16))) / 16
    labels = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    return columns, labels


@given(labeled_columns())
def test_all_pairs(drawn):
    columns, labels = drawn
    expected = reference.mean_class_correlations(columns, labels, 4)
    sums = ClassCorrelations(columns.shape[1], 4).update(columns, np.array(labels))
    np.testing.assert_allclose(sums.between_classes(), expected, atol=1e-12)
    constant = [label for label, column in zip(labels, columns, strict=True) if len(set(column.tolist())) == 1]
    assert sums.constant.tolist() == [constant.count(k) for k in range(4)]
    assert (sums.counts + sums.constant).tolist() == [labels.count(k) for k in range(4)]


@given(labeled_columns(), st.data())
def test_pieces_in_any_order_give_the_same(drawn, data):
    columns, labels = drawn
    whole = ClassCorrelations(columns.shape[1], 4).update(columns, np.array(labels))
    cut = data.draw(st.integers(0, len(labels)))
    first = ClassCorrelations(columns.shape[1], 4).update(columns[:cut], np.array(labels[:cut], np.int64))
    second = ClassCorrelations(columns.shape[1], 4).update(columns[cut:], np.array(labels[cut:], np.int64))
    merged = second.merge(first)
    np.testing.assert_allclose(merged.between_classes(), whole.between_classes(), atol=1e-12)
    assert merged.counts.tolist() == whole.counts.tolist()


@given(labeled_columns(), st.data())
def test_given_columns_with_all_images(drawn, data):
    columns, labels = drawn
    master = data.draw(arrays.arrays(np.int64, (columns.shape[1], 4), elements=st.integers(0, 16))) / 16
    correlations = ClassCorrelations(columns.shape[1], 4).update(columns, np.array(labels)).with_columns(master)
    for row in range(4):
        for label in range(4):
            values = [
                reference.pearson(master[:, row], column)
                for column, own in zip(columns, labels, strict=True)
                if own == label
            ]
            defined = [value for value in values if not math.isnan(value)]
            expected = sum(defined) / len(defined) if defined else math.nan
            np.testing.assert_allclose(correlations[row, label], expected, atol=1e-12)


@given(labeled_columns())
def test_single_pairs(drawn):
    columns, labels = drawn
    correlations = pairwise_correlations(columns)
    for a in range(len(labels)):
        for b in range(len(labels)):
            np.testing.assert_allclose(correlations[a, b], reference.pearson(columns[a], columns[b]), atol=1e-12)


def test_one_image_has_no_correlation_within_its_class():
    sums = ClassCorrelations(3, 2).update(np.array([[0.0, 1, 2], [2, 0, 1], [0, 3, 1]]), np.array([0, 1, 1]))
    correlations = sums.between_classes()
    assert math.isnan(correlations[0, 0])
    assert np.isfinite(correlations[[0, 1, 1], [1, 0, 1]]).all()


def test_a_column_that_is_constant_up_to_rounding_of_its_mean_is_constant():
    assert np.isnan(standardized_columns(np.full((1, 1152), 0.1))).all()


def test_neighbors_and_means():
    matrix = np.array([[0.9, 0.2, 0.4], [0.2, np.nan, np.nan], [0.4, np.nan, 0.7]])
    assert [(other.label, other.correlation) for other in neighbors(matrix, 0)] == [(2, 0.4), (1, 0.2)]
    assert [other.label for other in neighbors(matrix, 1)] == [0]
    within, between = mean_within_and_between(matrix)
    assert within == pytest.approx(0.8)
    assert between == pytest.approx(0.3)
    assert all(math.isnan(value) for value in mean_within_and_between(np.full((2, 2), np.nan)))


def test_errors():
    with pytest.raises(ValueError, match=r"columns have shape \(2, 4\), expected \(3, 5\) for 3 labels"):
        ClassCorrelations(5, 2).update(np.zeros((2, 4)), np.array([0, 1, 1]))
