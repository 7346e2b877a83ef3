"""Folding: exact, without touching the model, and refused where it would be wrong."""

import numpy as np
import pytest
import torch
from tests import reference

from fastcaps import CapsNet, CapsNetConfig, FastCapsNet, accumulate, fold
from fastcaps import functional as F


@pytest.fixture
def batches():
    return [(torch.rand(6, 2, 14, 12), torch.tensor([0, 1, 2, 0, 1, 2]))]


def test_the_fold_is_fast_routing(model, batches):
    master = accumulate(model, batches)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fast = fold(model, master)
    images = torch.rand(5, 2, 14, 12)
    votes = F.prediction_vectors(model.lower_capsules(images), model.routing.weight)
    expected = F.fast_routing(votes, master.values.float())
    torch.testing.assert_close(fast(images).capsules, expected, rtol=1e-5, atol=1e-6)
    assert all((before[name] == tensor).all() for name, tensor in model.state_dict().items())
    assert fast.provenance["master"]["counts"] == [2, 2, 2]
    for k in range(5):
        one = reference.fast_routing(master.values.numpy(), votes[k].detach().double().numpy())
        np.testing.assert_allclose(fast(images).capsules[k].detach(), one, rtol=1e-4, atol=1e-6)


def test_a_bare_matrix_will_do_and_nothing_is_shared(model):
    fast = fold(model, torch.ones(model.config.lower_capsules, 3))
    images = torch.rand(4, 2, 14, 12)
    torch.testing.assert_close(fast(images).capsules, model(images, iterations=1).capsules, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        for parameter in fast.parameters():
            parameter.zero_()
    assert float(model(images).lengths.detach().min()) > 0
    capsules = torch.rand(2, 3, 7)
    assert model.reconstruct(capsules).shape == (2, 2, 14, 12)


def test_folding_keeps_the_precision_and_reconstructs(model):
    fast = fold(model.double(), torch.ones(model.config.lower_capsules, 3))
    assert fast.routing.weight.dtype == torch.float64
    capsules = torch.rand(2, 3, 7, dtype=torch.float64)
    torch.testing.assert_close(fast.reconstruct(capsules), model.reconstruct(capsules))


def test_an_empty_batch(model):
    assert fold(model, torch.ones(model.config.lower_capsules, 3)).predict(torch.zeros(0, 2, 14, 12)).shape == (0,)


def test_coefficients_of_another_shape_are_refused():
    model = CapsNet(CapsNetConfig.cifar10())
    with pytest.raises(
        ValueError,
        match="master coefficients are for 1152×10 capsules, layer 'routing' of this model has "
        "1024×10: accumulate them with this model",
    ):
        fold(model, torch.ones(1152, 10))


def test_coefficients_of_other_weights_are_refused_unless_told(model, batches):
    master = accumulate(model, batches)
    assert master.model_hash is not None
    with torch.no_grad():
        model.decoder.layers[0].weight.zero_()
    fold(model, master)  # the decoder has no say in the coefficients
    with torch.no_grad():
        model.primary.conv.bias[0] += 0.5
    with pytest.raises(ValueError, match=f"accumulated with other weights \\({master.model_hash[:12]}\\) than this"):
        fold(model, master)
    assert isinstance(fold(model, master, any_weights=True), FastCapsNet)


def test_a_network_with_fixed_coefficients_is_its_fold(model):
    fixed = torch.rand(model.config.lower_capsules, 3)
    images = torch.rand(70, 2, 14, 12)
    expected = fold(model, fixed)(images)
    for output in (model(images, fixed=fixed), torch.no_grad()(model)(images, fixed=fixed)):
        torch.testing.assert_close(output.capsules, expected.capsules, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(output.lengths, expected.lengths, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="with fixed coefficients nothing is routed: leave with_coefficients and"):
        model(images, fixed=fixed, iterations=2)


def test_the_gradient_with_fixed_coefficients_is_that_of_fast_routing(model):
    model.double()
    fixed = torch.rand(model.config.lower_capsules, 3, dtype=torch.float64)
    images = torch.rand(4, 2, 14, 12, dtype=torch.float64)
    target = torch.rand(4, 3, model.config.class_dimension, dtype=torch.float64)
    parameters = [model.routing.weight, model.primary.conv.weight, model.stem.conv.bias]
    votes = F.prediction_vectors(model.lower_capsules(images), model.routing.weight)
    expected = torch.autograd.grad((F.fast_routing(votes, fixed) * target).sum(), parameters)
    gradients = torch.autograd.grad((model(images, fixed=fixed).capsules * target).sum(), parameters)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_folded_network_asks_for_no_gradient(model, tmp_path, monkeypatch):
    fast = fold(model, torch.rand(model.config.lower_capsules, model.config.classes))
    fast.save_pretrained(tmp_path)
    pieces = []
    monkeypatch.setattr("fastcaps.nn.base.CHUNK_IMAGES", 2)
    for network in (fast, FastCapsNet.from_pretrained(tmp_path)):
        assert not any(parameter.requires_grad for parameter in network.parameters())
        hook = network.stem.register_forward_hook(lambda layer, inputs, out: pieces.append(len(out)))
        lengths = network(torch.rand(5, 2, 14, 12)).lengths
        hook.remove()
        assert not lengths.requires_grad
    assert pieces == [2, 2, 1] * 2
    images = torch.rand(5, 2, 14, 12, requires_grad=True)
    fast(images).lengths.sum().backward()
    assert images.grad is not None
