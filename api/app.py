"""`create_app`: a model behind HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute

from ctr.api.feedback import FeedbackLog
from ctr.api.open_inference import add_open_inference, describe_infer
from ctr.api.operations import CONTENT_TYPE, IS_ADMIN, ServingMetrics
from ctr.api.page import add_page, application_class
from ctr.api.requests import Limits, RequestError, UnknownFields
from ctr.api.schema import (
    CLICKS,
    INCLUDE,
    NOT_NOW,
    REFUSALS,
    Alive,
    EventCount,
    Explanations,
    Predictions,
    Problem,
    Ready,
    describe_arrow,
    describe_rows,
)
from ctr.api.service import Service, problem
from ctr.api.shortcut import Shortcut
from ctr.errors import DataError
from ctr.model import Model

if TYPE_CHECKING:  # which loads the Redis client
    from ctr.api.shared_windows import SharedWindows

DEFAULT_LIMITS = Limits()
FEEDBACK = "/v1/feedback"
PREDICT, PREDICT_ARROW, EXPLAIN = "/v1/predict", "/v1/predict/arrow", "/v1/explain"

_FILE_ENTRIES = frozenset({"inputs", "warm_start"})
"""Entries of a manifest that name files."""
_ROW_REFUSALS: dict[int | str, dict[str, Any]] = {
    408: {"model": Problem, "description": "The body took too long to arrive"},
    415: {"model": Problem, "description": "A body of another type, or encoded otherwise than by gzip"},
    500: {"model": Problem, "description": "The server failed"},
    **REFUSALS,
}
"""Why a request to predict may be refused, by status."""

DESCRIPTION = """Click-through-rate predictions of one model, over REST.

