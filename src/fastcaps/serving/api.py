"""The HTTP interface: addresses, parameters, and the files of the page."""

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any, cast, final

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fastcaps._version import __version__
from fastcaps.runtime.pictures import Invert
from fastcaps.serving import metrics
from fastcaps.serving.answers import Capsule, Models
from fastcaps.serving.guard import Guard
from fastcaps.serving.models import ServedModel
from fastcaps.serving.openapi import document
from fastcaps.serving.service import PredictOptions, Service
from fastcaps.serving.settings import RefusedError, Settings

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INVERT = ("auto", "yes", "no")


def create_app(models: Mapping[str, ServedModel], settings: Settings | None = None) -> Guard:
    """Return the ASGI application that serves networks.

    Args:
        models: networks by name, as `open_model` returns them.
        settings: limits.
    """
    service = Service(models, settings or Settings())
    api = _Api(service)
    routes = [
        Route("/healthz", api.healthz),
        Route("/readyz", api.readyz),
        Route("/metrics", api.metrics),
        Route("/openapi.json", api.openapi),
        Route("/v1/models", api.models),
        Route("/v1/models/{name}", api.model),
        Route("/v1/models/{name}/predict", api.predict, methods=["POST"]),
    ]
    if service.settings.page:
        routes += [
            Route("/v1/models/{name}/explore", api.explore, methods=["POST"]),
            Route("/v1/models/{name}/reconstruct", api.reconstruct, methods=["POST"]),
            Route("/v1/models/{name}/examples", api.examples),
            Route("/", api.file),
            Route("/docs", api.file),
            Route("/static/{file}", api.file),
        ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with service.running():
            yield

    refusals: Any = {404: _refused, 405: _refused, RefusedError: _refused}
    return Guard(Starlette(routes=routes, lifespan=lifespan, exception_handlers=refusals), service)


async def _refused(request: Request, error: Any) -> Response:
    if isinstance(error, RefusedError):
        return JSONResponse({"error": error.message}, error.status, error.headers)
    message = {404: "there is nothing at this address: see /docs", 405: "this address takes another method: see /docs"}
    return JSONResponse({"error": message[error.status_code]}, error.status_code, error.headers)


@final
class _Api:
    """One method per address."""

    def __init__(self, service: Service) -> None:
        self._service = service
        folder = resources.files("fastcaps.serving") / "static"
        self._files = {item.name: item.read_bytes() for item in folder.iterdir() if "." in item.name}

    async def healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "alive", "fastcaps": __version__})

    async def readyz(self, request: Request) -> Response:
        ready = self._service.ready and not self._service.stopping
        return JSONResponse({"status": "ready" if ready else "stopping"}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.metrics.text(), media_type=metrics.CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(document(self._service.settings))

    async def models(self, request: Request) -> Response:
        return _json(Models([model.summary() for model in self._service.models.values()]))

    async def model(self, request: Request) -> Response:
        model = self._model(request)
        return _json(msgspec.structs.replace(model.summary(), card=model.card))

    async def predict(self, request: Request) -> Response:
        model = self._model(request)
        pixels = request.query_params.get("pixels") == "yes"
        options = PredictOptions(_routings(request, model), _invert(request), pixels)
        pictures = await self._service.pictures(request)
        return _json(await self._service.predict(model, pictures, options))

    async def explore(self, request: Request) -> Response:
        model = self._explorable(request)
        invert = _invert(request)
        return _json(await self._service.explore(model, await self._service.pictures(request), invert))

    async def reconstruct(self, request: Request) -> Response:
        model = self._explorable(request)
        label, capsule = _capsule(await self._service.body(request), model)
        return _json(await self._service.reconstruct(model, label, capsule))

    async def examples(self, request: Request) -> Response:
        return _json(await self._service.examples(self._model(request)))

    async def file(self, request: Request) -> Response:
        name = request.path_params.get("file", "index.html" if request.url.path == "/" else "docs.html")
        content = self._files.get(name)
        if content is None:
            raise RefusedError(404, "there is nothing at this address: see /docs")
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=_TYPES["." + name.rpartition(".")[2]])

    def _model(self, request: Request) -> ServedModel:
        return self._service.model(request.path_params["name"])

    def _explorable(self, request: Request) -> ServedModel:
        model = self._model(request)
        if model.folder is None:
            raise RefusedError(
                422, f"{model.name} has no PyTorch network on this server: serve a run folder, with fastcaps[train]"
            )
        return model


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _routings(request: Request, model: ServedModel) -> tuple[str, ...]:
    routing = request.query_params.get("routing", model.routing)
    wanted = ("fast", "dynamic") if routing == "both" else (routing,)
    if not set(wanted) <= set(model.routings):
        possible = [*model.routings, *(["both"] if {"fast", "dynamic"} <= set(model.routings) else [])]
        raise RefusedError(
            422, f"{model.name} has no such routing here, expected one of {', '.join(possible)}: others need PyTorch"
        )
    return wanted


def _invert(request: Request) -> Invert:
    invert = request.query_params.get("invert", "auto")
    if invert not in _INVERT:
        raise RefusedError(422, f"invert has an unknown value, expected one of {', '.join(_INVERT)}")
    return cast(Invert, invert)


def _capsule(body: bytes, model: ServedModel) -> tuple[int, np.ndarray[Any, np.dtype[np.float32]]]:
    size = model.card["config"]["class_dimension"]
    expected = f'expected {{"class": 0 to {len(model.class_names) - 1}, "capsule": [{size} numbers]}}'
    try:
        sent = msgspec.json.decode(body, type=Capsule)
    except (ValueError, RecursionError):
        raise RefusedError(422, f"the body is no capsule, {expected}") from None
    with np.errstate(over="ignore"):
        capsule = np.array(sent.capsule, np.float32)
    if not 0 <= sent.label < len(model.class_names):
        raise RefusedError(422, f"class is unknown, {expected}")
    if capsule.shape != (size,) or not np.isfinite(capsule).all():
        raise RefusedError(422, f"capsule has other numbers, {expected}")
    return sent.label, capsule
