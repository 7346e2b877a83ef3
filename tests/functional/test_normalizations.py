"""Squash and the normalizations against equations 1 and 2."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests import reference

from fastcaps import functional as F
from fastcaps.functional.normalizations import Normalization, Unnormalized
from fastcaps.functional.squashing import squash_gradient

numbers = st.floats(-1e3, 1e3, allow_subnormal=False)
rows = hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=7), elements=numbers)


@given(rows)
def test_squash_is_equation_1(vectors):
    actual = F.squash(torch.from_numpy(vectors))
    for one, vector in zip(actual, vectors, strict=True):
        np.testing.assert_allclose(one, reference.squash(vector), rtol=1e-12, atol=1e-300)
    assert (torch.linalg.vector_norm(actual, dim=-1) < 1).all()


@given(rows, st.sampled_from([(0.0, 1.0), (0.1, 0.7), (-2.0, 5.0)]))
def test_max_min_is_equation_2(logits, bounds):
    actual = F.MaxMin(*bounds)(torch.from_numpy(logits))
    for one, row in zip(actual, logits, strict=True):
        np.testing.assert_allclose(one, reference.max_min(row, *bounds), rtol=1e-9, atol=1e-12)
    assert actual.min() >= bounds[0]
    assert actual.max() <= bounds[1]


def test_a_constant_row_gives_the_upper_bound_and_no_gradient():
    logits = torch.tensor([[2.0, 2.0, 2.0], [0.0, 1.0, 0.5]], requires_grad=True)
    actual = F.MaxMin(0.2, 0.8)(logits)
    torch.testing.assert_close(actual, torch.tensor([[0.8, 0.8, 0.8], [0.2, 0.8, 0.5]]))
    (actual * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert logits.grad is not None
    assert (logits.grad[0] == 0).all()
    assert (logits.grad[1] != 0).any()


@given(rows)
def test_leaky_softmax_has_one_more_logit_that_is_zero(logits):
    actual = F.LeakySoftmax()(torch.from_numpy(logits))
    for one, row in zip(actual, logits, strict=True):
        np.testing.assert_allclose(one, reference.leaky_softmax(row), rtol=1e-9, atol=1e-300)
    assert (actual.sum(-1) <= 1).all()


@given(rows)
def test_softmax_is_over_the_classes(logits):
    actual = F.Softmax()(torch.from_numpy(logits))
    for one, row in zip(actual, logits, strict=True):
        np.testing.assert_allclose(one, reference.softmax(row), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("normalization", [F.MaxMin(0.1, 0.9), F.Softmax(), F.LeakySoftmax(), Unnormalized()], ids=repr)
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)], ids=["in memory order", "classes first in memory"])
def test_gradients_in_closed_form_equal_autograds(normalization, order):
    back = [order.index(axis) for axis in range(3)]
    logits = torch.randn(3, 4, 5, dtype=torch.float64).permute(order).contiguous().permute(back).requires_grad_()
    direction = torch.randn(3, 4, 5, dtype=torch.float64)
    (expected,) = torch.autograd.grad(normalization(logits), logits, direction)
    actual = normalization.gradient(logits.detach(), direction)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)
    with torch.enable_grad():
        torch.testing.assert_close(
            Normalization.gradient(normalization, logits.detach(), direction), expected, rtol=1e-12, atol=1e-14
        )


def test_squash_gradient_in_closed_form_equals_autograds():
    logits = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(3, 4, 5, dtype=torch.float64)
    (expected,) = torch.autograd.grad(F.squash(logits), logits, direction)
    torch.testing.assert_close(squash_gradient(logits.detach(), direction), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_is_squashed_to_zero_forward_and_backward(dtype):
    s = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    F.squash(s).sum().backward()
    assert s.grad is not None
    assert (s.grad == 0).all()
    assert (squash_gradient(s.detach(), torch.ones_like(s)) == 0).all()


@pytest.mark.parametrize("normalization", ["max_min", "softmax", "leaky_softmax"])
def test_what_is_not_a_number_stays_so(normalization):
    logits = torch.tensor([[torch.nan, 1.0, 2.0], [0.0, 1.0, 2.0]])
    actual = F.get_normalization(normalization)(logits)
    assert actual[0].isnan().any()
    assert actual[1].isfinite().all()
