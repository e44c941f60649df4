"""`FeedbackLog`: stores rows that were served, and clicks on them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import random
from typing import Any

import orjson
from numpy.typing import NDArray

from ctr.api.operations import ServingMetrics
from ctr.api.requests import Limits, RequestError, setting_of
from ctr.stream import now, open_writers, time_of

logger = logging.getLogger(__name__)


class FeedbackLog:
    """The log of one process, created after a fork. Thread-safe."""

    def __init__(self, log: str | Path, share: float = 0.0, kept_s: float = 7_200.0) -> None:
        """`log`: a folder, or the URL of a stream in Redis, which keeps events for `kept_s` seconds.

        `share`: the share of requests that are stored without asking for it. Raises as
        `ctr.stream.open_writers` does.
        """
        self._impressions, self._clicks = open_writers(log, kept_s)
        self.share = share
        self._is_failing = False

    def is_drawn(self) -> bool:
        """Whether to store the next request, although it does not ask for it."""
        return random() < self.share

    def keep(
        self,
        rows: Sequence[Mapping[str, Any]],
        predictions: NDArray[Any],
        model: str,
        metrics: ServingMetrics,
    ) -> list[str] | None:
        """Store the rows of a request as received; returns their ids, or None if the log fails."""
        events = [
            {"model": model, "prediction": prediction, "row": row}
            for row, prediction in zip(rows, predictions.tolist(), strict=True)
        ]
        try:
            ids = self._impressions.write_new(events)
        except OSError as error:
            metrics.not_kept.inc(len(events))
            if not self._is_failing:
                logger.error("rows that were served are not stored: %s", error)
            self._is_failing = True
            return None
        self._is_failing = False
        return ids

    def click(self, body: bytes, limits: Limits) -> bytes:
        """The response to `{"clicks": [ID, ...]}`, after storing the clicks.

        Raises RequestError for other bodies (422), for too many clicks (413), and if the log fails (503).
        """
        try:
            request = orjson.loads(body)
            ids = request["clicks"]
            wrong = [id_ for id_ in ids if not isinstance(id_, str) or time_of(id_) is None]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise RequestError(
                422, 'send {"clicks": [ID, ...]}, with ids from answers to predictions'
            ) from None
        if not isinstance(ids, list) or set(request) != {"clicks"}:
            raise RequestError(422, 'send {"clicks": [ID, ...]}, and nothing else')
        if wrong:
            raise RequestError(422, f"clicks: {str(wrong[0])!r:.80} is not an id from an answer")
        if len(ids) > limits.rows:
            raise RequestError(413, f"{len(ids):,} clicks; send at most {limits.rows:,} {setting_of('rows')}")
        moment = now()
        try:
            self._clicks.write([{"id": id_, "time": moment} for id_ in ids])
        except OSError as error:
            raise RequestError(503, f"the clicks could not be stored ({error}); send them again") from None
        return orjson.dumps({"taken": len(ids)})

    def close(self) -> None:
        """Write everything to the log, except what an unreachable Redis does not accept."""
        self._impressions.close()
        self._clicks.close()
