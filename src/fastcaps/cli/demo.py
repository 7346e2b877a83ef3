"""``fastcaps demo``: the main job on real digits that come with scikit-learn."""

import time

import typer

from fastcaps._extras import require
from fastcaps.cli._common import command, print_json, print_table


@command
def demo(
    seed: int = typer.Option(0, min=0, help="Of the network's weights."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Route, accumulate and fold: dynamic routing beside one matrix multiply.

    On 1,797 real digits that come with scikit-learn, with a network as it is before training: it shows that the parts
    fit together and what folding saves, not what a trained network knows.

    Example:  fastcaps demo --seed 1
    """
    require("fastcaps demo", "torch", "sklearn")
    import torch
    from sklearn.datasets import load_digits

    import fastcaps

    def say(text: str) -> None:
        typer.echo(text, err=True)

    def timed(network: fastcaps.nn.CapsuleNetwork) -> tuple[torch.Tensor, float]:
        network.predict(images[:64])
        start = time.perf_counter()
        lengths = network(images).lengths
        return lengths, (time.perf_counter() - start) / len(images)

    torch.manual_seed(seed)
    digits = load_digits()
    small = torch.from_numpy(digits.images).float()[:512, None] / 16  # (b, 1, 8, 8)
    images = torch.nn.functional.interpolate(small, (28, 28), mode="bilinear")  # (b, 1, 28, 28)
    labels = torch.from_numpy(digits.target)[:512]
    model = fastcaps.CapsNet(fastcaps.CapsNetConfig.mnist()).eval()
    say(f"{len(images)} digits of 28×28, {model.config.lower_capsules} lower capsules, 10 classes, seed {seed}")
    with torch.no_grad():
        say("routing them and accumulating the coefficients of each class ...")
        master = fastcaps.accumulate(model, [(images, labels)])
        fast = fastcaps.fold(model, master)
        votes_way = fastcaps.functional.fast_routing(
            fastcaps.functional.prediction_vectors(model.lower_capsules(images[:64]), model.routing.weight),
            master.values.float(),
        )
        folded, dynamic = timed(fast), timed(model)
        difference = float((fast(images[:64]).capsules - votes_way).abs().max())
    result = {
        "seed": seed,
        "images": len(images),
        "threads": torch.get_num_threads(),
        "dynamic_ms_per_image": dynamic[1] * 1e3,
        "fast_ms_per_image": folded[1] * 1e3,
        "largest_difference_of_folding": difference,
    }
    if as_json:
        print_json(result)
        return
    print_table(
        "Whole network",
        ["routing", "ms/image", "mean length of the longest capsule"],
        [
            [name, f"{seconds * 1e3:.2f}", f"{float(lengths.amax(1).mean()):.3f}"]
            for name, (lengths, seconds) in (("dynamic, 3 iterations", dynamic), ("fast, folded", folded))
        ],
    )
    say(f"Folding differs from weighting every vote by at most {difference:.1e}.")
