"""`ServingMetrics`: metrics of a server, for Prometheus."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    multiprocess,
)

from ctr.api.operations.version_metrics import VersionMetrics

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ctr.api.operations.stand_in import StandIn
    from ctr.lookup import LiveWeights

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCIES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_FRESHNESS_S = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 5.0, 10.0, 60.0)
_ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
_DIFFERENCES = (0.0, 1e-5, 1e-4, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_OTHER, _CONNECTION = "other", "connection"
"""Paths in the metrics: of requests to other paths, and of those refused before their path was known."""
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The folder in which the processes of a server keep their counts; set it before this module is imported."""


def route_path(scope: Scope) -> str:
    """The path of a request within its application, which may be mounted in another one."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


class ServingMetrics:
    """The metrics of one application; several applications of a process have their own."""

    def __init__(self, model: str) -> None:
        """`model`: the id of the model that is served."""
        self._registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        ProcessCollector(registry=registry)
        self._requests = counter("ctr_requests", "Requests answered.", ["path", "status"])
        self._latency = histogram(
            "ctr_request_seconds",
            "Seconds from a request's head to the end of its answer.",
            ["path"],
            buckets=_LATENCIES_S,
        )
        self._counted: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        """Cached, as looking these up takes longer than counting."""
        self._under_way = gauge(
            "ctr_requests_under_way", "Requests not yet answered.", multiprocess_mode="livesum"
        )
        self.rows = counter("ctr_rows", "Rows predicted.")
        self._rows_by_request = histogram("ctr_request_rows", "Rows of a request.", buckets=_ROWS)
        self.unknown_values = counter("ctr_unknown_values", "Values of fields that the model does not know.")
        self.changes = counter("ctr_version_changes", "Versions that replaced another.")
        self.failed_versions = counter(
            "ctr_failed_versions", "Versions that are not served because they failed."
        )
        self.unread = counter("ctr_unread_labels", "Times that the registry could not be read.")
        self._memory = gauge(
            "ctr_memory_bytes",
            "Memory of all processes; shared memory counts once.",
            multiprocess_mode="livesum",
        )
        self._age = gauge(
            "ctr_weights_age_seconds",
            "Live weights: seconds for which pushes may not have arrived here, or nobody trained.",
            multiprocess_mode="livemax",
        )
        self._push_to_served = histogram(
            "ctr_push_to_served_seconds",
            "Live weights: seconds from a push's arrival at the store, by its clock, until it is served.",
            buckets=_FRESHNESS_S,
        )
        self._live: LiveWeights | StandIn | None = None
        self._counted_changes = 0
        self._changed = counter("ctr_weights_changed", "Live weights: changes of slots.")
        self.fields, self.shadow = FieldMetrics(registry), ShadowMetrics(registry)
        self.not_kept = counter("ctr_rows_not_kept", "Rows served that the feedback log could not store.")
        self._shared = SHARED_FOLDER in os.environ
        self._versions = VersionMetrics(Path(os.environ[SHARED_FOLDER]) if self._shared else None)
        registry.register(self._versions)
        self.serve([model])

    def serve(self, models: Iterable[str]) -> None:
        """Set the ids of the models that are served now."""
        self._versions.serve(models)

    @property
    def served(self) -> tuple[str, ...]:
        """The ids of the models that are served now."""
        return self._versions.served

    def predicted_by(self, model: str, created: str) -> Callable[[NDArray[np.float32]], None]:
        """Counts the predictions of a version for a request; `created`: ISO 8601, or empty."""
        count_predictions = self._versions.predicted_by(model, created)

        def count(predictions: NDArray[np.float32]) -> None:
            self.rows.inc(predictions.size)
            self._rows_by_request.observe(predictions.size)
            count_predictions(predictions)

        return count

    def follow(self, live: LiveWeights | StandIn) -> None:
        """Report the age of these weights, and how much changes in them."""
        self._live, self._counted_changes = live, 0
        live.on_served = self._push_to_served.observe
        self.note_age()

    def unfollow(self, live: LiveWeights | StandIn) -> None:
        """Stop that, unless other weights have taken their place."""
        if self._live is live:
            self._live = None

    def note_age(self) -> None:
        """Update the age of live weights, if there are any."""
        if (live := self._live) is not None:
            self._age.set(live.age_s)
            self._counted_changes, before = live.changes, self._counted_changes
            self._changed.inc(self._counted_changes - before)

    def note_memory(self) -> None:
        """Update the memory of this process, with its part of shared memory."""
        with suppress(OSError):  # only Linux has it
            text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
            if (size := re.search(r"^Pss: +(\d+) kB$", text, re.MULTILINE)) is not None:
                self._memory.set(1024 * int(size[1]))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        self.note_age()
        if not self._shared:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        registry.register(self._versions)
        return generate_latest(registry)

    def counting(self, app: ASGIApp, paths: frozenset[str]) -> ASGIApp:
        """`app` with its requests counted: by path for these paths, the others together."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            path, status, began = route_path(scope), "500", perf_counter()
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
                self.count(path, status, perf_counter() - began)

        return counted

    def count(self, path: str, status: str, seconds: float) -> None:
        """Count a request that was answered."""
        if (path, status) not in self._counted:
            self._counted[path, status] = self._requests.labels(path, status), self._latency.labels(path)
        requests, latency = self._counted[path, status]
        requests.inc()
        latency.observe(seconds)

    def count_refusal(self, status: str) -> None:
        """Count an answer that a connection gave before there was a request."""
        self._requests.labels(_CONNECTION, status).inc()


class FieldMetrics:
    """How many features of sampled rows have no weight in the model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, labelnames=["field"], registry=registry)
        self._features = counter("ctr_field_features", "Features of sampled rows, by field.")
        self._unseen = counter("ctr_field_unseen", "Those of them for which the model has no weight.")
        self._expected = Gauge(
            "ctr_field_unseen_expected",
            "The share of them in the hold-out of training.",
            ["field"],
            multiprocess_mode="livemax",
            registry=registry,
        )

    def expect(self, shares: Mapping[str, float]) -> None:
        """Set the share of features without a weight in the hold-out of a version's training, by field."""
        for name, share in shares.items():
            self._expected.labels(name).set(share)

    def count(self, name: str, features: int, unseen: int) -> None:
        """Count features of a field, and those of them that have no weight."""
        self._features.labels(name).inc(features)
        self._unseen.labels(name).inc(unseen)


class ShadowMetrics:
    """How the shadow version differs from the versions that answer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.difference = Histogram(
            "ctr_shadow_difference",
            "Absolute difference between the shadow version's prediction and the one served, by row.",
            buckets=_DIFFERENCES,
            registry=registry,
        )
        self.predictions = Counter(
            "ctr_shadow_predictions",
            "Sums of predictions for rows that the shadow version also predicted.",
            ["by"],
            registry=registry,
        )
        self.left_out = Counter(
            "ctr_shadow_left_out",
            "Requests for the shadow version that it did not predict.",
            ["why"],
            registry=registry,
        )
