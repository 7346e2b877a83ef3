"""Squash (paper, section 3), with its gradient written out for the closed-form gradient of routing."""

import torch
from torch import Tensor


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
    """Return the gradient on ``s`` given that on ``squash(s)``, both ``(… e)``."""
    length: Tensor = torch.linalg.vector_norm(s, dim=-1, keepdim=True)  # (…, 1)
    denominator = 1 + length * length
    direction = s / length.clamp_min(torch.finfo(s.dtype).tiny)
    radial = (direction * gradient).sum(-1, keepdim=True)  # (…, 1)
    # With f(n) = n / (1 + n²): ∂v/∂s = f(n)·1 + n·f'(n)·direction⊗direction, n·f' = n(1 − n²) / (1 + n²)².
    return (
        gradient * (length / denominator) + direction * radial * length * (1 - length * length) / denominator.square()
    )
