"""Events since the model was trained, for its windows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import time

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field

from ctr.api.body import Limits, parse_rows
from ctr.api.schema import REFUSALS, example_row
from ctr.features.windows import Windows
from ctr.model import Model

AHEAD_S = 3600
"""How much later than the server's clock an event may be: one of the year 3017 would make all keys expire."""

EVENT_PATHS = "/v1/events/impressions", "/v1/events/clicks"

Act = Callable[[bytes], bytes]
"""The response body to a request body."""


class Taken(BaseModel):
    """What became of events."""

    taken: int = Field(description="How many rows count from now on; others have no key, no time or no row.")


class Events:
    """Takes events into the windows of a model."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self._model = model
        self._limits = limits
        self._lists = len(model.spec.list_columns)

    def impressions(self, body: bytes) -> bytes:
        """Take in the rows of a request."""
        rows = parse_rows(body, self._limits, self._lists)
        return orjson.dumps({"taken": self._model.take_in(rows, int((time() + AHEAD_S) * 1e6))})

    def clicks(self, body: bytes) -> bytes:
        """Add clicks to rows that were added before."""
        return orjson.dumps({"taken": self._model.add_clicks(parse_rows(body, self._limits, self._lists))})

    def warm(self) -> None:
        """Compile the kernels; the model's windows do not change."""
        transform, windows = self._model.transform, Windows(self._model.spec)
        cells = transform.cells_of([example_row(self._model.spec)])
        windows.take_in(cells, transform.columns)
        windows.add_clicks(cells, transform.columns)


def add_event_routes(
    app: FastAPI, events: Events, respond: Callable[[Request, Act], Awaitable[Response]]
) -> None:
    """The two endpoints of a model with windows."""
    impressions_path, clicks_path = EVENT_PATHS

    @app.post(impressions_path, summary="Tell what was shown", response_model=Taken, responses=REFUSALS)
    async def impressions(request: Request) -> Response:
        """Rows with key columns and time, in the order of time. They count for later predictions.

        All rows of a request count, or none. Rows that are sent twice count twice.
        """
        return await respond(request, events.impressions)

    @app.post(clicks_path, summary="Tell what was clicked", response_model=Taken, responses=REFUSALS)
    async def clicks(request: Request) -> Response:
        """Rows that were sent as impressions and have been clicked, with the time of the impression."""
        return await respond(request, events.clicks)
