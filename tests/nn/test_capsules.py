"""Capsule layers as ordinary modules: against the loops, over shapes, in Sequential, in other types."""

# mypy: disable-error-code="arg-type, call-arg, union-attr"

import copy
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from torch import nn
from torch.nn.utils import prune

import fastcaps
from fastcaps import functional as F
from fastcaps import nn as caps
from fastcaps.runtime import load as load_onnx

normalizations = st.sampled_from([caps.MaxMin(), caps.MaxMin(0.1, 0.8), caps.Softmax(), caps.LeakySoftmax()])


@st.composite
def layers(draw):
    sizes = [draw(st.integers(1, 7)), draw(st.integers(1, 4)), draw(st.integers(2, 5)), draw(st.integers(1, 5))]
    routing = caps.DynamicRouting(draw(st.integers(1, 4)), draw(normalizations))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    layer = caps.CapsuleLayer(*sizes, routing=routing, bias=draw(st.booleans()), dtype=torch.float64)
    nn.init.normal_(layer.weight, std=0.7)
    if layer.bias is not None:
        nn.init.normal_(layer.bias, std=0.3)
    return layer


def in_loops(layer, capsules):
    """Capsules (j e) and coefficients (i j) of one image."""
    votes = reference.prediction_vectors(capsules.numpy(), layer.weight.detach().numpy())
    bias = None if layer.bias is None else layer.bias.detach().numpy()
    rule, routing = layer.routing.normalization, layer.routing
    result, used = reference.routing_procedure(votes, routing.iterations, rule.name, *rule.bounds, bias)
    return votes, bias, result, used[-1]


@given(layers(), st.integers(1, 3))
def test_a_layer_is_the_routing_procedure(layer, images):
    lower = torch.randn(images, layer.in_capsules, layer.in_dim, dtype=torch.float64)
    capsules, output = layer(lower), layer.route(lower)
    assert torch.equal(capsules, output.capsules)
    for image, own, used in zip(lower, output.capsules, output.coefficients, strict=True):
        _, _, expected, coefficients = in_loops(layer, image)
        np.testing.assert_allclose(own.detach(), expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(used, coefficients, rtol=1e-7, atol=1e-9)


@given(layers(), st.integers(1, 3))
def test_fixed_coefficients_and_folding_are_the_fast_procedure(layer, images):
    lower = torch.randn(images, layer.in_capsules, layer.in_dim, dtype=torch.float64)
    coefficients = torch.rand(layer.in_capsules, layer.out_capsules, dtype=torch.float64)
    folded = caps.FoldedCapsuleLayer.from_layer(layer, coefficients)
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    fixed = layer.apply_coefficients(lower, coefficients)
    assert fixed.requires_grad
    for image, one, other in zip(lower, fixed.detach(), folded(lower), strict=True):
        votes, bias, *_ = in_loops(layer, image)
        expected = reference.fast_routing(coefficients.numpy(), votes, bias)
        np.testing.assert_allclose(one, expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(other, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("images", [2, 40])  # with votes, and without
@pytest.mark.parametrize("normalization", [caps.MaxMin(), caps.Softmax(), caps.LeakySoftmax()], ids=repr)
def test_gradients_in_float64(images, normalization):
    routing = caps.DynamicRouting(3, normalization)
    layer = caps.CapsuleLayer(3, 1, 3, 4, routing=routing, bias=True, dtype=torch.float64)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    lower = torch.randn(images, 3, 1, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def function(lower, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (lower,))

    inputs = (lower, *(parameter.detach().requires_grad_() for parameter in layer.parameters()))
    assert torch.autograd.gradcheck(function, inputs, fast_mode=images > 2)


def test_the_bias_alone_may_require_a_gradient():
    layer = caps.CapsuleLayer(4, 3, 2, 5, bias=True)
    layer.weight.requires_grad_(False)
    layer(torch.randn(6, 4, 3)).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad.shape == (2, 5)
    votes = torch.randn(6, 4, 2, 5)
    bias = torch.zeros(2, 5, requires_grad=True)
    F.dynamic_routing(votes, bias=bias).capsules.sum().backward()
    assert bias.grad is not None


def test_it_fits_into_sequential_and_says_what_it_is():
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3),
        caps.PrimaryCapsules(6, types=4, dim=8, kernel_size=3),
        caps.CapsuleLayer(4 * 4 * 4, 8, 5, 6, routing=caps.DynamicRouting(2, caps.Softmax())),
        caps.CapsuleLayer(5, 6, 3, 7, bias=True),
    )
    assert net(torch.rand(2, 1, 8, 8)).shape == (2, 3, 7)
    assert (
        "CapsuleLayer(64, 8, 5, 6, routing=DynamicRouting(iterations=2, normalization=Softmax()), bias=False)"
        in repr(net)
    )
    assert "PrimaryCapsules(\n    types=4, dim=8, convolution=auto" in repr(net)
    twin = copy.deepcopy(net)
    twin.load_state_dict(net.state_dict())
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(twin(images), net(images))
    assert sorted(net.state_dict()) == sorted(
        ["0.weight", "0.bias", "1.conv.weight", "1.conv.bias", "2.weight", "3.weight", "3.bias"]
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.bfloat16, 0.05)])
def test_other_types(dtype, tolerance):
    layer = caps.CapsuleLayer(20, 4, 3, 5, bias=True)
    lower = torch.randn(6, 20, 4)
    expected = layer(lower)
    other = copy.deepcopy(layer).to(dtype)
    capsules = other(lower.to(dtype))
    assert capsules.dtype == dtype
    torch.testing.assert_close(capsules.float(), expected, atol=tolerance, rtol=tolerance)
    capsules.float().sum().backward()
    assert other.weight.grad.isfinite().all()
    layer = caps.CapsuleLayer(20, 4, 3, 5, dtype=dtype)
    assert layer.weight.dtype == dtype
    folded = caps.FoldedCapsuleLayer.from_layer(other, torch.ones(20, 3))
    assert folded(lower.to(dtype)).dtype == dtype


