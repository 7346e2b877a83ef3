"""``fastcaps models``: the trained networks that come with the package."""

import typer

from fastcaps import bundled
from fastcaps._result import plain
from fastcaps.cli._common import Json, command, print_json, print_table


@command
def models(as_json: Json = False) -> None:
    """List the networks that come with fastcaps: their data, accuracy, size, and whether their files are here.

    Missing files are downloaded from $FASTCAPS_MODELS_URL when a network is first used. Other commands take the names
    in place of a run folder. Accuracies are on the whole test set, of the weights as they are stored.

    Example:  fastcaps models
    """
    collection = bundled.describe_all()
    if as_json:
        print_json(plain(collection.networks))
        return
    for table in collection.tables():
        print_table(table)
    for network in collection.networks:
        files = [network.card, *([network.onnx] if network.onnx else [])]
        typer.echo(f"{network.name}: {', '.join(files)}", err=True)
