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
        match="master coefficients are for 1152×10 capsules, this model has 1024×10: accumulate them with this model",
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
