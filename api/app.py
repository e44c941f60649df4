"""`create_app`: a model behind HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute

from ctr.api.body import Limits, RequestError, check_content, containers_at_most, parse_rows, read_body
from ctr.api.operations import CONTENT_TYPE, IS_ADMIN, ServingMetrics
from ctr.api.schema import (
    NOT_NOW,
    REFUSALS,
    Alive,
    Predictions,
    Problem,
    Ready,
    Taken,
    describe_rows,
    example_row,
)
from ctr.errors import DataError, StoreError
from ctr.features.windows import Windows
from ctr.model import Model

if TYPE_CHECKING:  # which loads the Redis client
    from ctr.api.shared_windows import SharedWindows

logger = logging.getLogger(__name__)

DEFAULT_LIMITS = Limits()

INLINE_BYTES = 16 << 10
INLINE_FEATURES = 1_000
"""A request up to this size (16 KiB) and this work (rows x fields and crosses; 25 rows of Criteo) is answered
in the event loop itself, unless crosses of lists make its work grow with the square of its size.

Handing it to a thread made a single-row request take 0.71 ms instead of 0.55. Larger ones do go to a thread:
answered in the loop, one client that sends 200 rows at a time made everyone else's single-row requests
take 12 ms instead of 0.9 (medians, loopback, 2 cores).
"""

WAITING_REQUESTS = 32
"""So many small requests wait for Redis at a time."""

WARM_UP_ROWS = 2_000
"""More than any number of rows from which on the model takes another path."""

AHEAD_S = 3600
"""How much later than the server's clock an event may be: one of the year 3017 would make all keys expire."""

Act = Callable[[bytes], bytes]
"""The response body to a request body."""
_Result = TypeVar("_Result")

_NAMES_OF_FILES = frozenset({"inputs"})
"""Of entries in a manifest."""

DESCRIPTION = """Click-through-rate predictions of one model, over REST.

`POST /v1/predict` takes rows as they stand in the raw data, before any hashing, and applies the transform
that the model was trained with."""


def create_app(
    model: Model,
    *,
    limits: Limits = DEFAULT_LIMITS,
    windows: SharedWindows | None = None,
    metrics: ServingMetrics | None = None,
    on_warm: Callable[[Exception | None], None] | None = None,
) -> FastAPI:
    """An application that answers with the predictions of `model`.

    `windows`: the windows in Redis that `model.with_shared` was given, which are closed in the end; None:
    windows, if any, are in this process. `metrics`: those of several versions together; None: its own.

    When it starts up, it predicts one example in a thread, which compiles the kernels or loads them from
    their cache; until then `/healthz` answers, and `/readyz` and `/v1/predict` return 503. Then `on_warm` is
    called once, in the event loop, with None or with the exception that the example raised; without it, the
    exception is logged.
    """
    service = Service(model, limits, windows, metrics)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(service.warm(on_warm))
        yield
        await warming  # A thread that compiles cannot be cancelled.
        service.close()

    app = FastAPI(title="ctr", description=DESCRIPTION, version=model.id, lifespan=lifespan)
    add_routes(app, service)
    if model.spec.windows:
        add_event_routes(app, service)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    app.add_middleware(service.metrics.counting, paths=frozenset(route.path for route in routes))
    for route in routes:
        if route.methods == {"POST"}:
            describe_rows(app, model.spec, limits.rows, route.path)
    for route in routes:  # after the description, which would list each endpoint twice
        if route.methods == {"GET"}:
            route.methods.add("HEAD")
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(DataError, _bad_rows)
    return app