`POST /v1/predict` takes rows as they appear in the raw data, before any hashing, and applies the transform
that the model was trained with."""


def create_app(
    model: Model,
    *,
    limits: Limits = DEFAULT_LIMITS,
    windows: SharedWindows | None = None,
    metrics: ServingMetrics | None = None,
    unknown_fields: UnknownFields = "refuse",
    max_age_s: float | None = None,
    feedback: FeedbackLog | None = None,
    on_warm: Callable[[Exception | None], None] | None = None,
) -> FastAPI:
    """An application that serves the predictions of `model`.

    `windows`: the windows in Redis that were passed to `model.with_shared`, which the application closes;
    None: windows, if any, are in this process. `metrics`: shared by several versions; None: its own.

    `unknown_fields`: how to treat values whose field the model's spec does not name. "refuse" refuses the
    request, "ignore" drops the values, "count" also counts them in `/metrics`. `feedback`: stores the rows
    that are served, and their clicks. `max_age_s`: `/readyz` answers 503 when live weights are older.

    At start-up it predicts an example in a thread, which compiles the kernels or loads them from their cache.
    Until then `/healthz` answers, and `/readyz` and `/v1/predict` return 503. Afterwards `on_warm` is called
    once, in the event loop, with None or with the exception that the example raised; without `on_warm`, the
    exception is logged. Then it explains an example in the same thread, so `/v1/explain` may have to wait for
    kernels until some seconds after that.
    """
    service = Service(model, limits, windows, unknown_fields, metrics, feedback, max_age_s)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(service.warm(on_warm))
        yield
        await warming  # A thread that compiles cannot be cancelled.
        service.close()

    app = application_class()(title="ctr", description=DESCRIPTION, version=model.id, lifespan=lifespan)
    add_prediction_routes(app, service)
    add_model_route(app, model.manifest)
    add_state_routes(app, service)
    add_page(app, lambda: service.model)  # not the model itself: see `Service.close`
    if model.spec.windows:
        add_event_routes(app, service)
    if feedback is not None:
        add_feedback_route(app, service)
    else:
        app.add_route(FEEDBACK, _no_feedback_log, methods=["POST"], include_in_schema=False)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    paths = frozenset(add_open_inference(app, service)).union(route.path for route in routes)
    # Added first, so innermost: middleware that counts, logs or refuses requests also sees predictions.
    app.add_middleware(Shortcut, service=service, path=PREDICT)
    counting = partial(service.metrics.counting, paths=paths)
    app.add_middleware(counting)
    app.state.service = service
    app.state.shortcut = counting(Shortcut(app, service=service, path=PREDICT))
    # After all routes, as FastAPI makes the document anew when one is added.
    describe_infer(app, service)
    describe_arrow(app, PREDICT_ARROW)
    for route in routes:
        if route.methods == {"POST"} and route.path not in (PREDICT_ARROW, FEEDBACK):
            others, log = unknown_fields != "refuse", feedback is not None and route.path == PREDICT
            describe_rows(app, model.spec, limits.rows, route.path, others=others, log=log)
    for route in routes:  # after the descriptions, which would list each endpoint twice
        if route.methods == {"GET"}:
            route.methods.add("HEAD")
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(DataError, _bad_rows)
    return app


def add_prediction_routes(app: FastAPI, service: Service) -> None:
    """The endpoints that take rows."""

    @app.post(
        PREDICT,
        summary="Predict click probabilities",
        response_model=Predictions,
        response_model_exclude_none=True,
        responses=_ROW_REFUSALS,
        openapi_extra=INCLUDE,
    )
    async def predict(request: Request) -> Response:
        """Predict one click probability per row. A field that is absent or null counts as missing.

        Rows are objects (`rows`), lists of values by field (`columns`), or candidates that share the values
        of a context (`context` and `candidates`).
        """
        return await service.predict_json(request)

    @app.post(
        PREDICT_ARROW,
        summary="Predict from Arrow to Arrow",
        responses=_ROW_REFUSALS,
        openapi_extra=INCLUDE,
    )
    async def predict_arrow(request: Request) -> Response:
        """An Arrow IPC stream or file of rows in, a stream with the column `prediction` out.

        An absent column counts as missing in all rows. The data must not be compressed by Arrow itself.
        """
        return await service.predict_arrow(request)

    @app.post(
        EXPLAIN,
        summary="Explain predictions",
        response_model=Explanations,
        responses=_ROW_REFUSALS,
    )
    async def explain(request: Request) -> Response:
        """What each feature of a row adds to its prediction, the largest contributions first."""
        return await service.respond(request, service.explain, in_thread=True)


def add_model_route(app: FastAPI, manifest: dict[str, Any]) -> None:
    """The endpoint that describes the model."""
    whole, without_inputs = orjson.dumps(manifest), orjson.dumps(_without_inputs(manifest))

    @app.get("/v1/model", summary="Describe the model", response_model=dict[str, Any])
    async def describe(request: Request) -> Response:
        """The model's id and manifest: format version, settings, feature spec, training data, metrics.

        Only requests with an administrator's token see the names of inputs, and of the model that training
        began with.
        """
        manifest = whole if request.scope.get(IS_ADMIN, False) else without_inputs
        return Response(manifest, media_type="application/json")


def _without_inputs(entry: Any) -> Any:
    """The entries of a manifest, except those that name files."""
    if isinstance(entry, dict):
        return {name: _without_inputs(value) for name, value in entry.items() if name not in _FILE_ENTRIES}
    return [*map(_without_inputs, entry)] if isinstance(entry, list | tuple) else entry


def add_state_routes(app: FastAPI, service: Service) -> None:
    """The endpoints for those who run the server."""

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        """Requests, latency and rows, for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/healthz", summary="Tell whether the process is alive")
    async def healthz() -> Alive:
        """200 as long as the process answers at all; otherwise a supervisor restarts it."""
        return Alive(status="alive")

    @app.get(
        "/readyz",
        summary="Tell whether the server accepts requests",
        response_model_exclude_none=True,
        responses={503: {"model": Problem, "description": NOT_NOW}},
    )
    async def readyz() -> Ready:
        """200 once the model is loaded and warm; a load balancer sends requests only then."""
        service.check_ready()
        service.check_age()
        await service.check_windows()
        return Ready(status="ready", model=service.model.id, age_s=service.age_s)


def add_event_routes(app: FastAPI, service: Service) -> None:
    """The two endpoints of a model with windows."""

    @app.post(
        "/v1/events/impressions",
        summary="Report what was shown",
        response_model=EventCount,
        responses=REFUSALS,
    )
    async def impressions(request: Request) -> Response:
        """Rows with key columns and time, in time order. Later predictions take them into account.

        All rows of a request count, or none. Rows that are sent twice count twice.
        """
        return await service.respond(request, service.impressions)

    @app.post(
        "/v1/events/clicks", summary="Report what was clicked", response_model=EventCount, responses=REFUSALS
    )
    async def clicks(request: Request) -> Response:
        """Rows that were sent as impressions and then clicked, with the time of the impression."""
        return await service.respond(request, service.clicks)


def add_feedback_route(app: FastAPI, service: Service) -> None:
    """The endpoint of a server with a feedback log."""

    @app.post(
        FEEDBACK,
        summary="Report what was clicked",
        response_model=EventCount,
        responses=REFUSALS,
        openapi_extra=CLICKS,
    )
    async def feedback(request: Request) -> Response:
        """Clicks on rows that were served, by the ids in the answers. They are stored before this answers.

        A click that is sent twice counts once; one that comes after the window of `ctr join` does not count.
        """
        return await service.respond(request, service.click, in_thread=True)


async def _no_feedback_log(_request: Request) -> Response:
    return problem(404, "this server has no feedback log; start it with --feedback-log")


# Coroutines, because Starlette would call plain functions in a thread.
async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return problem(error.status, error.detail)


async def _bad_rows(_request: Request, error: Exception) -> Response:
    return problem(422, str(error))
