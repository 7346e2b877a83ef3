"""The server process: binding, limits below HTTP, and graceful shutdown."""

import asyncio
import ipaddress
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fastcaps.serving.api import create_app
from fastcaps.serving.guard import Guard
from fastcaps.serving.models import ServedModel
from fastcaps.serving.service import Service
from fastcaps.serving.settings import DISCARDED, Settings

# Maximum bytes of the request line and headers of one request.
_MAX_HEADER_BYTES = 64 * 2**10
_HEADER_SECONDS = 10.0
# Longer than the idle timeout of load balancers, so that they close idle connections first.
_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048
_STEP_SECONDS = 0.1
# Seconds that connections without a request are kept open when the server stops.
_IDLE_SECONDS = 5.0
# Seconds that requests may take beyond their own limits when the server stops.
_SLACK_SECONDS = 5


def serve(
    models: Mapping[str, ServedModel],
    settings: Settings | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Answer requests until SIGTERM or SIGINT; requests that were accepted are answered first.

    Args:
        models: networks by name, as `open_models` returns them.
        settings: limits.
        host: address to listen on; the loopback interface is reached from this machine only.
        port: 0 for any free one.
        started: called with the address when the server is ready.
    """
    listener = _bind(host, port)
    app = create_app(models, settings)
    server = _server(app)
    address = _address(host, listener.getsockname()[1])
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_run(server, listener, app.service, lambda: started(address)))


@contextmanager
def background(
    models: Mapping[str, ServedModel], settings: Settings | None = None, *, host: str = "127.0.0.1", port: int = 0
) -> Iterator[str]:
    """Answer requests in a background thread within the context, for notebooks and tests; arguments as for `serve`.

    Yields:
        The address.
    """
    listener = _bind(host, port)
    app = create_app(models, settings)
    server, ready = _server(app), threading.Event()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
                runner.run(_run(server, listener, app.service, ready.set))
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="fastcaps-serve")
    thread.start()
    ready.wait()
    try:
        if not server.started:
            raise RuntimeError("the server did not start: its thread says why")
        yield _address(host, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()


def _server(app: Guard) -> uvicorn.Server:
    settings = app.service.settings
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=partial(LimitedProtocol, max_bytes=(DISCARDED + 1) * settings.max_body),  # type: ignore[arg-type]
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(settings.timeout + settings.body_timeout + _SLACK_SECONDS),
        )
    )


def _accept_waiting(server: uvicorn.Server, listener: socket.socket) -> list[asyncio.Task[Any]]:
    """Accept the connections in the backlog of the socket: the system would reset them when the socket closes."""
    loop = asyncio.get_running_loop()
    protocol: Any = server.config.http_protocol_class
    create = partial(protocol, server.config, server.server_state, server.lifespan.state, _loop=loop)
    waiting = []
    listener.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            waiting.append(listener.accept()[0])
    for connection in waiting:
        connection.setblocking(False)
    return [loop.create_task(loop.connect_accepted_socket(create, connection)) for connection in waiting]


async def _run(server: uvicorn.Server, listener: socket.socket, service: Service, started: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    serving = loop.create_task(server.serve(sockets=[listener]))

    async def stop() -> None:
        """Stop in steps, so that no connection with a request is closed."""
        service.stopping = True  # clients are asked to close their connections
        await asyncio.sleep(service.settings.drain_seconds)
        accepting = _accept_waiting(server, listener)
        for listening in server.servers:
            listening.close()
        await asyncio.gather(*accepting)
        # A request may be arriving on an idle connection; connections with a request close after the answer.
        until = loop.time() + _IDLE_SECONDS
        while server.server_state.connections and loop.time() < until:
            await asyncio.sleep(_STEP_SECONDS)
        server.should_exit = True

    def stop_now() -> None:
        server.force_exit = server.should_exit
        service.stopping = server.should_exit = True

    stopping: list[asyncio.Task[None]] = []
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        # Replace the handlers of uvicorn, with which the process would die of the signal after the last answer.
        loop.add_signal_handler(signal.SIGTERM, lambda: stopping.append(loop.create_task(stop())))
        loop.add_signal_handler(signal.SIGINT, stop_now)
    if server.started:
        started()
    await serving


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(
            f"can't listen on {_address(host, port)}: {error.strerror or error}; choose another port"
        ) from None
    return listener


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@final
class LimitedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits on what arrives before the application sees it: bytes, and seconds for the headers."""

    def __init__(self, *args: Any, max_bytes: int, **options: Any) -> None:
        """Make the protocol of a connection.

        Args:
            args: as uvicorn gives them.
            max_bytes: maximum bytes of one request, including everything that is neither header nor body.
            options: as uvicorn gives them.
        """
        super().__init__(*args, **options)
        self._max_bytes, self._received, self._in_headers = max_bytes, 0, True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect headers."""
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, within the limits."""
        self._received += len(data)
        super().data_received(data)
        if self._received > (_MAX_HEADER_BYTES if self._in_headers else self._max_bytes):
            self.transport.close()

    def on_message_begin(self) -> None:
        """Expect headers."""
        super().on_message_begin()
        self._received = 0
        self._expect_headers()

    def on_headers_complete(self) -> None:
        """Start the application."""
        self._stop_timer()
        self._in_headers = False
        super().on_headers_complete()

    def _expect_headers(self) -> None:
        self._stop_timer()
        self._in_headers = True
        self._timer = self.loop.call_later(_HEADER_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