class Service:
    """A model, how much one request may ask of it, and whether it is ready."""

    def __init__(
        self,
        model: Model,
        limits: Limits,
        windows: SharedWindows | None = None,
        metrics: ServingMetrics | None = None,
    ) -> None:
        self.model = model
        self.limits = limits
        self.metrics = metrics or ServingMetrics(model.id)
        self.failure: Exception | None = None
        self._ready = False
        spec = model.spec
        self._features = len(spec.all_fields) + len(spec.crosses)
        several = {field.name for field in spec.all_fields if field.several}
        self._lists_crossed = any(sum(part in several for part in cross.of) > 1 for cross in spec.crosses)
        self._lists = len(spec.list_columns)
        self._large_bodies = asyncio.Semaphore(limits.large_bodies)
        # More at a time are no faster and need more memory.
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="predict")
        self._windows = windows
        # Small requests that wait for Redis need next to nothing while they wait.
        self._waiting = ThreadPoolExecutor(WAITING_REQUESTS, thread_name_prefix="windows")

    async def warm(self, on_warm: Callable[[Exception | None], None] | None) -> None:
        """Predict an example and then many, so that no request has to wait for a compiler."""
        spec = self.model.spec
        times = {window.time for window in spec.windows}
        # Without the times of windows: these may have rows that are later than the clock.
        row = {name: value for name, value in example_row(spec).items() if name not in times}
        try:
            # Many rows take another path through the model, with other kernels; so does a refused request.
            bodies = [orjson.dumps({"rows": n * [row]}) for n in (1, min(WARM_UP_ROWS, self.limits.rows))]
            for body in (*bodies, b"[" * (self.limits.rows + 1)):
                with suppress(RequestError):
                    await self._in_thread(self.predict, body)
            self.metrics.rows.reset()  # these were nobody's
            if spec.windows:
                await self._in_thread(self._warm_windows)
        except Exception as failure:
            self.failure = failure
            if on_warm is None:
                logger.exception("the model cannot predict")
        self._ready = self.failure is None
        if on_warm is not None:
            on_warm(self.failure)

    def _warm_windows(self) -> None:
        """Compile the kernels of events; the model's windows do not change."""
        transform, windows = self.model.transform, Windows(self.model.spec)
        cells = transform.cells_of([example_row(self.model.spec)])
        windows.take_in(cells, transform.columns)
        windows.add_clicks(cells, transform.columns)

    def check_ready(self) -> None:
        """`RequestError` (503) until the model has predicted its first example."""
        if self.failure is not None:
            raise RequestError(503, f"the model cannot predict: {self.failure}")
        if not self._ready:
            raise RequestError(503, "the model is warming up; try again when /readyz answers 200")

    async def check_windows(self) -> None:
        """`RequestError` (503) when the windows are in Redis and it does not answer."""
        if self._windows is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(self._waiting, self._windows.check)
            except StoreError as error:
                raise RequestError(503, str(error)) from None

    @asynccontextmanager
    async def body_of(self, request: Request) -> AsyncIterator[bytes]:
        """The request's body; only so many large ones are in memory at a time.

        `RequestError` as `check_content` and `read_body`, and 503 when other large requests last too long.
        """
        check_content(request)
        large = int(request.headers.get("content-length", INLINE_BYTES + 1)) > INLINE_BYTES
        try:
            async with self._large_body() if large else nullcontext():
                yield await read_body(request, self.limits)
        except asyncio.CancelledError:  # uvicorn would log a traceback
            raise RequestError(503, "the server stops before the request could be answered") from None

    @asynccontextmanager
    async def _large_body(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.limits.body_s):
                await self._large_bodies.acquire()
        except TimeoutError:
            raise RequestError(503, "busy with other large requests; try again, or send fewer rows") from None
        try:
            yield
        finally:
            self._large_bodies.release()

    async def respond(self, request: Request, act: Act) -> Response:
        """The response to a request with rows: what `act` returns for its body."""
        self.check_ready()
        async with self.body_of(request) as body:
            try:
                return _json(await self._answer(body, act))
            except (RequestError, DataError):
                raise
            except StoreError as error:
                raise RequestError(503, str(error)) from None
            except Exception:
                # Answered here, because uvicorn would close the connection that the client still counts on.
                logger.exception("a request failed")
                return _problem(500, "the server failed on this request; its log says why")

    async def _answer(self, body: bytes, act: Act) -> bytes:
        """The result of `act`, in a thread if it could block the event loop for other clients."""
        if (
            self._lists_crossed
            or len(body) > INLINE_BYTES
            or containers_at_most(body) * self._features > INLINE_FEATURES
        ):
            return await self._in_thread(act, body)
        if self._windows is None:
            return act(body)
        return await asyncio.get_running_loop().run_in_executor(self._waiting, act, body)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False)
        self._waiting.shutdown(wait=False)
        if self._windows is not None:
            self._windows.close()

    async def _in_thread(self, call: Callable[..., _Result], *arguments: bytes) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def predict(self, body: bytes) -> bytes:
        """The response body to the request body. `RequestError` or `DataError` when it is malformed."""
        predictions = self.model.predict(self._rows(body))
        self.metrics.rows.inc(predictions.size)
        answer = {"predictions": predictions, "model": self.model.id}
        # From the float32 array itself: each number has the fewest digits that give the same float32 back,
        # and no Python float is made of it.
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)

    def impressions(self, body: bytes) -> bytes:
        """Take the rows of a request into the model's windows."""
        return orjson.dumps({"taken": self.model.take_in(self._rows(body), int((time() + AHEAD_S) * 1e6))})

    def clicks(self, body: bytes) -> bytes:
        """Add clicks to rows that the windows have."""
        return orjson.dumps({"taken": self.model.add_clicks(self._rows(body))})

    def _rows(self, body: bytes) -> list[dict[str, Any]]:
        return parse_rows(body, self.limits, self._lists)


