"""Routing against the paper's procedure in loops, and what must hold for all shapes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from torch import Tensor

from fastcaps import functional as F
from fastcaps.functional import routing as routing_module

normalizations = st.sampled_from(["max_min", "softmax", "leaky_softmax"])
bounds = st.sampled_from([(0.0, 1.0), (0.1, 0.7), (-1.0, 2.0)])


def norm(name, lower=0.0, upper=1.0):
    return F.get_normalization(name, lower=lower, upper=upper)


@st.composite
def votes_of_any_shape(draw: st.DrawFn, least_batch: int = 1) -> Tensor:
    b, i = draw(st.integers(least_batch, 4)), draw(st.integers(1, 9))
    j, e = draw(st.integers(2, 6)), draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**31))
    scale = draw(st.sampled_from([1e-3, 0.1, 1.0, 10.0]))
    return scale * torch.randn(b, i, j, e, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(votes_of_any_shape(), st.integers(1, 5), normalizations, bounds)
def test_dynamic_routing_follows_the_procedure(votes, iterations, normalization, bounds):
    actual = F.dynamic_routing(votes, iterations, norm(normalization, *bounds))
    trace = F.routing_trace(votes, iterations, norm(normalization, *bounds))
    for k in range(len(votes)):
        capsules, used = reference.routing_procedure(votes[k].numpy(), iterations, normalization, *bounds)
        np.testing.assert_allclose(actual.capsules[k], capsules, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(actual.coefficients[k], used[-1], rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(trace[k], used, rtol=1e-7, atol=1e-9)


@given(votes_of_any_shape(), normalizations)
def test_an_images_own_coefficients_reproduce_its_capsules(votes, normalization):
    """The paper's fast inference on training images."""
    routing = F.dynamic_routing(votes, 3, normalization)
    again = F.fast_routing(votes, routing.coefficients)
    torch.testing.assert_close(again, routing.capsules, rtol=1e-10, atol=1e-12)


@given(votes_of_any_shape(), st.data())
def test_fast_routing_follows_the_procedure(votes, data):
    b, i, j, _ = votes.shape
    shape = data.draw(st.sampled_from([(i, j), (b, i, j)]))
    coefficients = torch.rand(shape, dtype=torch.float64)
    actual = F.fast_routing(votes, coefficients)
    for k in range(b):
        one = coefficients if coefficients.ndim == 2 else coefficients[k]
        np.testing.assert_allclose(actual[k], reference.fast_routing(one.numpy(), votes[k].numpy()), atol=1e-12)


@given(votes_of_any_shape(), normalizations)
def test_the_first_iteration_is_uniform_and_routing_may_stop_there(votes, normalization):
    start = reference.start(normalization, votes.shape[2])
    trace = F.routing_trace(votes, 4, normalization)
    assert (trace[:, 0] == start).all()
    once = F.dynamic_routing(votes, 1, normalization)
    assert (once.coefficients == start).all()
    torch.testing.assert_close(once.capsules, F.squash(start * votes.sum(1)))


@given(votes_of_any_shape(), st.integers(1, 4), normalizations)
def test_a_traces_iteration_is_the_last_of_a_shorter_routing(votes, iteration, normalization):
    trace = F.routing_trace(votes, 4, normalization)
    shorter = F.dynamic_routing(votes, iteration, normalization)
    torch.testing.assert_close(trace[:, iteration - 1], shorter.coefficients)


@given(votes_of_any_shape(), normalizations, bounds)
def test_coefficients_keep_to_the_classes(votes, normalization, bounds):
    """Softmax rows sum to one over classes, not capsules; Max-Min stays in its bounds and reaches both."""
    lower, upper = bounds
    coefficients = F.dynamic_routing(votes, 3, norm(normalization, lower, upper)).coefficients
    if normalization == "leaky_softmax":
        assert (coefficients.sum(2) < 1 + 1e-12).all()
    elif normalization == "softmax":
        torch.testing.assert_close(coefficients.sum(2), torch.ones_like(coefficients[:, :, 0]))
    else:
        assert (coefficients >= lower).all()
        assert (coefficients <= upper).all()
        assert (coefficients.amin(2) == lower).all()
        assert (coefficients.amax(2) == upper).all()


@given(votes_of_any_shape(), normalizations, st.randoms(use_true_random=False))
def test_permuting_classes_permutes_the_result(votes, normalization, random):
    order = list(range(votes.shape[2]))
    random.shuffle(order)
    plain, permuted = (F.dynamic_routing(v, 3, normalization) for v in (votes, votes[:, :, order]))
    torch.testing.assert_close(permuted.capsules, plain.capsules[:, order])
    torch.testing.assert_close(permuted.coefficients, plain.coefficients[:, :, order])


