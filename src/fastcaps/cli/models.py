"""``fastcaps models``: the trained networks that come with the package."""

import typer

from fastcaps import bundled
from fastcaps.cli._common import Json, command, print_json, print_table


@command
def models(as_json: Json = False) -> None:
    """List the networks that come with fastcaps: what they were trained for, how well they do, how large they are.

    Their names stand for a run folder in other commands. Accuracies are on the whole test set, of the weights as they
    are stored.

    Example:  fastcaps models
    """
    found = [bundled.describe(name) for name in bundled.names()]
    if as_json:
        print_json(found)
        return
    ways = ("dynamic", "fast", "uniform")
    print_table(
        "Networks that come with fastcaps",
        ["name", "data", "normalisation", *ways, "MB", "SHA-256 of the weights"],
        [
            [
                entry["name"],
                entry["data"],
                entry["normalization"],
                *(f"{entry['accuracy'][way]:.2%}" for way in ways),
                f"{entry['bytes'] / 1e6:.1f}",
                f"{entry['weights_sha256'][:12]}…",
            ]
            for entry in found
        ],
    )
    for entry in found:
        files = [f"{entry['folder']}/README.md", *([entry["onnx"]] if entry["onnx"] else [])]
        typer.echo(f"{entry['name']}: {', '.join(files)}", err=True)