def add_routes(app: FastAPI, service: Service) -> None:
    """The endpoints of every model."""
    manifest = orjson.dumps(service.model.manifest)
    without_inputs = orjson.dumps(_without_inputs(service.model.manifest))

    @app.post(
        "/v1/predict",
        summary="Predict click probabilities",
        response_model=Predictions,
        responses={
            408: {"model": Problem, "description": "The body took too long to arrive"},
            415: {"model": Problem, "description": "A body of another type than JSON, or an encoded one"},
            500: {"model": Problem, "description": "The server failed"},
            **REFUSALS,
        },
    )
    async def predict(request: Request) -> Response:
        """Predict one click probability per row. A field that is left out or null is a missing value."""
        return await service.respond(request, service.predict)

    @app.get("/v1/model", summary="Describe the model", response_model=dict[str, Any])
    async def describe(request: Request) -> Response:
        """The model's id and manifest: format version, settings, feature spec, training data, metrics.

        Names of inputs are for requests with an administrator's token.
        """
        return _json(manifest if request.scope.get(IS_ADMIN, False) else without_inputs)

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        """Requests, latency and rows, for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/healthz", summary="Tell whether the process lives")
    async def healthz() -> Alive:
        """200 as long as the process answers at all; a supervisor restarts it otherwise."""
        return Alive(status="alive")

    @app.get(
        "/readyz",
        summary="Tell whether requests are welcome",
        responses={503: {"model": Problem, "description": NOT_NOW}},
    )
    async def readyz() -> Ready:
        """200 when the model is loaded and warm; a load balancer sends requests only then."""
        service.check_ready()
        await service.check_windows()
        return Ready(status="ready", model=service.model.id)


def _without_inputs(entry: Any) -> Any:
    """The same entries of a manifest but those that name files."""
    if isinstance(entry, dict):
        return {name: _without_inputs(each) for name, each in entry.items() if name not in _NAMES_OF_FILES}
    return [*map(_without_inputs, entry)] if isinstance(entry, list | tuple) else entry


def add_event_routes(app: FastAPI, service: Service) -> None:
    """The two endpoints of a model with windows."""

    @app.post(
        "/v1/events/impressions",
        summary="Tell what was shown",
        response_model=Taken,
        responses=REFUSALS,
    )
    async def impressions(request: Request) -> Response:
        """Rows with key columns and time, in the order of time. They count for later predictions.

        All rows of a request count, or none. Rows that are sent twice count twice.
        """
        return await service.respond(request, service.impressions)

    @app.post("/v1/events/clicks", summary="Tell what was clicked", response_model=Taken, responses=REFUSALS)
    async def clicks(request: Request) -> Response:
        """Rows that were sent as impressions and have been clicked, with the time of the impression."""
        return await service.respond(request, service.clicks)


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _problem(status: int, detail: str) -> Response:
    return _json(orjson.dumps({"detail": detail}), status)


# Coroutines, because Starlette would call a function in a thread.
async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _problem(error.status, error.detail)


async def _bad_rows(_request: Request, error: Exception) -> Response:
    return _problem(422, str(error))
