"""The routing layer alone, MNIST shape, batch 128: closed-form gradient against autograd, folded against routed."""

from collections.abc import Callable

import torch

from benchmarks.printing import table
from fastcaps.benchmark.measure import matmul_peak, peak_memory, times
from fastcaps.benchmark.plain import plain_routing
from fastcaps.functional import (
    dynamic_routing,
    fast_routing,
    fold_weights,
    folded_routing,
    prediction_vectors,
    route_capsules,
)

B, I, D, J, E = 128, 1152, 8, 10, 16  # noqa: E741

Run = Callable[[], object]


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(B, I, D) * 0.2, torch.randn(I, D, J, E) * 0.003, torch.randn(B, J, E)


def gradient(name: str) -> Run:
    """Return the forward and backward pass of one variant."""
    lower, weight, direction = tensors()
    votes = prediction_vectors(lower, weight).contiguous().requires_grad_()
    lower.requires_grad_()
    weight.requires_grad_()
    runs: dict[str, Run] = {
        "plain loop, votes given": lambda: torch.autograd.grad(plain_routing(votes), votes, direction),
        "closed form, votes given": lambda: torch.autograd.grad(dynamic_routing(votes).capsules, votes, direction),
        "plain loop, votes made": lambda: torch.autograd.grad(
            plain_routing(prediction_vectors(lower, weight)), (lower, weight), direction
        ),
        "closed form, votes made": lambda: torch.autograd.grad(
            route_capsules(lower, weight).capsules, (lower, weight), direction
        ),
    }
    return runs[name]


def inference(name: str) -> Run:
    """Return the forward pass of one variant, from lower to class capsules."""
    lower, weight, _ = tensors()
    coefficients = torch.rand(I, J)
    folded = fold_weights(weight, coefficients)
    runs: dict[str, Run] = {
        "plain loop": lambda: plain_routing(prediction_vectors(lower, weight)),
        "dynamic, in pieces": lambda: route_capsules(lower, weight),
        "fast, votes made": lambda: fast_routing(prediction_vectors(lower, weight), coefficients),
        "folded": lambda: folded_routing(lower, folded, J, torch.get_num_threads()),
    }
    return runs[name]


def report(title: str, make: Callable[[str], Run], names: list[str]) -> dict[str, float]:
    print(f"{title}\n")
    seconds = times({name: make(name) for name in names})
    memory = {name: peak_memory(make, name) for name in names}
    first = names[0]
    table(
        ["", "ms", "times faster", "peak MB"],
        [
            [name, f"{seconds[name] * 1e3:.2f}", f"{seconds[first] / seconds[name]:.2f}", f"{memory[name]:.0f}"]
            for name in names
        ],
    )
    print()
    return seconds


def main() -> None:
    print(f"MNIST shape, batch {B}: {I} lower capsules of {D}, {J} classes of {E}, 3 iterations, Max-Min\n")
    report(
        "Forward and backward, from votes",
        gradient,
        ["plain loop, votes given", "closed form, votes given"],
    )
    report(
        "Forward and backward, from lower capsules and weights",
        gradient,
        ["plain loop, votes made", "closed form, votes made"],
    )
    with torch.no_grad():
        seconds = report(
            "Inference, from lower capsules",
            inference,
            ["plain loop", "dynamic, in pieces", "fast, votes made", "folded"],
        )
        share = B * I * D * J * E / seconds["folded"] / matmul_peak()
        print(f"The folded layer multiplies at {share:.0%} of what a large square product reaches here.")
