"""HTTP as vLLM's middleware counts it: by path, method and class of status.

A request is counted here once, not a token, so prometheus_client's own metrics will do.
vLLM takes sizes from Content-Length, so what is streamed counts as nothing; here bytes are counted.
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary

MANY_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5),
    *(10, 30, 60),
)
FEW_S = (0.1, 0.5, 1)


@dataclass(slots=True)
class Exchange:
    """One HTTP request and its answer. Changed for every message, so plain."""

    handler: str
    method: str
    status: int = 499  # the client has left before there was one
    request_bytes: int = 0
    response_bytes: int = 0


class HttpSeries:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "http_requests",
            "HTTP requests by path, method and class of status; a client that left unanswered is 4xx.",
            ("handler", "method", "status"),
            registry=registry,
        )
        self._request_bytes = Summary(
            "http_request_size_bytes", "Bytes of the bodies of requests.", ("handler",), registry=registry
        )
        self._response_bytes = Summary(
            "http_response_size_bytes",
            "Bytes of the bodies of answers, streamed ones too (which count as 0 in vLLM).",
            ("handler",),
            registry=registry,
        )
        self._seconds_finely = Histogram(
            "http_request_duration_highr_seconds",
            "From the head of a request to the last byte of its answer.",
            registry=registry,
            buckets=MANY_S,
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "The same by path and method, with few buckets.",
            ("handler", "method"),
            registry=registry,
            buckets=FEW_S,
        )

    def on_over(self, exchange: Exchange, took_s: float) -> None:
        handler, method = exchange.handler, exchange.method
        self._requests.labels(handler, method, f"{exchange.status // 100}xx").inc()
        self._request_bytes.labels(handler).observe(exchange.request_bytes)
        self._response_bytes.labels(handler).observe(exchange.response_bytes)
        self._seconds_finely.observe(took_s)
        self._seconds.labels(handler, method).observe(took_s)
