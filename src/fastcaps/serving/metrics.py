"""Metrics of the server for Prometheus."""

from typing import final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
disable_created_metrics()  # type: ignore[no-untyped-call]


@final
class Metrics:
    """Counters, gauges and histograms of one server."""

    def __init__(self) -> None:
        """Start from zero."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "fastcaps_requests", "Requests answered.", ["endpoint", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "fastcaps_request_seconds",
            "Seconds from the headers of a request to its answer.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.batch_images = Histogram(
            "fastcaps_batch_images",
            "Images per call of a network.",
            ["model", "routing"],
            buckets=_SIZES,
            registry=self.registry,
        )
        self.batch_seconds = Histogram(
            "fastcaps_batch_seconds",
            "Seconds per call of a network.",
            ["model", "routing"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.queue = Gauge(
            "fastcaps_queue_images",
            "Images accepted and not answered yet.",
            ["model", "routing"],
            registry=self.registry,
        )

    def text(self) -> bytes:
        """Return all of them in the exposition format."""
        return generate_latest(self.registry)
