"""Many HTTP clients in one process, with keep-alive connections; records answers and response times."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

# Seconds after which a server without an answer counts as hanging.
_SECONDS = 300.0


@dataclass
class Load:
    """The results of all clients.

    Attributes:
        answers: number and document of each request that was answered with 200.
        seconds: time from the first byte sent to the last received, for each answer.
        refused: requests that were answered with another status, by status; they were not sent again.
        retried: answers with 503 after which a client waited and tried again.
        lost: requests without an answer although the connection had been accepted.
        unsent: requests without a connection, or whose connection the server closed before anything was sent.
        duration: total seconds.
    """

    answers: list[tuple[int, Any]] = field(default_factory=list, repr=False)
    seconds: list[float] = field(default_factory=list, repr=False)
    refused: dict[int, int] = field(default_factory=dict)
    retried: int = 0
    lost: int = 0
    unsent: int = 0
    duration: float = 0.0

    def percentile(self, percent: float) -> float:
        """Return a percentile of the response times in milliseconds."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    @property
    def per_second(self) -> float:
        """Return answers per second."""
        return len(self.answers) / self.duration


async def run_load(
    address: str, path: str, bodies: Sequence[bytes], *, requests: int, clients: int, retry: bool = True
) -> Load:
    """Send requests from ``clients`` concurrent clients; each sends its next request after the last answer.

    Args:
        address: address of the server.
        path: path to send to.
        bodies: request number n has body ``n % len(bodies)``.
        requests: number of requests.
        clients: number of connections.
        retry: whether to send a request again after 503, after the time that the server requests.
    """
    load, numbers = Load(), iter(range(requests))
    begun = time.perf_counter()
    await asyncio.gather(*(_client(address, path, bodies, numbers, load, retry) for _ in range(clients)))
    load.duration = time.perf_counter() - begun
    return load


async def _client(address: str, path: str, bodies: Sequence[bytes], numbers: Any, load: Load, retry: bool) -> None:
    host, port = urlsplit(address).hostname, urlsplit(address).port
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for number in numbers:
        body = bodies[number % len(bodies)]
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        while True:
            try:
                connection = connection or await asyncio.open_connection(host, port)
            except OSError:
                load.unsent += 1
                break
            reader, writer = connection
            begun = time.perf_counter()
            try:
                writer.write(head + body)
                async with asyncio.timeout(_SECONDS):
                    status, headers, content = await read_response(reader)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                load.lost += 1
                writer.close()
                connection = None
                break
            if headers.get("connection") == "close":
                writer.close()
                connection = None
            if status == 503 and retry:
                load.retried += 1
                await asyncio.sleep(float(headers["retry-after"]))
                continue
            if status == 200:
                load.seconds.append(time.perf_counter() - begun)
                load.answers.append((number, json.loads(content)))
            else:
                load.refused[status] = load.refused.get(status, 0) + 1
            break
    if connection is not None:
        connection[1].close()


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Return the status, headers and content of one response."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    return int(head[0].split(" ")[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))
