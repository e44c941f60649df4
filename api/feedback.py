"""`FeedbackLog`: keeps rows that were served, and the clicks that come back for them."""

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
    """Of one process: to be made after it was forked. Any number of threads may use it."""

    def __init__(self, log: str | Path, share: float = 0.0, kept_s: float = 7_200.0) -> None:
        """`log`: a folder, or the URL of a stream in Redis, which keeps them for `kept_s` seconds.

        `share`: of the requests, those that are kept without asking. Raises as `ctr.stream.open_writers`.
        """
        self._impressions, self._clicks = open_writers(log, kept_s)
        self.share = share
        self._is_failing = False

    def is_drawn(self) -> bool:
        """Whether the next request is kept, though it does not ask for it."""
        return random() < self.share

    def keep(
        self,
        rows: Sequence[Mapping[str, Any]],
        predictions: NDArray[Any],
        model: str,
        metrics: ServingMetrics,
    ) -> list[str] | None:
        """Keep the rows of a request as they came; their ids, or None where the log refuses."""
        events = [
            {"model": model, "prediction": prediction, "row": row}
            for row, prediction in zip(rows, predictions.tolist(), strict=True)
        ]
        try:
            ids = self._impressions.write_new(events)
        except OSError as error:
            metrics.not_kept.inc(len(events))
            if not self._is_failing:
                logger.error("rows that were served are not kept: %s", error)
            self._is_failing = True
            return None
        self._is_failing = False
        return ids

    def click(self, body: bytes, limits: Limits) -> bytes:
        """The response to `{"clicks": [ID, ...]}`, once they are kept.

        RequestError for other bodies (422), for more than there may be rows (413), and where the log refuses
        (503).
        """
        try:
            request = orjson.loads(body)
            ids = request["clicks"]
            wrong = next((each for each in ids if not isinstance(each, str) or time_of(each) is None), None)
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise RequestError(
                422, 'send {"clicks": [ID, ...]}, of the ids in answers to predictions'
            ) from None
        if not isinstance(ids, list) or set(request) != {"clicks"}:
            raise RequestError(422, 'send {"clicks": [ID, ...]}, and nothing else')
        if wrong is not None:
            raise RequestError(422, f"clicks: {str(wrong)!r:.80} is no id of an answer")
        if len(ids) > limits.rows:
            raise RequestError(413, f"{len(ids):,} clicks; send at most {limits.rows:,} {setting_of('rows')}")
        moment = now()
        try:
            self._clicks.write([{"id": each, "time": moment} for each in ids])
        except OSError as error:
            raise RequestError(503, f"the clicks could not be kept ({error}); send them again") from None
        return orjson.dumps({"taken": len(ids)})

    def close(self) -> None:
        """Everything is in the log then, but what a Redis that is away does not take."""
        self._impressions.close()
        self._clicks.close()
