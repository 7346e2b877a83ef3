"""The routing layer alone, at the MNIST shape, batch 128: closed gradient against autograd, folded against routed."""

from collections.abc import Callable

import torch

from benchmarks.measure import peak_memory, table, times
from benchmarks.plain import plain_routing, plain_votes
from fastcaps.functional import dynamic_routing, fast_routing, fold_weights, route_capsules, squash

B, I, D, J, E = 128, 1152, 8, 10, 16  # noqa: E741

Run = Callable[[], object]


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(B, I, D) * 0.2, torch.randn(I, D, J, E) * 0.003, torch.randn(B, J, E)


def gradient(name: str) -> Run:
    """Forward and backward of one variant."""
    lower, weight, direction = tensors()
    votes = plain_votes(lower, weight).contiguous().requires_grad_()
    lower.requires_grad_()
    weight.requires_grad_()
    runs: dict[str, Run] = {
        "plain loop, votes given": lambda: torch.autograd.grad(plain_routing(votes), votes, direction),
        "closed form, votes given": lambda: torch.autograd.grad(dynamic_routing(votes).capsules, votes, direction),
        "plain loop, votes made": lambda: torch.autograd.grad(
            plain_routing(plain_votes(lower, weight)), (lower, weight), direction
        ),
        "closed form, votes made": lambda: torch.autograd.grad(
            route_capsules(lower, weight).capsules, (lower, weight), direction
        ),
    }
    return runs[name]


def inference(name: str) -> Run:
    """Forward of one variant, from lower to class capsules."""
    lower, weight, _ = tensors()
    coefficients = torch.rand(I, J)
    folded = fold_weights(weight, coefficients)
    runs: dict[str, Run] = {
        "plain loop": lambda: plain_routing(plain_votes(lower, weight)),
        "dynamic, in pieces": lambda: route_capsules(lower, weight),
        "fast, votes made": lambda: fast_routing(plain_votes(lower, weight), coefficients),
        "folded": lambda: squash((lower.view(B, I * D) @ folded).view(B, J, E)),
    }
    return runs[name]


def report(title: str, make: Callable[[str], Run], names: list[str]) -> None:
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
        report(
            "Inference, from lower capsules",
            inference,
            ["plain loop", "dynamic, in pieces", "fast, votes made", "folded"],
        )
