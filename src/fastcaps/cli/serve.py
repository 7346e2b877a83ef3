"""``fastcaps serve``: networks over HTTP, and a page to try them on."""

import os
import webbrowser
from typing import Annotated

import typer

from fastcaps._extras import require
from fastcaps.cli._common import Threads, command


@command
def serve(
    models: Annotated[
        list[str],
        typer.Argument(help="Bundled networks, files from fastcaps export, or run folders; NAME=PATH names one."),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")] = 8000,
    threads: Threads = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Images per call of a network.")] = 32,
    max_wait_ms: Annotated[float, typer.Option(min=0, help="Milliseconds that an image waits for others.")] = 2.0,
    queue: Annotated[int, typer.Option(min=1, help="Images that may wait; more are refused with 503.")] = 256,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds until a request is answered with 504.")] = 10.0,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds after SIGTERM in which new requests are still answered.")
    ] = 1.0,
    page: Annotated[bool, typer.Option(help="Serve the page, too, not only the API.")] = True,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve networks over HTTP: a JSON API that batches concurrent requests, and a page to draw on.

    Only this machine can connect unless --host says otherwise. With FASTCAPS_API_KEY in the environment clients have to
    send that key.

    Example:  fastcaps serve mnist --open
    """
    require(
        "fastcaps serve", "starlette", "uvicorn", "httptools", "python_multipart", "prometheus_client", "onnxruntime"
    )
    from fastcaps.serving.models import open_models
    from fastcaps.serving.server import is_loopback
    from fastcaps.serving.server import serve as run
    from fastcaps.serving.settings import Settings

    settings = Settings(
        threads=threads,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        queue=queue,
        max_images=min(queue, Settings.max_images),
        timeout=timeout,
        drain_seconds=drain_seconds,
        page=page,
        api_key=os.environ.get("FASTCAPS_API_KEY") or None,
    )
    networks = open_models(models, threads=threads)

    def started(address: str) -> None:
        typer.echo(f"{', '.join(networks)}: {address}" + ("" if page else "/v1/models"))
        if not is_loopback(host) and settings.api_key is None:
            typer.echo("anybody who reaches this address can use it: FASTCAPS_API_KEY sets a key", err=True)
        if open_browser and page:
            webbrowser.open(address)

    run(networks, settings, host=host, port=port, started=started)
