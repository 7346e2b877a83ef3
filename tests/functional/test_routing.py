"""Routing against the paper's procedure in loops, and what must hold for all shapes."""

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fastcaps import functional as F
from fastcaps.functional import routing as routing_module

normalizations = st.sampled_from(["max_min", "softmax"])
bounds = st.sampled_from([(0.0, 1.0), (0.1, 0.7), (-1.0, 2.0)])


@st.composite
def votes_of_any_shape(draw: st.DrawFn, least_batch: int = 1) -> Tensor:
    b, i = draw(st.integers(least_batch, 4)), draw(st.integers(1, 9))
    j, e = draw(st.integers(2, 6)), draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**31))
    scale = draw(st.sampled_from([1e-3, 0.1, 1.0, 10.0]))
    return scale * torch.randn(b, i, j, e, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(votes_of_any_shape(), st.integers(1, 5), normalizations, bounds)
def test_dynamic_routing_follows_the_procedure(votes, iterations, normalization, bounds):
    found = F.dynamic_routing(votes, iterations, normalization, *bounds)
    trace = F.routing_trace(votes, iterations, normalization, *bounds)
    for k in range(len(votes)):
        capsules, used = reference.routing_procedure(votes[k].numpy(), iterations, normalization, *bounds)
        np.testing.assert_allclose(found.capsules[k], capsules, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(found.coefficients[k], used[-1], rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(trace[k], used, rtol=1e-7, atol=1e-9)
