"""Losses: the two terms of Sabour et al. (2017), which the paper follows (figure 1), cross-entropy, and distillation.

All losses are summed per image and averaged over the batch.
"""

import math

import torch
from torch import Tensor

from fastcaps.functional.labels import checked_labels


def margin_loss(
    lengths: Tensor,
    labels: Tensor,
    positive_margin: float = 0.9,
    negative_margin: float = 0.1,
    negative_weight: float = 0.5,
) -> Tensor:
    """Penalize a label's capsule shorter than ``positive_margin``, and others longer than ``negative_margin``.

    ``Σ_j T_j · max(0, m⁺ − ‖v_j‖)² + λ · (1 − T_j) · max(0, ‖v_j‖ − m⁻)²``, mean over the batch.

    Args:
        lengths: ``(b j)``.
        labels: class numbers ``(b)``.
        positive_margin: m⁺.
        negative_margin: m⁻.
        negative_weight: λ, which keeps the loss of absent classes from shrinking all capsules at the start.

    Returns:
        A scalar; 0 for an empty batch.
    """
    labels = _checked(lengths, labels)
    present = torch.nn.functional.one_hot(labels, lengths.shape[1])  # (b, j)
    too_short = (positive_margin - lengths).clamp_min(0).square()
    too_long = (lengths - negative_margin).clamp_min(0).square()
    loss = torch.where(present.bool(), too_short, negative_weight * too_long)  # (b, j)
    return loss.sum() / max(len(lengths), 1)


def cross_entropy_loss(lengths: Tensor, labels: Tensor, sharpness: float = 20.0) -> Tensor:
    """Reward differences of length: the capsule of the label should be the longest, which alone decides the class.

    ``−log softmax_j(sharpness · ‖v_j‖)`` of the label, mean over the batch. The margin loss has target lengths:
    capsules can approach these while the order of the lengths gets worse.

    Args:
        lengths: ``(b j)``.
        labels: class numbers ``(b)``.
        sharpness: factor of the lengths, which are between 0 and 1.

    Returns:
        A scalar; 0 for an empty batch.
    """
    labels = _checked(lengths, labels)
    if not 0 < sharpness < math.inf:
        raise ValueError(f"sharpness is {sharpness}, expected a number above 0")
    loss = torch.nn.functional.cross_entropy(sharpness * lengths, labels, reduction="sum")
    return loss / max(len(lengths), 1)


def reconstruction_loss(reconstructions: Tensor, images: Tensor, weight: float = 0.0005) -> Tensor:
    """Return the squared error summed over pixels and channels, mean over the batch, times ``weight``.

    Args:
        reconstructions: output of the decoder ``(b …)``, between 0 and 1.
        images: ``(b …)`` between 0 and 1, not standardized: the decoder ends in a sigmoid.
        weight: small, so that the loss of the lengths dominates.

    Returns:
        A scalar; 0 for an empty batch.
    """
    if reconstructions.shape != images.shape:
        raise ValueError(
            f"reconstructions have shape {tuple(reconstructions.shape)}, images {tuple(images.shape)}: "
            "expected the same"
        )
    return weight * (reconstructions - images).square().sum() / max(len(images), 1)


def length_distillation_loss(lengths: Tensor, teacher_lengths: Tensor, sharpness: float = 20.0) -> Tensor:
    """Match the predictions of the teacher: its relative preference for each class.

    The Kullback–Leibler divergence of ``softmax(sharpness · lengths)`` from that of the teacher (Hinton et al., 2015),
    mean over the batch.

    Args:
        lengths: ``(b j)``.
        teacher_lengths: ``(b j)``.
        sharpness: as for `cross_entropy_loss`.

    Returns:
        A scalar; 0 for an empty batch, and where both agree.
    """
    _check_same(lengths, teacher_lengths, "lengths", 2)
    if not 0 < sharpness < math.inf:
        raise ValueError(f"sharpness is {sharpness}, expected a number above 0")
    own = torch.log_softmax(sharpness * lengths, 1)
    target = torch.log_softmax(sharpness * teacher_lengths, 1)
    return (target.exp() * (target - own)).sum() / max(len(lengths), 1)


def capsule_distillation_loss(capsules: Tensor, teacher_capsules: Tensor) -> Tensor:
    """Match the capsules of the teacher: squared distance summed over classes and dimensions, mean over the batch.

    It also fixes the lengths themselves, which `length_distillation_loss` determines only up to a constant.

    Args:
        capsules: ``(b j e)``.
        teacher_capsules: ``(b j e)``.

    Returns:
        A scalar; 0 for an empty batch.
    """
    _check_same(capsules, teacher_capsules, "capsules", 3)
    return (capsules - teacher_capsules).square().sum() / max(len(capsules), 1)


def _check_same(own: Tensor, teacher: Tensor, what: str, ndim: int) -> None:
    if own.ndim != ndim or own.shape != teacher.shape:
        expected = "(batch, classes)" if ndim == 2 else "(batch, classes, dimensions)"
        raise ValueError(
            f"{what} have shape {tuple(own.shape)}, the teacher's {tuple(teacher.shape)}: expected the same, {expected}"
        )


def _checked(lengths: Tensor, labels: Tensor) -> Tensor:
    if lengths.ndim != 2:
        raise ValueError(f"lengths have shape {tuple(lengths.shape)}, expected (batch, classes)")
    return checked_labels(labels, *lengths.shape)
