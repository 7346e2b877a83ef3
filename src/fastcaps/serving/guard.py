"""Middleware for every request: the API key, security headers, errors as JSON, and metrics."""

import hmac
import json
import logging
import time
from typing import final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastcaps.serving.service import Service
from fastcaps.serving.settings import RefusedError

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]
# Paths that require the API key, if there is one; the files of the page have no secrets.
_PROTECTED = ("/v1/", "/metrics")

_log = logging.getLogger("fastcaps.serving")


@final
class Guard:
    """ASGI middleware.

    Attributes:
        service: service behind the application.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Wrap an application.

        Args:
            app: application that answers.
            service: service behind it; when it stops, clients are asked to close their connections.
        """
        self._app, self.service = app, service
        key = service.settings.api_key
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        status = 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS]
                if self.service.stopping:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            if self._refuses(scope):
                raise RefusedError(
                    401,
                    "the API key is missing or wrong: send it as Authorization: Bearer KEY",
                    {"www-authenticate": "Bearer"},
                )
            await self._app(scope, receive, counted)
        except RefusedError as error:
            await _respond(counted, error.status, error.message, error.headers)
        except Exception:  # noqa: BLE001  the client gets one sentence, the log the traceback
            _log.exception("a request failed")
            if not status:
                await _respond(counted, 500, "the server failed: its log says why", {})
        finally:
            endpoint = getattr(scope.get("endpoint"), "__name__", "none")
            metrics = self.service.metrics
            metrics.requests.labels(endpoint, str(status)).inc()
            metrics.seconds.labels(endpoint).observe(time.perf_counter() - begun)

    def _refuses(self, scope: Scope) -> bool:
        if self._key is None or not scope["path"].startswith(_PROTECTED):
            return False
        headers = dict(scope["headers"])
        sent = headers.get(b"x-api-key") or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        return not hmac.compare_digest(sent, self._key)


async def _respond(send: Send, status: int, message: str, headers: dict[str, str]) -> None:
    body = json.dumps({"error": message}).encode()
    lines = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    encoded = [(name.encode(), value.encode()) for name, value in lines.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
