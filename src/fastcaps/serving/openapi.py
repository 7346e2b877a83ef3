"""The API as an OpenAPI document."""

from typing import Any

from fastcaps._version import __version__
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
_NUMBER = {"type": "number"}
_TEXT = {"type": "string"}
_PIXELS = {
    "type": "object",
    "description": "An image: bytes (channels, height, width) in base64.",
    "properties": {
        "channels": {"type": "integer"},
        "height": {"type": "integer"},
        "width": {"type": "integer"},
        "pixels": {"type": "string", "format": "byte"},
    },
}
_ANSWER = {
    "type": "object",
    "properties": {
        "class": {"type": "integer", "description": "Index of the longest capsule."},
        "name": {"type": "string", "description": "Name of that class."},
        "length": {"type": "number", "description": "Length of that capsule."},
        "lengths": {"type": "array", "items": _NUMBER, "description": "Length of each class capsule."},
        "runner_up": {"type": "string", "description": "Name of the second class."},
        "runner_up_length": _NUMBER,
        "milliseconds": {
            "type": "object",
            "description": "In the queue; of the network for the whole batch; images in that batch.",
            "properties": {"queued": _NUMBER, "network": _NUMBER, "batch": {"type": "integer"}},
        },
    },
}
_PREDICTION = {
    "type": "object",
    "properties": {
        "model": _TEXT,
        "images": {
            "type": "array",
            "description": "One entry per picture, in their order.",
            "items": {
                "type": "object",
                "properties": {
                    "image": {"type": "string", "description": "Name of the picture."},
                    "inverted": {"type": "boolean", "description": "Whether light and dark were swapped."},
                    "input": _PIXELS,
                    "fast": _ANSWER,
                    "dynamic": _ANSWER,
                    "error": {"type": "string", "description": "Why this picture has no answer."},
                },
            },
        },
        "milliseconds": {"type": "number", "description": "Of the whole request, after its last byte."},
    },
}
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


def document(settings: Settings) -> dict[str, Any]:
    """Return the OpenAPI document of a server."""
    paths: dict[str, Any] = {
        "/v1/models/{name}/predict": {"post": _predict(settings)},
        "/v1/models": {"get": _get("List the networks.", "models", ["application/json"])},
        "/v1/models/{name}": {
            "get": _get("Describe a network: its input, classes and card.", "model", parameters=[_NAME])
        },
        "/healthz": {"get": _get("Say that the process is alive.", "healthz")},
        "/readyz": {"get": _get("Say whether requests are welcome; 503 while the server stops.", "readyz")},
        "/metrics": {"get": _get("Metrics for Prometheus.", "metrics", ["text/plain"])},
    }
    if settings.page:
        paths |= _page(settings)
    result: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "fastcaps",
            "version": __version__,
            "description": "Capsule networks whose routing is one matrix multiply at inference.",
        },
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }
    if settings.api_key is not None:
        result["security"] = [{"key": []}]
    return result


def _predict(settings: Settings) -> dict[str, Any]:
    return {
        "operationId": "predict",
        "summary": "Classify pictures.",
        "description": (
            f"At most {settings.max_images} pictures, {settings.max_body:,} bytes together and {settings.max_pixels:,} "
            "pixels each: PNG, JPEG, WebP, GIF or BMP. A picture that can't be read doesn't touch the others."
        ),
        "parameters": [_NAME, _ROUTING, _INVERT, _WITH_PIXELS],
        "requestBody": _pictures(),
        "responses": _responses(_PREDICTION, _ERRORS),
    }


def _page(settings: Settings) -> dict[str, Any]:
    capsule = {"type": "array", "items": _NUMBER}
    body = {"type": "object", "properties": {"class": {"type": "integer"}, "capsule": capsule}}
    described = {"type": "object", "properties": {"input": _PIXELS, "reconstruction": _PIXELS}}
    return {
        "/v1/models/{name}/explore": {
            "post": {
                "operationId": "explore",
                "summary": "Show how a network sees one picture; needs PyTorch on the server.",
                "parameters": [_NAME, _INVERT],
                "requestBody": _pictures(),
                "responses": _responses(described, _ERRORS),
            }
        },
        "/v1/models/{name}/reconstruct": {
            "post": {
                "operationId": "reconstruct",
                "summary": "Draw the image that a class capsule stands for; needs PyTorch on the server.",
                "parameters": [_NAME],
                "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
                "responses": _responses(_PIXELS, _ERRORS),
            }
        },
        "/v1/models/{name}/examples": {"get": _get("List a few test images.", "examples", parameters=[_NAME])},
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


def _responses(schema: dict[str, Any], errors: dict[str, str]) -> dict[str, Any]:
    error = {"application/json": {"schema": {"type": "object", "properties": {"error": _TEXT}}}}
    success = {"description": "The answer.", "content": {"application/json": {"schema": schema}}}
    return {"200": success, **{code: {"description": words, "content": error} for code, words in errors.items()}}


def _get(
    summary: str, name: str, types: list[str] | None = None, parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    content: dict[str, Any] = {kind: {"schema": {}} for kind in types or ["application/json"]}
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "responses": {"200": {"description": "The answer.", "content": content}},
    }
    return operation | ({"parameters": parameters} if parameters else {})
