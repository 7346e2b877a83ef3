"""The API as an OpenAPI document."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fastcaps._version import __version__
from fastcaps.serving.answers import Capsule, Examples, Explored, Model, Models, Pixels, Prediction, Refusal
from fastcaps.serving.settings import Settings

_NAME = {"name": "name", "in": "path", "required": True, "description": "Network.", "schema": {"type": "string"}}
_INVERT = {
    "name": "invert",
    "in": "query",
    "description": "Swap light and dark; auto does if the edge is unlike that of the training images.",
    "schema": {"type": "string", "enum": ["auto", "yes", "no"], "default": "auto"},
}
_ROUTING = {
    "name": "routing",
    "in": "query",
    "description": "Routing to answer with; dynamic and both need PyTorch on the server, and a run folder.",
    "schema": {"type": "string", "enum": ["fast", "dynamic", "both"]},
}
_WITH_PIXELS = {
    "name": "pixels",
    "in": "query",
    "description": "Return the network's input, too.",
    "schema": {"type": "string", "enum": ["yes", "no"], "default": "no"},
}
_BINARY = {"type": "string", "format": "binary"}
_ERRORS = {
    "400": "The body ended before its length.",
    "401": "The API key is missing or wrong.",
    "404": "No such network.",
    "408": "The body arrived too slowly.",
    "413": "Too many bytes or pictures.",
    "422": "No picture could be read, or a parameter is wrong.",
    "503": "The queue is full; Retry-After says when to try again.",
    "504": "No answer in time.",
}


# Types of answers and bodies, which the document describes.
_TYPES = (Prediction, Explored, Pixels, Examples, Model, Models, Capsule, Refusal)


def document(settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI document of a server."""
    paths = {
        "/v1/models/{name}/predict": {"post": _predict(settings)},
        "/v1/models": {"get": _operation("models", "List the networks.", Models)},
        "/v1/models/{name}": {
            "get": _operation("model", "Describe a network: its input, classes and card.", Model, [_NAME])
        },
        "/healthz": {"get": _operation("healthz", "Say that the process is alive.")},
        "/readyz": {"get": _operation("readyz", "Say whether requests are welcome; 503 while the server stops.")},
        "/metrics": {"get": _operation("metrics", "Metrics for Prometheus.", media_type="text/plain")},
    }
    if settings.page:
        paths |= _page()
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    schemes = {"key": {"type": "http", "scheme": "bearer"}}
    result = {
        "openapi": "3.1.0",
        "info": {
            "title": "fastcaps",
            "version": __version__,
            "description": "Capsule networks whose routing is one matrix multiply at inference.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": schemes},
    }
    return result | ({} if settings.api_key is None else {"security": [{"key": []}]})


def _predict(settings: Settings) -> dict[str, Any]:
    limits = (
        f"At most {settings.max_images} pictures, {settings.max_body:,} bytes together and {settings.max_pixels:,} "
        "pixels each: PNG, JPEG, WebP, GIF or BMP. A picture that can't be read doesn't touch the others."
    )
    operation = _operation("predict", "Classify pictures.", Prediction, [_NAME, _ROUTING, _INVERT, _WITH_PIXELS])
    return operation | {"description": limits, "requestBody": _pictures(), "responses": _responses(Prediction)}


def _page() -> dict[str, Any]:
    explore = _operation(
        "explore", "Show how a network sees one picture; needs PyTorch on the server.", Explored, [_NAME, _INVERT]
    )
    words = "Draw the image that a class capsule stands for; needs PyTorch on the server."
    reconstruct = _operation("reconstruct", words, Pixels, [_NAME])
    capsule = {"required": True, "content": _json(Capsule)}
    return {
        "/v1/models/{name}/explore": {
            "post": explore | {"requestBody": _pictures(), "responses": _responses(Explored)}
        },
        "/v1/models/{name}/reconstruct": {
            "post": reconstruct | {"requestBody": capsule, "responses": _responses(Pixels)}
        },
        "/v1/models/{name}/examples": {"get": _operation("examples", "List a few test images.", Examples, [_NAME])},
    }


def _pictures() -> dict[str, Any]:
    form = {"type": "object", "properties": {"images": {"type": "array", "items": _BINARY}}}
    encoded = {"type": "array", "items": {"type": "string", "format": "byte"}}
    return {
        "required": True,
        "content": {
            "image/png": {"schema": _BINARY},
            "multipart/form-data": {"schema": form},
            "application/json": {"schema": {"type": "object", "properties": {"images": encoded}}},
        },
    }


def _responses(answer: type[Struct]) -> dict[str, Any]:
    errors = {code: {"description": words, "content": _json(Refusal)} for code, words in _ERRORS.items()}
    return {"200": {"description": "The answer.", "content": _json(answer)}, **errors}


def _operation(
    name: str,
    summary: str,
    answer: type[Struct] | None = None,
    parameters: Sequence[object] = (),
    media_type: str = "application/json",
) -> dict[str, Any]:
    content = {media_type: {"schema": {}}} if answer is None else _json(answer)
    responses = {"200": {"description": "The answer.", "content": content}}
    return {"operationId": name, "summary": summary, "parameters": list(parameters), "responses": responses}


def _json(answer: type[Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{answer.__name__}"}}}
