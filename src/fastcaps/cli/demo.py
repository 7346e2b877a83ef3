"""``fastcaps demo``: the main job on real digits that come with scikit-learn."""

import typer

from fastcaps._extras import require
from fastcaps.cli._common import command, print_json, print_table


@command
def demo(
    seed: int = typer.Option(0, min=0, help="Of the network's weights."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Route, accumulate and fold: dynamic routing beside one matrix multiply.

    On 1,797 real digits that come with scikit-learn, with a network as it is before training: it shows that the
    parts fit together and what folding saves, not what a trained network knows.

    Example:  fastcaps demo --seed 1
    """
    require("fastcaps demo", "torch", "sklearn")
    from fastcaps.demo import run

    result = run(seed=seed, say=lambda text: typer.echo(text, err=True))
    if as_json:
        print_json(result)
        return
    print_table(
        "The routing layer, per image",
        ["", "ms", "largest difference of lengths"],
        [[row["name"], f"{row['ms']:.3f}", f"{row['difference']:.1e}"] for row in result["rows"]],
    )
