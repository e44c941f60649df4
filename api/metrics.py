"""`ServingMetrics`: what a server does, as Prometheus reads it."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCIES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_OTHER = "other"


class ServingMetrics:
    """Counters of one app; several apps of a process have their own."""

    def __init__(self, model: str) -> None:
        """`model`: its id."""
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "ctr_requests", "Requests answered.", ["path", "status"], registry=self._registry
        )
        self._latency = Histogram(
            "ctr_request_seconds",
            "Seconds from a request's head to the end of its answer.",
            ["path"],
            buckets=_LATENCIES_S,
            registry=self._registry,
        )
        self._under_way = Gauge(
            "ctr_requests_under_way", "Requests not yet answered.", registry=self._registry
        )
        self.rows = Counter("ctr_rows", "Rows predicted.", registry=self._registry)
        self.unknown_values = Counter(
            "ctr_unknown_values", "Values of fields that the model does not know.", registry=self._registry
        )
        of_model = Gauge("ctr_model", "1 for the model that is served.", ["id"], registry=self._registry)
        of_model.labels(model).set(1)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)

    def counting(self, app: ASGIApp, paths: frozenset[str]) -> ASGIApp:
        """The app, whose requests are counted: by path if it is one of these, else together."""

        # By path and status, as to look a child up takes longer than to count.
        children: dict[tuple[str, str], Counter] = {}
        latencies: dict[str, Histogram] = {}

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            path, status, began = scope["path"], "500", perf_counter()
            path = path if path in paths else _OTHER

            async def sending(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = str(message["status"])
                await send(message)

            self._under_way.inc()
            try:
                await app(scope, receive, sending)
            finally:
                self._under_way.dec()
                if (path, status) not in children:
                    children[path, status] = self._requests.labels(path, status)
                    latencies[path] = self._latency.labels(path)
                children[path, status].inc()
                latencies[path].observe(perf_counter() - began)

        return counted
