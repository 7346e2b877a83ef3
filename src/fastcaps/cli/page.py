"""``fastcaps page``: a network as a static page that runs in the visitor's browser."""

from pathlib import Path
from typing import Annotated

import typer

from fastcaps._extras import require
from fastcaps.cli._common import Json, command, print_json


@command
def page(
    model: Annotated[str, typer.Argument(help="A bundled network, or a file from fastcaps export.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    runtime: Annotated[
        Path | None,
        typer.Option(help="Folder dist of onnxruntime-web (default: that in node_modules, otherwise linked)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a static page that runs a network in the visitor's browser, without a server behind it.

    Any static host will do. The files of onnxruntime-web are copied where npm has put them, otherwise linked with their
    hashes.

    Example:  fastcaps page mnist --out site
    """
    require("fastcaps page", "starlette", "onnxruntime")
    from fastcaps.serving.site import write_site

    site = write_site(model, out, runtime=runtime)
    if as_json:
        print_json(site.to_dict())
        return
    typer.echo(f"{site.folder}: network {site.network_bytes / 1e6:.1f} MB, everything {site.total_bytes / 1e6:.1f} MB")
    typer.echo(f"ONNX Runtime: {site.runtime}")
    typer.echo(f"next: python -m http.server -d {site.folder}, or copy it to any static host", err=True)
