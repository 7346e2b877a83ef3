"""Networks over HTTP: a server with an API and a live page, and a static page that needs no server."""

from typing import TYPE_CHECKING

from fastcaps._lazy import lazy_names

if TYPE_CHECKING:
    from fastcaps.serving.api import create_app
    from fastcaps.serving.models import ServedModel, open_model
    from fastcaps.serving.server import background, serve
    from fastcaps.serving.settings import Settings

__all__ = ["serve", "background", "create_app", "Settings", "open_model", "ServedModel"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "serve": "fastcaps.serving.server",
        "background": "fastcaps.serving.server",
        "create_app": "fastcaps.serving.api",
        "Settings": "fastcaps.serving.settings",
        "open_model": "fastcaps.serving.models",
        "ServedModel": "fastcaps.serving.models",
    },
)
