"""Limits of the server: threads, batches, waiting times, and sizes of requests."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Settings:
    """Limits of a server.

    Attributes:
        threads: CPU threads per network; None for all.
        max_batch: images per call of a network.
        max_wait_ms: how long the first image of a batch waits for others, in milliseconds.
        queue: images that are accepted and not answered yet, per network; more are refused with 503.
        timeout: seconds from the last byte of a request to its answer; then 504.
        body_timeout: seconds for the body of a request to arrive; then 408.
        drain_seconds: seconds after SIGTERM in which new requests are still answered, so that load balancers notice.
        max_body: bytes of a request.
        max_images: images per request.
        max_pixels: pixels per image.
        page: serve the page, and with PyTorch installed what it needs beyond predictions.
        api_key: required from clients of the API when not None.
    """

    threads: int | None = None
    max_batch: int = 32
    max_wait_ms: float = 2.0
    queue: int = 256
    timeout: float = 10.0
    body_timeout: float = 30.0
    drain_seconds: float = 1.0
    max_body: int = 10 * 2**20
    max_images: int = 64
    max_pixels: int = 25_000_000
    page: bool = True
    api_key: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for limits that allow no request."""
        zero = {"max_wait_ms", "drain_seconds"}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                least = 0 if field.name in zero else 1 if field.type == "int" or isinstance(value, int) else 1e-3
                if value < least:
                    raise ValueError(f"{field.name} is {value}, expected at least {least:g}")
        if self.api_key is not None and not self.api_key:
            raise ValueError("api_key is empty, expected a key, or None for an open server")
        if self.queue < self.max_images:
            raise ValueError(
                f"queue is {self.queue}, max_images is {self.max_images}: a request has to fit into the queue"
            )


# Maximum bytes of all requests that are being read, as a multiple of the maximum of one request.
BODIES_IN_MEMORY = 16
# Maximum bytes of a request that are read and discarded, as a multiple of the maximum of one request.
DISCARDED = 4


class RefusedError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: HTTP status code.
        message: one sentence for the client.
        headers: headers of the response.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}
