"""`Drift`: the share of values that the model has never seen, by field, compared with its hold-out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from ctr.api.operations.metrics import ServingMetrics
from ctr.errors import CtrError
from ctr.features import Batch, Transform
from ctr.model import Model, UnseenCounts

EVERY_S, WORK_S = 0.05, 0.0005
"""At most one row is sampled in the first time, if that takes no longer than the second; otherwise fewer, so
that they take at most 1% of the time. A row of JSON takes 0.2 ms, one of an Arrow table 2.5 ms."""
MOST_FIELDS = 256
"""Each field has time series of its own in the metrics."""


class Drift:
    """Counts the features of sampled rows, by field."""

    def __init__(self, model: Model, metrics: ServingMetrics) -> None:
        self._model = model
        history = model.transform.history
        self._transform = Transform(model.spec, with_label=False, with_fields=True, history=history)
        self._names = model.spec.names[:MOST_FIELDS]
        self._metrics = metrics
        shares = model.manifest.get("unseen", {})
        metrics.fields.expect({name: shares[name] for name in self._names if name in shares})
        self._next = 0.0

    def sample(self, hashed: Callable[[Transform], Batch]) -> None:
        """Count a row, hashed by `hashed`, unless another was just counted; any thread may call it."""
        now = monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S  # already now, for other threads
        counts = UnseenCounts(self._model.spec)
        with suppress(CtrError):  # such as an unreachable Redis with windows: the request was answered
            counts.add(hashed(self._transform), self._model.linear)
        for name, features, unseen in zip(
            self._names, counts.features.tolist(), counts.unseen.tolist(), strict=False
        ):
            if features:
                self._metrics.fields.count(name, features, unseen)
        self._next = now + EVERY_S * max(1.0, (monotonic() - now) / WORK_S)
