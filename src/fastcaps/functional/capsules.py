"""Squashing and normalisation: what is done to single capsules and single rows of logits (paper, section 3).

Each function also has its gradient written out, as a private twin, for the closed-form gradient of routing.
"""

from typing import Literal

import torch
from torch import Tensor

from fastcaps._checks import check_normalization

Normalization = Literal["max_min", "softmax"]


def squash(s: Tensor) -> Tensor:
    """Shorten vectors to a length between 0 and 1, keeping their direction (eq. 1, right).

    ``v = ‖s‖² / (1 + ‖s‖²) · s / ‖s‖``, computed as ``s · ‖s‖ / (1 + ‖s‖²)`` so that the zero vector gives
    zero, forward and backward.

    Args:
        s: vectors ``(… e)``.

    Returns:
        ``(… e)``.
    """
    length: Tensor = torch.linalg.vector_norm(s, dim=-1, keepdim=True)  # (…, 1)
    return s * (length / (1 + length * length))


def squash_gradient(s: Tensor, gradient: Tensor) -> Tensor:
    """Gradient on ``s`` given that on ``squash(s)``, both ``(… e)``."""
    length: Tensor = torch.linalg.vector_norm(s, dim=-1, keepdim=True)  # (…, 1)
    denominator = 1 + length * length
    direction = s / length.clamp_min(torch.finfo(s.dtype).tiny)
    radial = (direction * gradient).sum(-1, keepdim=True)  # (…, 1)
    # With f(n) = n / (1 + n²): ∂v/∂s = f(n)·1 + n·f'(n)·direction⊗direction, n·f' = n(1 − n²) / (1 + n²)².
    return (
        gradient * (length / denominator) + direction * radial * length * (1 - length * length) / denominator.square()
    )


def max_min(logits: Tensor, lower: float = 0.0, upper: float = 1.0) -> Tensor:
    """Stretch each row of logits to the bounds: its least entry to ``lower``, its greatest to ``upper`` (eq. 2).

    A row whose entries are all equal has no least and greatest: it gives ``upper`` everywhere, with zero
    gradient, which is what routing starts from.

    Args:
        logits: ``(… j)``, normalised over the last axis, the classes.
        lower: the paper's p.
        upper: the paper's q.

    Returns:
        ``(… j)``, between the bounds.
    """
    return normalize(logits, "max_min", lower, upper)


def normalize(
    logits: Tensor,
    normalization: Normalization = "max_min",
    lower: float = 0.0,
    upper: float = 1.0,
    dim: int = -1,
) -> Tensor:
    """Turn logits into routing coefficients over the classes: Max-Min (eq. 2), or softmax as Sabour et al. do.

    Args:
        logits: any shape, the classes along ``dim``.
        normalization: ``"max_min"`` or ``"softmax"``; softmax knows no bounds.
        lower: lower bound of Max-Min.
        upper: upper bound of Max-Min.
        dim: the axis of the classes.

    Returns:
        The coefficients, in the shape of ``logits``.
    """
    check_normalization(normalization, lower, upper)
    if normalization == "softmax":
        return torch.softmax(logits, dim)
    least, greatest = logits.amin(dim, keepdim=True), logits.amax(dim, keepdim=True)
    spread = greatest - least
    varies = spread != 0  # also where it is not a number: what is broken shall show
    position = (logits - least) / torch.where(varies, spread, 1)  # 0 … 1
    position = torch.where(varies, position, 1)
    if (lower, upper) == (0, 1):
        return position
    # Exact at both ends, which p + x·(q − p) is not.
    return torch.lerp(position.new_tensor(lower), position.new_tensor(upper), position)


def normalize_gradient(
    logits: Tensor,
    gradient: Tensor,
    normalization: Normalization,
    lower: float,
    upper: float,
    dim: int,
) -> Tensor:
    """Gradient on ``logits`` given that on ``normalize(logits, …)``; ties share theirs evenly, as in autograd."""
    if normalization == "softmax":
        coefficients = torch.softmax(logits, dim)
        return coefficients * (gradient - (coefficients * gradient).sum(dim, keepdim=True))
    least, greatest = logits.amin(dim, keepdim=True), logits.amax(dim, keepdim=True)
    spread = greatest - least
    varies = spread != 0
    spread = torch.where(varies, spread, 1)
    scale = torch.where(varies, (upper - lower) / spread, 0)
    position = (logits - least).div_(spread)
    # ∂x_k/∂b_l = (δ_kl − δ_l,least·(1 − x_k) − δ_l,greatest·x_k) / spread
    on_greatest = (gradient * position).sum(dim, keepdim=True)
    on_least = gradient.sum(dim, keepdim=True) - on_greatest
    result = gradient * scale
    for end, its in ((least, on_least), (greatest, on_greatest)):
        is_end = torch.eq(logits, end, out=position)
        result.addcmul_(is_end, its * scale / is_end.sum(dim, keepdim=True), value=-1)
    return result
