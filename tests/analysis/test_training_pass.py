"""One pass against the network's own coefficients and the reference; files that are used again only when they fit."""

import numpy as np
import pytest
import torch
from tests import reference

from fastcaps import CapsNet
from fastcaps.analysis.training_pass import TrainingPass, cached, collect
from fastcaps.functional import fast_routing, prediction_vectors
from fastcaps.nn import Routing
from fastcaps.nn.routing import REGISTRY as ROUTINGS


def test_a_pass_finds_what_the_network_routes_with(small_model):
    images, labels = torch.rand(40, 1, 10, 10, dtype=torch.float64), torch.arange(40) % 3
    seen: list[int] = []
    parts = [(images[:19], labels[:19]), (images[19:], labels[19:])]
    training_pass = collect(small_model, parts, first=25, observe=seen.append)
    assert seen == [19, 21]
    with torch.no_grad():
        coefficients = small_model(images, with_coefficients=True).coefficients
        columns = coefficients[torch.arange(40), :, labels].float().numpy()
        earlier = small_model(images, with_coefficients=True, iterations=2).coefficients
    np.testing.assert_allclose(training_pass.first_columns, columns[:25], atol=1e-6)
    assert training_pass.first_labels.tolist() == labels[:25].tolist()
    expected = reference.mean_class_correlations(columns.astype(np.float64), labels.tolist(), 3)
    np.testing.assert_allclose(training_pass.correlations.between_classes(), expected, atol=1e-6)
    # The first iteration's are all 1, the others' are the network's own.
    assert training_pass.histogram.counts.sum(1).tolist() == [coefficients.numel()] * 3
    assert training_pass.histogram.counts[0, -1] == coefficients.numel()
    for k, values in ((1, earlier), (2, coefficients)):
        expected_counts = torch.histc(values.float(), 100, 0, 1).numpy()
        # A coefficient at an edge may be a rounding away from the next bin.
        assert np.abs(training_pass.histogram.counts[k] - expected_counts).sum() <= 0.002 * coefficients.numel()
    assert training_pass.counts.tolist() == [14, 13, 13]
    np.testing.assert_allclose(training_pass.mean_images[1], images[labels == 1].mean(0).numpy())


def test_softmax_and_one_iteration_which_has_no_correlation(small_model):
    config = type(small_model.config).from_dict(
        {**small_model.config.to_dict(), "normalization": "softmax", "iterations": 1}
    )
    training_pass = collect(CapsNet(config), [(torch.rand(4, 1, 10, 10), torch.tensor([0, 1, 2, 2]))])
    assert training_pass.correlations.constant.tolist() == [1, 1, 2]
    assert np.isnan(training_pass.correlations.between_classes()).all()
    assert np.flatnonzero(training_pass.histogram.counts[0]).tolist() == [33]


def test_arrays_keep_everything(small_model):
    training_pass = collect(small_model, [(torch.rand(9, 1, 10, 10), torch.arange(9) % 3)])
    again = TrainingPass.from_arrays(training_pass.to_arrays())
    for name, array in training_pass.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array)
    np.testing.assert_array_equal(again.correlations.between_classes(), training_pass.correlations.between_classes())
    np.testing.assert_array_equal(again.histogram.edges, training_pass.histogram.edges)


def test_a_file_is_used_again_only_for_the_same_key(tmp_path):
    calls: list[int] = []
    told: list[object] = []
    place, other = tmp_path / "cache" / "a.safetensors", tmp_path / "other.safetensors"

    def make():
        calls.append(1)
        return {"x": np.arange(6.0).reshape(2, 3).T + len(calls)}

    first = cached([place], {"weights": "a", "limit": None}, make, told.append)
    again = cached([place], {"limit": None, "weights": "a"}, make, told.append)
    np.testing.assert_array_equal(first["x"], again["x"])
    assert (len(calls), told) == (1, [place])
    cached([place], {"weights": "b", "limit": None}, make, told.append)
    assert len(calls) == 2
    # A file that is damaged, or not there, is none; the next place is looked at, the first is written.
    other.write_bytes(b"not a file of arrays")
    cached([other, place], {"weights": "b", "limit": None}, make, told.append)
    assert (len(calls), told) == (2, [place, place])
    cached([other], {"weights": "b", "limit": None}, make, told.append)
    assert len(calls) == 3
    cached([other], {"weights": "b", "limit": None}, make, told.append)
    assert (len(calls), told[-1]) == (3, other)


def test_no_images(small_model):
    with pytest.raises(ValueError, match="there are no training images to analyze"):
        collect(small_model, [])


def test_a_pass_uses_the_routing_of_the_network(small_model):
    class Thirds(Routing):
        name = "thirds_for_tests"

        def __call__(self, lower_capsules, weight, bias=None):
            votes = prediction_vectors(lower_capsules, weight)
            coefficients = votes.new_full(votes.shape[:3], 1 / 3)
            return fast_routing(votes, coefficients, bias=bias), coefficients

    try:
        small_model.routing.routing = Thirds()
        images, labels = torch.rand(6, 1, 10, 10, dtype=torch.float64), torch.arange(6) % 3
        training_pass = collect(small_model, [(images, labels)])
        assert training_pass.histogram.counts.shape[0] == 1
        assert training_pass.histogram.counts[0, 33] == training_pass.histogram.counts.sum()
        np.testing.assert_allclose(training_pass.first_columns, 1 / 3, atol=1e-6)
    finally:
        ROUTINGS.forget("thirds_for_tests")
