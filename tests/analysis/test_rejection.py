"""Lengths of class capsules on images of the classes and on others."""

import numpy as np
import pytest
import torch

from fastcaps import CapsNet, CapsNetConfig, fold
from fastcaps.analysis.rejection import LengthComparison, auroc, compare_lengths

CONFIG = CapsNetConfig.for_images(
    14, 14, 1, classes=3, stem_channels=4, stem_kernel=5, capsule_types=2, primary_kernel=5, decoder=(4,)
)


def test_auroc_counts_pairs():
    random = np.random.default_rng(0)
    positive, negative = random.integers(0, 6, 20) / 5, random.integers(0, 5, 30) / 5
    wins = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative]
    assert auroc(positive, negative) == pytest.approx(np.mean(wins))
    assert auroc(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 1


def test_rows_are_what_the_lengths_say():
    torch.manual_seed(0)
    model = CapsNet(CONFIG).eval()
    images, labels = torch.rand(10, 1, 14, 14), torch.arange(10) % 3
    others = torch.rand(6, 1, 14, 14)
    networks = {"dynamic": model, "uniform": fold(model, "uniform")}
    rows = compare_lengths(
        networks,
        lambda: [(images[:4], labels[:4]), (images[4:], labels[4:])],
        lambda: [(others, torch.zeros(6).long())],
    )
    assert [row.network for row in rows] == ["dynamic", "uniform"]
    answers = {}
    for row, network in zip(rows, networks.values(), strict=True):
        with torch.no_grad():
            lengths = network(images).lengths
            outside = network(others).lengths.amax(1)
        answers[row.network] = lengths.argmax(1)
        own = [float(lengths[n, labels[n]]) for n in range(10)]
        rest = [float(lengths[n, j]) for n in range(10) for j in range(3) if j != labels[n]]
        assert row.own_length == pytest.approx(np.mean(own), abs=1e-6)
        assert row.other_length == pytest.approx(np.mean(rest), abs=1e-6)
        assert row.accuracy == pytest.approx(float((lengths.argmax(1) == labels).float().mean()))
        assert row.auroc == pytest.approx(auroc(lengths.amax(1).numpy(), outside.numpy()), abs=0.02)
    assert rows[0].agreement == 1
    assert rows[1].agreement == pytest.approx(float((answers["dynamic"] == answers["uniform"]).float().mean()))
    table = repr(LengthComparison(data="a", outside="b", images=10, outside_images=6, rows=rows))
    assert "AUROC, b" in table
