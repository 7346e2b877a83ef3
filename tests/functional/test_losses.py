"""The losses against their formulas in loops."""

import math

import numpy as np
import pytest
import torch

from fastcaps import functional as F


def test_margin_loss_is_summed_over_classes_and_averaged_over_the_batch():
    lengths = torch.rand(6, 4, dtype=torch.float64)
    labels = torch.tensor([0, 3, 2, 1, 1, 0])
    expected = 0.0
    for row, label in zip(lengths.numpy(), labels.tolist(), strict=True):
        for j, length in enumerate(row):
            present = 1.0 if j == label else 0.0
            expected += present * max(0.0, 0.9 - length) ** 2
            expected += 0.5 * (1 - present) * max(0.0, length - 0.1) ** 2
    np.testing.assert_allclose(F.margin_loss(lengths, labels), expected / 6, rtol=1e-12)


def test_margin_loss_takes_other_constants():
    lengths, labels = torch.tensor([[0.5, 0.5]]), torch.tensor([0])
    loss = F.margin_loss(lengths, labels, positive_margin=1.0, negative_margin=0.25, negative_weight=2.0)
    torch.testing.assert_close(loss, torch.tensor(0.5**2 + 2.0 * 0.25**2))


def test_cross_entropy_loss_is_the_labels_share_of_the_sharpened_lengths():
    lengths = torch.rand(5, 3, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 1, 0])
    for sharpness in (1.0, 20.0):
        expected = 0.0
        for row, label in zip(lengths.tolist(), labels.tolist(), strict=True):
            total = 0.0
            for length in row:
                total += math.exp(sharpness * length)
            expected -= math.log(math.exp(sharpness * row[label]) / total)
        np.testing.assert_allclose(F.cross_entropy_loss(lengths, labels, sharpness), expected / 5, rtol=1e-12)
    assert F.cross_entropy_loss(lengths, labels) == F.cross_entropy_loss(lengths, labels, 20.0)


def test_cross_entropy_loss_has_a_gradient_and_no_overflow():
    lengths = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2, 1, 1])
    assert torch.autograd.gradcheck(lambda x: F.cross_entropy_loss(x, labels, 7.0), (lengths,))
    far = torch.tensor([[1.0, 0.0]])
    torch.testing.assert_close(F.cross_entropy_loss(far, torch.tensor([1]), 1e4), torch.tensor(1e4))


def test_reconstruction_loss_is_a_weighted_sum_of_squares():
    drawn, images = torch.rand(3, 2, 4, 5), torch.rand(3, 2, 4, 5)
    expected = 0.0005 * ((drawn - images) ** 2).sum() / 3
    torch.testing.assert_close(F.reconstruction_loss(drawn, images), expected)


def test_an_empty_batch_costs_nothing():
    assert F.margin_loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)) == 0
    assert F.cross_entropy_loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)) == 0
    assert F.reconstruction_loss(torch.zeros(0, 3), torch.zeros(0, 3)) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: F.margin_loss(torch.zeros(3), torch.zeros(3)),
            r"lengths have shape \(3,\), expected \(batch, cl",
        ),
        (
            lambda: F.margin_loss(torch.zeros(3, 2), torch.zeros(2).long()),
            r"labels have shape \(2,\), expected one class number for each of the 3 images",
        ),
        (lambda: F.margin_loss(torch.zeros(2, 3), torch.tensor([0, 3])), "label 3 is outside the classes 0 … 2"),
        (lambda: F.margin_loss(torch.zeros(2, 3), torch.tensor([0, -1])), "label -1 is outside the classes 0 … 2"),
        (
            lambda: F.margin_loss(torch.zeros(1, 3), torch.tensor([0.7])),
            "labels are torch.float32, expected whole numb",
        ),
        (
            lambda: F.cross_entropy_loss(torch.zeros(3), torch.zeros(3)),
            r"lengths have shape \(3,\), expected \(batch, cl",
        ),
        (
            lambda: F.cross_entropy_loss(torch.zeros(2, 3), torch.tensor([0, 3])),
            "label 3 is outside the classes 0 … 2",
        ),
        (
            lambda: F.cross_entropy_loss(torch.zeros(1, 3), torch.tensor([0]), -2.0),
            "sharpness is -2.0, expected a number above 0",
        ),
        (
            lambda: F.reconstruction_loss(torch.zeros(3, 2), torch.zeros(3, 4)),
            r"reconstructions have shape \(3, 2\), images \(3, 4\): expected the same",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_labels_may_be_of_any_whole_type():
    lengths = torch.rand(3, 2)
    for dtype in (torch.int32, torch.uint8):
        labels = torch.tensor([0, 1, 1], dtype=dtype)
        for loss in (F.margin_loss, F.cross_entropy_loss):
            torch.testing.assert_close(loss(lengths, labels), loss(lengths, labels.long()))


def test_length_distillation_loss_is_the_divergence_from_the_teachers_shares():
    own, wanted = torch.rand(4, 3, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)
    for sharpness in (1.0, 20.0):
        expected = 0.0
        for row, other in zip(own.tolist(), wanted.tolist(), strict=True):
            total, others = (sum(math.exp(sharpness * length) for length in lengths) for lengths in (row, other))
            for length, taught in zip(row, other, strict=True):
                q, p = math.exp(sharpness * length) / total, math.exp(sharpness * taught) / others
                expected += p * math.log(p / q)
        np.testing.assert_allclose(F.length_distillation_loss(own, wanted, sharpness), expected / 4, rtol=1e-10)
    # It is about differences: a constant added to all lengths is not seen.
    assert float(F.length_distillation_loss(wanted + 0.1, wanted)) == pytest.approx(0, abs=1e-12)


def test_capsule_distillation_loss_is_the_squared_distance():
    own, wanted = torch.rand(4, 3, 2, dtype=torch.float64), torch.rand(4, 3, 2, dtype=torch.float64)
    expected = sum((a - b) ** 2 for a, b in zip(own.flatten().tolist(), wanted.flatten().tolist(), strict=True)) / 4
    np.testing.assert_allclose(F.capsule_distillation_loss(own, wanted), expected, rtol=1e-12)


def test_gradients_of_distillation():
    capsules = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    taught = torch.randn(3, 4, 2, dtype=torch.float64)

    def loss(capsules):
        lengths = F.length_distillation_loss(F.squash(capsules).norm(dim=-1), F.squash(taught).norm(dim=-1))
        return lengths + F.capsule_distillation_loss(F.squash(capsules), F.squash(taught))

    assert torch.autograd.gradcheck(loss, capsules)


def test_distillation_of_an_empty_batch_is_nothing_and_wrong_shapes_are_refused():
    assert float(F.length_distillation_loss(torch.rand(0, 3), torch.rand(0, 3))) == 0
    assert float(F.capsule_distillation_loss(torch.rand(0, 3, 2), torch.rand(0, 3, 2))) == 0
    with pytest.raises(ValueError, match=r"lengths have shape \(2, 3\), the teacher's \(2, 4\): expected the same"):
        F.length_distillation_loss(torch.rand(2, 3), torch.rand(2, 4))
    with pytest.raises(ValueError, match=r"capsules have shape \(2, 3\), the teacher's \(2, 3\): expected the same"):
        F.capsule_distillation_loss(torch.rand(2, 3), torch.rand(2, 3))
    with pytest.raises(ValueError, match="sharpness is 0, expected a number above 0"):
        F.length_distillation_loss(torch.rand(2, 3), torch.rand(2, 3), 0)