def test_autocast_leaves_capsule_layers_in_their_precision():
    layer, lower = caps.CapsuleLayer(20, 4, 3, 5), torch.randn(6, 20, 4)
    folded = caps.FoldedCapsuleLayer.from_layer(layer, torch.ones(20, 3))
    coefficients = torch.rand(20, 3)
    expected = [layer(lower), layer.apply_coefficients(lower, coefficients), folded(lower)]
    with torch.autocast("cpu", torch.bfloat16):
        actual = [layer(lower), layer.apply_coefficients(lower, coefficients), folded(lower)]
        [(_, traced)] = list(layer.trace(lower))
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(traced[-1].capsules, expected[0].detach(), atol=1e-6, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class Tempered(caps.Normalization):
    """A normalization with an argument of its own."""

    name = "tempered"
    temperature: float = 2.0

    def start(self, classes):
        return 1 / classes

    def __call__(self, logits):
        return torch.softmax(logits / self.temperature, -1)


def test_files_hold_the_arguments_of_a_normalization(tmp_path):
    layer = caps.CapsuleLayer(4, 3, 2, 5, routing=caps.DynamicRouting(3, Tempered(4.0)))
    master = fastcaps.accumulate(layer, [(torch.rand(6, 4, 3), torch.arange(6) % 2)])[""]
    master.save(tmp_path / "master.safetensors")
    assert fastcaps.MasterCoefficients.load(tmp_path / "master.safetensors").normalization == Tempered(4.0)

    class Lossy(caps.Normalization):
        name = "lossy"

        def __init__(self, temperature=1.0):
            self.temperature = temperature

        start, __call__ = Tempered.start, Tempered.__call__

    layer.routing = caps.DynamicRouting(3, Lossy(2.0))
    master = fastcaps.accumulate(layer, [(torch.rand(6, 4, 3), torch.arange(6) % 2)])[""]
    with pytest.raises(ValueError, match="Lossy takes temperature, which a file would lose: make it a dataclass"):
        master.save(tmp_path / "other.safetensors")


def test_a_constant_normalization_has_no_gradient():
    class Constant(caps.Normalization):
        name = "constant"

        def start(self, classes):
            return 1.0

        def __call__(self, logits):
            return torch.ones_like(logits)

    layer = caps.CapsuleLayer(4, 3, 2, 5, routing=caps.DynamicRouting(3, Constant()))
    layer(torch.rand(2, 4, 3)).sum().backward()
    assert layer.weight.grad.isfinite().all()


def test_a_convolution_of_ones_own_in_primary_capsules():
    layer = caps.PrimaryCapsules(16, types=2, dim=4, kernel_size=9, stride=2)
    layer.conv = nn.Conv2d(16, 8, 9, stride=2, padding=4)
    maps = torch.rand(8, 16, 20, 20)
    with torch.no_grad():
        assert layer(maps).shape == (8, 200, 4)
    with pytest.raises(ValueError, match=r"maps have shape \(16, 20, 20\), expected \(batch, 16, h, w\)"):
        layer(maps[0])


def test_resetting_parameters_draws_them_anew():
    layer = caps.CapsuleLayer(200, 8, 4, 16, bias=True)
    before = layer.weight.detach().clone()
    nn.init.ones_(layer.bias)
    layer.reset_parameters()
    assert not torch.equal(layer.weight, before)
    assert (layer.bias == 0).all()
    torch.testing.assert_close(layer.weight.std(), before.std(), rtol=0.05, atol=0)
    folded = caps.FoldedCapsuleLayer(200, 8, 4, 16, bias=True)
    assert folded(torch.randn(3, 200, 8)).norm(dim=-1).max() < 1
    assert folded.extra_repr() == "200, 8, 4, 16, bias=True"


class Even(caps.Routing):
    """A routing of one's own, with one method; a plain pair is enough."""

    name = "even_for_tests"

    def __call__(self, lower_capsules, weight, bias=None):
        votes = F.prediction_vectors(lower_capsules, weight)
        coefficients = votes.new_full(votes.shape[:3], 1 / votes.shape[2])
        return F.fast_routing(votes, coefficients, bias=bias), coefficients


@pytest.mark.slow
def test_a_routing_of_ones_own_in_a_configuration(tmp_path):
    config = fastcaps.CapsNetConfig.for_images(
        12, 12, 1, classes=3, stem_channels=6, stem_kernel=3, capsule_types=3, lower_dimension=4, primary_kernel=3,
        routing="even_for_tests",
    )  # fmt: skip
    model = fastcaps.CapsNet(config).eval()
    model.save_pretrained(tmp_path / "model")
    images = torch.rand(4, 1, 12, 12)
    again = fastcaps.CapsNet.from_pretrained(tmp_path / "model")
    assert isinstance(again.routing.routing, Even)
    assert torch.equal(again(images).lengths, model(images).lengths)
    bytes_ = (images * 255).byte()
    fastcaps.export(model, tmp_path / "model.onnx", example=bytes_)  # by PyTorch's exporter
    lengths = load_onnx(tmp_path / "model.onnx", threads=1)(bytes_.numpy()).lengths
    np.testing.assert_allclose(lengths, model(bytes_).lengths.detach(), atol=1e-5)
    with pytest.raises(ValueError, match="routing is 'odd', expected one of dynamic, .*even_for_tests, or one of"):
        fastcaps.CapsNet(dataclasses.replace(config, routing="odd"))
    model.routing.routing = caps.DynamicRouting(2)
    with pytest.raises(
        ValueError, match=r"the network routes by DynamicRouting\(iterations=2.*, but its configuration"
    ):
        model.save_pretrained(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_routing_of_ones_own():
    layer = caps.CapsuleLayer(6, 3, 4, 5, routing=Even())
    lower = torch.randn(2, 6, 3)
    output = layer.route(lower)
    assert (output.coefficients == 0.25).all()
    [(images, [traced])] = list(layer.trace(lower))
    assert images == slice(0, 2)
    assert torch.equal(traced.capsules, output.capsules)
    with pytest.raises(ValueError, match="iterations is 3, but Even always has 1"):
        layer.route(lower, 3)
    routing = type("Several", (Even,), {"iterations": 2})()
    with pytest.raises(NotImplementedError, match="Several has 2 iterations, but no trace method"):
        list(routing.trace(lower, layer.weight))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: caps.CapsuleLayer(0, 1, 2, 3), "in_capsules is 0, expected a whole number, at least 1"),
        (lambda: caps.CapsuleLayer(4, 1, 2, 1.5), "out_dim is 1.5, expected a whole number, at least 1"),
        (
            lambda: caps.CapsuleLayer(4, 1, 2, 3, routing="max_min"),
            r"routing is 'max_min', expected .*DynamicRouting\(3",
        ),
        (lambda: caps.DynamicRouting(0), "iterations is 0, expected a whole number, at least 1"),
        (
            lambda: caps.DynamicRouting(3, "softmax"),
            r"normalization is 'softmax', expected an object such as MaxMin\(\)",
        ),
        (lambda: caps.CapsuleLayer(4, 2, 2, 3)(torch.rand(1, 4, 3)), r"shape \(1, 4, 3\), expected \(batch, 4, 2\)"),
        (
            lambda: caps.FoldedCapsuleLayer(12, 4, 2, 3)(torch.rand(1, 4, 12)),
            r"shape \(1, 4, 12\), expected \(batch, 12, 4\): give the layer the number of capsules",
        ),
        (lambda: caps.CapsuleLayer(4, 2, 2, 3)(torch.rand(4, 2)), r"shape \(4, 2\), expected \(batch, 4, 2\)"),
        (
            lambda: F.dynamic_routing(torch.rand(1, 2, 3, 4), bias=torch.zeros(3)),
            r"the bias has shape \(3,\), expected \(3, 4\)",
        ),
        (
            lambda: F.fast_routing(torch.rand(1, 2, 3, 4), torch.rand(2, 3), bias=torch.zeros(3, 4).double()),
            "the bias is torch.float64, expected torch.float32",
        ),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("batch", [1, 40])
@pytest.mark.parametrize("training", [False, True])
def test_hooks_of_convolutions_are_called(batch, training):
    stem, primary = caps.Stem(1, 8, 5), caps.PrimaryCapsules(8, 2, 4, 3)
    called = []
    for name, module in {"stem": stem, "primary": primary}.items():
        module.conv.register_forward_hook(lambda *args, name=name: called.append(name))
    with torch.set_grad_enabled(training):
        primary(stem(torch.rand(batch, 1, 12, 12)))
    assert called == ["stem", "primary"]


@pytest.mark.parametrize("changes", [{"padding": 2}, {"dilation": 2}, {"bias": False}, {"padding": 1, "bias": False}])
def test_a_stem_computes_the_convolution_it_has(changes):
    stem = caps.Stem(1, 8, 5)
    stem.conv = nn.Conv2d(1, 8, 5, **changes)
    images = torch.rand(3, 1, 14, 14)
    torch.testing.assert_close(stem(images), torch.relu(stem.conv(images)))


def test_pruned_convolutions_can_be_trained():
    stem = caps.Stem(1, 8, 5)
    prune.l1_unstructured(stem.conv, "weight", amount=0.5)
    for _ in range(2):
        stem(torch.rand(40, 1, 12, 12)).sum().backward()
    assert ((stem.conv.weight_orig.grad == 0) == (stem.conv.weight_mask == 0)).all()
