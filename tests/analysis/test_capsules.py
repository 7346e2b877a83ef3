"""Lengths in both ways, their means, and reconstructions with one number changed."""

import numpy as np
import pytest
import torch

from fastcaps import accumulate, fold
from fastcaps.analysis.capsules import (
    Lengths,
    disagreements,
    output_lengths,
    tuning_curves,
    varied_reconstructions,
)


def test_lengths_are_the_networks(small_model):
    images, labels = torch.rand(7, 1, 10, 10, dtype=torch.float64), torch.arange(7) % 3
    fast = fold(small_model, accumulate(small_model, [(images, labels)]))
    seen: list[int] = []
    lengths = output_lengths(
        small_model, fast, [(images[:4], labels[:4]), (images[4:], labels[4:])], observe=seen.append
    )
    assert seen == [4, 3]
    assert lengths.labels.tolist() == labels.tolist()
    np.testing.assert_allclose(lengths.dynamic, small_model(images).lengths.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(lengths.fast, fast(images).lengths.detach().numpy(), rtol=1e-5)
    with pytest.raises(ValueError, match="there are no images, expected at least one"):
        output_lengths(small_model, fast, [])


def test_curves_are_means_over_the_images_of_a_class():
    lengths = np.random.default_rng(0).random((9, 4))
    labels = np.array([0, 1, 1, 3, 3, 3, 0, 1, 1])
    curves = tuning_curves(lengths, labels)
    for label in (0, 1, 3):
        own = [lengths[k] for k in range(9) if labels[k] == label]
        np.testing.assert_allclose(curves[label], sum(own) / len(own))
    assert np.isnan(curves[2]).all()


def test_disagreements():
    dynamic = np.array([[0.9, 0.1], [0.2, 0.3], [0.6, 0.5]], np.float32)
    fast = np.array([[0.8, 0.7], [0.4, 0.3], [0.4, 0.5]], np.float32)
    assert disagreements(Lengths(np.array([0, 0, 0]), dynamic, fast)).tolist() == [1, 2]


def test_only_one_number_of_the_labels_capsule_is_changed(small_model):
    capsules, labels = torch.rand(2, 3, 4, dtype=torch.float64), torch.tensor([2, 0])
    offsets = (-0.2, 0.0, 0.3)
    reconstructions = varied_reconstructions(small_model, capsules, labels, offsets)
    assert reconstructions.shape == (2, 4, 3, 1, 10, 10)
    for b in range(2):
        for e in range(4):
            for s, offset in enumerate(offsets):
                changed = capsules[b : b + 1].clone()
                changed[0, labels[b], e] += offset
                expected = small_model.reconstruct(changed, labels[b : b + 1])[0].detach().numpy()
                np.testing.assert_allclose(reconstructions[b, e, s], expected, atol=1e-12)
