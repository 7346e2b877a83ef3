"""Dynamic routing the way public implementations write it: einsum over all votes, autograd through the loop."""

import torch
from torch import Tensor

from fastcaps.functional import max_min, squash


def plain_routing(votes: Tensor, iterations: int = 3) -> Tensor:
    """Votes ``(b i j e)`` to capsules ``(b j e)`` by Max-Min routing."""
    b, i, j, _ = votes.shape
    logits = votes.new_zeros(b, i, j)
    coefficients = votes.new_ones(b, i, j)
    for iteration in range(iterations):
        capsules = squash(torch.einsum("bij,bije->bje", coefficients, votes))
        if iteration < iterations - 1:
            logits = logits + torch.einsum("bije,bje->bij", votes, capsules)
            coefficients = max_min(logits)
    return capsules
