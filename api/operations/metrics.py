"""`ServingMetrics`: what a server does, as Prometheus reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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

    from ctr.lookup import LiveWeights

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCIES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_FRESHNESS_S = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 5.0, 10.0, 60.0)
_ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
_DIFFERENCES = (0.0, 1e-5, 1e-4, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_OTHER = "other"
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
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
        self._rows_by_request = Histogram(
            "ctr_request_rows", "Rows of a request.", buckets=_ROWS, registry=self._registry
        )
        ProcessCollector(registry=self._registry)
        self.unknown_values = Counter(
            "ctr_unknown_values", "Values of fields that the model does not know.", registry=self._registry
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
        self._memory = Gauge(
            "ctr_memory_bytes",
            "Memory of all processes; what they share counts once.",
            multiprocess_mode="livesum",
            registry=self._registry,
        )
        self._age = Gauge(
            "ctr_weights_age_seconds",
            "Live weights: seconds for which pushes may not have arrived here.",
            multiprocess_mode="livemax",
            registry=self._registry,
        )
        self._push_to_served = Histogram(
            "ctr_push_to_served_seconds",
            "Live weights: seconds from a push's arrival at the store, by its clock, until it is served.",
            buckets=_FRESHNESS_S,
            registry=self._registry,
        )
        self._live: LiveWeights | None = None
        self._noted = 0
        self._changed = Counter(
            "ctr_weights_changed", "Live weights: changes of slots.", registry=self._registry
        )
        self.fields, self.shadow = FieldMetrics(self._registry), ShadowMetrics(self._registry)
        self.not_kept = Counter(
            "ctr_rows_not_kept", "Rows served that the feedback log could not take.", registry=self._registry
        )
        self._shared = SHARED_FOLDER in os.environ
        self._versions = VersionMetrics(Path(os.environ[SHARED_FOLDER]) if self._shared else None)
        self._registry.register(self._versions)
        self.serve([model])

    def serve(self, models: Iterable[str]) -> None:
        """These are the ids of what is served now."""
        self._versions.serve(models)

    def predicted_by(self, model: str, created: str) -> Callable[[NDArray[np.float32]], None]:
        """Notes the predictions of a version for the rows of a request; `created`: ISO 8601, or nothing."""
        note_predictions = self._versions.predicted_by(model, created)

        def note(of_rows: NDArray[np.float32]) -> None:
            self.rows.inc(of_rows.size)
            self._rows_by_request.observe(of_rows.size)
            note_predictions(of_rows)

        return note

    def follow(self, live: LiveWeights | None) -> None:
        """Show the age of these weights, and how much has changed in them."""
        self._live, self._noted = live, 0
        if live is not None:
            live.on_served = self._push_to_served.observe
        self.note_age()

    def note_age(self) -> None:
        """Note how old live weights are, if there are any."""
        if (live := self._live) is not None:
            self._age.set(live.age_s)
            self._noted, before = live.changes, self._noted
            self._changed.inc(self._noted - before)

    def note_memory(self) -> None:
        """Note how much memory this process has: of what it shares, its part."""
        with suppress(OSError):  # as on other systems than Linux
            text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
            if (size := re.search(r"^Pss: +(\d+) kB$", text, re.MULTILINE)) is not None:
                self._memory.set(1024 * int(size[1]))

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        self.note_age()
        if not self._shared:
            return generate_latest(self._registry)
        of_all = CollectorRegistry()
        multiprocess.MultiProcessCollector(of_all)  # type: ignore[no-untyped-call]
        of_all.register(self._versions)
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


class FieldMetrics:
    """Of sampled rows, how many features the model has no weight for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._features = Counter(
            "ctr_field_features", "Features of sampled rows, by field.", ["field"], registry=registry
        )
        self._unseen = Counter(
            "ctr_field_unseen",
            "Those of them for which the model has no weight.",
            ["field"],
            registry=registry,
        )
        self._expected = Gauge(
            "ctr_field_unseen_expected",
            "The share of them in the hold-out of training.",
            ["field"],
            multiprocess_mode="livemax",
            registry=registry,
        )

    def expect(self, shares: Mapping[str, float]) -> None:
        """By field, the share of features without a weight in the hold-out of a version's training."""
        for name, share in shares.items():
            self._expected.labels(name).set(share)

    def note(self, name: str, features: int, unseen: int) -> None:
        """Count features of a field, and those of them that have no weight."""
        self._features.labels(name).inc(features)
        self._unseen.labels(name).inc(unseen)


class ShadowMetrics:
    """How the shadow version differs from those that answer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.difference = Histogram(
            "ctr_shadow_difference",
            "How far the prediction of the shadow version is from the one served, by row.",
            buckets=_DIFFERENCES,
            registry=registry,
        )
        self.predictions = Counter(
            "ctr_shadow_predictions",
            "Sums of predictions for rows that the shadow version has predicted, too.",
            ["by"],
            registry=registry,
        )
        self.left_out = Counter(
            "ctr_shadow_left_out",
            "Requests that the shadow version was to predict and did not.",
            ["why"],
            registry=registry,
        )
