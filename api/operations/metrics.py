"""`ServingMetrics`: what a server does, as Prometheus reads it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCIES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_OTHER = "other"
_SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The folder in which the processes of a server keep what they count; to be set before this is imported."""


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
            "ctr_requests_under_way",
            "Requests not yet answered.",
            multiprocess_mode="livesum",
            registry=self._registry,
        )
        self.rows = Counter("ctr_rows", "Rows predicted.", registry=self._registry)
        self.unknown_values = Counter(
            "ctr_unknown_values", "Values of fields that the model does not know.", registry=self._registry
        )
        self._models = Gauge(
            "ctr_model",
            "1 for each version served.",
            ["id"],
            multiprocess_mode="livemax",
            registry=self._registry,
        )
        self.changes = Counter(
            "ctr_version_changes", "Versions that took another's place.", registry=self._registry
        )
        self.failed_versions = Counter(
            "ctr_failed_versions", "Versions that are not served, as they failed.", registry=self._registry
        )
        self.unread = Counter(
            "ctr_unread_labels", "Times that the registry could not be read.", registry=self._registry
        )
        self._served: set[str] = set()
        self.serve([model])

    def serve(self, models: Iterable[str]) -> None:
        """These are the ids of what is served now."""
        now = set(models)
        for model in self._served - now:
            if _SHARED in os.environ:
                self._models.labels(model).set(0)  # of several processes, nothing can be removed
            else:
                self._models.remove(model)
        for model in now - self._served:
            self._models.labels(model).set(1)
        self._served = now

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        if _SHARED not in os.environ:
            return generate_latest(self._registry)
        of_all = CollectorRegistry()
        multiprocess.MultiProcessCollector(of_all)  # type: ignore[no-untyped-call]
        return generate_latest(of_all)

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