@given(votes_of_any_shape(least_batch=2), normalizations, st.randoms(use_true_random=False))
def test_an_images_result_does_not_depend_on_its_batch(votes, normalization, random):
    whole = F.dynamic_routing(votes, 3, normalization)
    order = list(range(len(votes)))
    random.shuffle(order)
    shuffled = F.dynamic_routing(votes[order], 3, normalization)
    torch.testing.assert_close(shuffled.capsules, whole.capsules[order], rtol=1e-10, atol=1e-13)
    alone = F.dynamic_routing(votes[:1], 3, normalization)
    torch.testing.assert_close(alone.capsules, whole.capsules[:1], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalization", ["max_min", "softmax"])
def test_zero_votes_give_zeros_and_no_nan_forward_or_backward(normalization, dtype):
    votes = torch.zeros(2, 5, 3, 4, dtype=dtype, requires_grad=True)
    routing = F.dynamic_routing(votes, 3, normalization)
    (routing.capsules + torch.linalg.vector_norm(routing.capsules, dim=-1, keepdim=True)).sum().backward()
    assert (routing.capsules == 0).all()
    assert (routing.coefficients == reference.start(normalization, 3)).all()
    assert votes.grad is not None
    assert (votes.grad == 0).all()


def plain_loop(votes, iterations, normalization, lower, upper):
    """The procedure in ordinary differentiable operations."""
    b, i, j, _ = votes.shape
    logits = votes.new_zeros(b, i, j)
    coefficients = votes.new_full((b, i, j), reference.start(normalization, j))
    for t in range(iterations):
        capsules = F.squash((coefficients[..., None] * votes).sum(1))
        if t < iterations - 1:
            logits = logits + (votes * capsules[:, None]).sum(-1)
            coefficients = norm(normalization, lower, upper)(logits)
    return capsules


@given(votes_of_any_shape(), st.integers(1, 4), normalizations, bounds)
def test_the_closed_gradient_equals_autograd_through_the_loop(votes, iterations, normalization, bounds):
    direction = torch.randn(votes.shape[0], *votes.shape[2:], dtype=torch.float64)
    votes.requires_grad_()
    closed = F.dynamic_routing(votes, iterations, norm(normalization, *bounds)).capsules
    through = plain_loop(votes, iterations, normalization, *bounds)
    gradients, expected = (torch.autograd.grad(v, votes, direction)[0] for v in (closed, through))
    assert float((gradients - expected).abs().max()) <= 1e-12 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("normalization", ["max_min", "softmax"])
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_gradcheck(iterations, normalization):
    votes = torch.randn(2, 5, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: F.dynamic_routing(v, iterations, normalization).capsules, (votes,))


def test_ties_share_their_gradient_as_in_autograd():
    logits = torch.tensor([[1.0, 2.0, 2.0, 1.0, 1.5]], dtype=torch.float64, requires_grad=True)
    votes = torch.randn(1, 1, 5, 2, dtype=torch.float64)
    expected = torch.autograd.grad((F.MaxMin()(logits) * votes[0, 0, :, 0]).sum(), logits)[0]
    gradients = F.MaxMin().gradient(logits.detach(), votes[0, :, :, 0])
    torch.testing.assert_close(gradients, expected)


@pytest.fixture(params=["votes", "vote free"])
def votes_are(request, monkeypatch):
    """Both ways of `route_capsules`, whatever the sizes."""
    monkeypatch.setattr(routing_module, "VOTE_FREE", (0, 0) if request.param == "vote free" else (10**9, 1))
    return request.param


def test_votes_are_not_formed_for_many_images_of_short_capsules():
    def is_vote_free(b, d, e, device="cpu"):
        return routing_module.is_vote_free(torch.empty(b, 5, d, device=device), torch.empty(5, d, 3, e, device=device))

    assert is_vote_free(32, 4, 16)
    for case in ((31, 4, 16), (32, 8, 16), (128, 4, 15), (128, 4, 16, "meta"), (0, 4, 16)):
        assert not is_vote_free(*case), case


@pytest.mark.parametrize("pieces", [1, 2, 7])
@pytest.mark.parametrize("normalization", ["max_min", "softmax"])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_routing_capsules_in_pieces_equals_routing_their_votes(
    monkeypatch, normalization, pieces, votes_are, iterations
):
    b, i, d, j, e = 7, 6, 3, 4, 5
    monkeypatch.setattr(routing_module, "CHUNK_BYTES", -(-b // pieces) * i * j * e * 8)
    monkeypatch.setattr(routing_module, "PRODUCT_BYTES", -(-b // pieces) * i * d * 8)
    lower = torch.randn(b, i, d, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(i, d, j, e, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(b, j, e, dtype=torch.float64)
    actual = F.route_capsules(lower, weight, iterations, normalization)
    expected = F.dynamic_routing(F.prediction_vectors(lower, weight), iterations, normalization)
    torch.testing.assert_close(actual, expected)
    assert not actual.coefficients.requires_grad
    for one, other in zip(
        torch.autograd.grad(actual.capsules, (lower, weight), direction),
        torch.autograd.grad(expected.capsules, (lower, weight), direction),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(F.route_capsules(lower, weight, iterations, normalization), actual)
    votes = np.stack([reference.prediction_vectors(u, weight.detach().numpy()) for u in lower.detach().numpy()])
    np.testing.assert_allclose(F.prediction_vectors(lower, weight).detach(), votes, atol=1e-12)


def test_route_capsules_gradcheck_and_one_sided_gradients(votes_are):
    lower = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u, w: F.route_capsules(u, w).capsules, (lower, weight))
    capsules = F.route_capsules(lower.detach(), weight).capsules
    (gradient,) = torch.autograd.grad(capsules.sum(), weight)
    assert gradient.shape == weight.shape


@pytest.mark.slow
@pytest.mark.parametrize("normalization", ["max_min", "softmax"])
def test_the_gradient_keeps_nothing_alive(normalization):
    """An output held by its own graph would be a cycle that only the collector breaks."""
    import gc
    import weakref

    gc.collect()
    gc.disable()
    try:
        votes = torch.randn(2, 3, 4, 5, requires_grad=True)
        routing = F.dynamic_routing(votes, 3, normalization)
        routing.capsules.sum().backward()
        references = [weakref.ref(tensor) for tensor in routing]
        del routing
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("normalization", ["max_min", "softmax"])
@pytest.mark.parametrize("gradients", [True, False])
def test_an_empty_batch_is_a_batch(normalization, gradients):
    votes = torch.zeros(0, 5, 3, 4, requires_grad=gradients)
    routing = F.dynamic_routing(votes, 3, normalization)
    assert routing.capsules.shape == (0, 3, 4)
    assert routing.coefficients.shape == (0, 5, 3)
    lower, weight = torch.zeros(0, 5, 2, requires_grad=gradients), torch.randn(5, 2, 3, 4)
    routed = F.route_capsules(lower, weight, 3, normalization)
    assert routed.capsules.shape == (0, 3, 4)
    assert routed.coefficients.shape == (0, 5, 3)
    if gradients:
        routing.capsules.sum().backward()
        routed.capsules.sum().backward()
        assert votes.grad is not None
        assert votes.grad.shape == votes.shape


def test_the_gradient_in_float32_is_float32s():
    votes = torch.randn(2, 6, 4, 3, dtype=torch.float64)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        v = votes.to(dtype).requires_grad_()
        F.dynamic_routing(v).capsules.square().sum().backward()
        assert v.grad is not None
        assert v.grad.dtype == dtype
        gradients.append(v.grad.double())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-5)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.integers(2, 5), st.integers(1, 4))
def test_folded_weights_equal_fast_routing_on_votes(b, i, d, j, e):
    lower = torch.randn(b, i, d, dtype=torch.float64)
    weight = torch.randn(i, d, j, e, dtype=torch.float64)
    coefficients = torch.rand(i, j, dtype=torch.float64)
    folded = F.fold_weights(weight, coefficients)
    assert folded.shape == (i * d, j * e)
    actual = F.folded_routing(lower, folded, j)
    for parts in (2, 3, i * d, i * d + 1):
        torch.testing.assert_close(F.folded_routing(lower, folded, j, parts), actual, rtol=1e-12, atol=1e-13)
    expected = F.fast_routing(F.prediction_vectors(lower, weight), coefficients)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)
    for k in range(b):
        votes = reference.prediction_vectors(lower[k].numpy(), weight.numpy())
        np.testing.assert_allclose(actual[k], reference.fast_routing(coefficients.numpy(), votes), atol=1e-12)


votes = torch.zeros(2, 5, 3, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: F.dynamic_routing(torch.zeros(2, 5, 3)),
            r"votes have shape \(2, 5, 3\), expected \(b, i, j, e\)",
        ),
        (lambda: F.dynamic_routing(torch.zeros(2, 0, 3, 4)), r"votes have shape \(2, 0, 3, 4\), expected"),
        (lambda: F.dynamic_routing(votes.long()), "votes are torch.int64, expected a floating-point type"),
        (lambda: F.dynamic_routing(votes, 0), "iterations is 0, expected at least 1"),
        (
            lambda: F.dynamic_routing(votes, 3, "max"),
            "normalization is 'max', expected one of max_min, softmax",
        ),
        (
            lambda: F.MaxMin(1.0),
            r"lower=1.0, upper=1.0: expected finite numbers, lower < upper",
        ),
        (
            lambda: F.MaxMin(upper=float("inf")),
            r"lower=0.0, upper=inf: expected finite numbers",
        ),
        (
            lambda: F.fast_routing(votes, torch.zeros(3, 5)),
            r"coefficients have shape \(3, 5\), expected \(5, 3\) or \(2, 5, 3\) for votes of shape \(2, 5, 3, 4\)",
        ),
        (
            lambda: F.prediction_vectors(torch.zeros(2, 5, 8), torch.zeros(5, 4, 3, 4)),
            r"lower capsules have shape \(2, 5, 8\), weights \(5, 4, 3, 4\): expected \(b, i, d\) and \(i, d, j, e\)",
        ),
        (
            lambda: F.route_capsules(torch.zeros(2, 5), torch.zeros(5, 4, 3, 4)),
            r"lower capsules have shape \(2, 5\), weights \(5, 4, 3, 4\)",
        ),
        (
            lambda: F.route_capsules(torch.zeros(2, 0, 4), torch.zeros(0, 4, 3, 4)),
            r"lower capsules have shape \(2, 0, 4\), weights \(0, 4, 3, 4\): expected i, d, j, e at least 1",
        ),
        (
            lambda: F.route_capsules(torch.zeros(2, 5, 4).double(), torch.zeros(5, 4, 3, 4)),
            "lower capsules are torch.float64, weights torch.float32: expected one floating-point type",
        ),
        (
            lambda: F.fold_weights(torch.zeros(5, 3), torch.zeros(5, 3)),
            r"weights have shape \(5, 3\), expected",
        ),
        (
            lambda: F.folded_routing(torch.zeros(2, 5, 4), torch.zeros(20, 12), 5),
            r"lower capsules have shape \(2, 5, 4\), folded weights \(20, 12\) for 5 classes: expected \(b, i, d\) and",
        ),
        (
            lambda: F.fold_weights(torch.zeros(5, 2, 3, 4), torch.zeros(3, 5)),
            r"coefficients have shape \(3, 5\), expected \(5, 3\)",
        ),
    ],
)
def test_errors_say_what_was_given_and_what_was_expected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("normalization", ["max_min", "softmax"])
def test_a_trace_in_pieces_is_every_iteration_of_routing(normalization, monkeypatch, votes_are):
    monkeypatch.setattr(routing_module, "CHUNK_BYTES", 2 * 6 * 3 * 5 * 4)  # two images
    monkeypatch.setattr(routing_module, "PRODUCT_BYTES", 2 * 6 * 4 * 4)
    lower, weight = torch.rand(5, 6, 4), torch.randn(6, 4, 3, 5, requires_grad=True)
    pieces = list(F.trace_capsules(lower, weight, 4, normalization))
    assert [(piece.start, piece.stop) for piece, _ in pieces] == [(0, 2), (2, 4), (4, 5)]
    for piece, steps in pieces:
        for r, step in enumerate(steps, 1):
            expected = F.route_capsules(lower[piece], weight.detach(), r, normalization)
            torch.testing.assert_close(step, expected)
            assert not step.capsules.requires_grad
        assert len(steps) == 4
    with pytest.raises(ValueError, match="iterations is 0, expected at least 1"):
        F.trace_capsules(lower, weight, 0)


def test_more_classes_make_smaller_pieces_without_votes():
    lower, weight = torch.rand(64, 288, 2), torch.randn(288, 2, 1000, 8)
    sizes = [piece.stop - piece.start for piece, _ in F.trace_capsules(lower, weight, 1)]
    assert sizes == [14] * 4 + [8]  # coefficients of 16 MB


def test_coefficients_may_have_another_type():
    votes, coefficients = torch.rand(2, 5, 3, 4), torch.rand(5, 3, dtype=torch.float64)
    torch.testing.assert_close(F.fast_routing(votes, coefficients), F.fast_routing(votes, coefficients.float()))
