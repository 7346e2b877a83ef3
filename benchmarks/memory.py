"""Memory of the whole network against the batch, without gradients: it must hardly grow."""

from collections.abc import Callable

import torch

from benchmarks.printing import table
from fastcaps import CapsNet, CapsNetConfig, fold
from fastcaps.benchmark.measure import peak_memory
from fastcaps.benchmark.plain import plain_routing
from fastcaps.functional import prediction_vectors


def network(kind: str, batch: int) -> Callable[[], object]:
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model = CapsNet(CapsNetConfig.mnist())
    fast = fold(model, torch.ones(1152, 10))
    images = torch.rand(batch, 1, 28, 28)
    runs: dict[str, Callable[[], object]] = {
        "plain, all votes at once": lambda: plain_routing(
            prediction_vectors(model.primary(model.stem(images)), model.routing.weight)
        ),
        "CapsNet": lambda: model(images),
        "FastCapsNet": lambda: fast(images),
    }
    run = runs[kind]
    small = images[:2]
    model(small)  # warmup: what libraries allocate once must not be counted
    fast(small)
    return run


def main() -> None:
    batches = [64, 250, 1000]
    kinds = ["plain, all votes at once", "CapsNet", "FastCapsNet"]
    print("Peak memory in MB beyond the model, MNIST network, inference\n")
    table(
        ["batch", *(str(batch) for batch in batches)],
        [[kind, *(f"{peak_memory(network, kind, batch):.0f}" for batch in batches)] for kind in kinds],
    )
