"""`Service`: answers requests with a model, in the event loop or in threads, within limits."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
from fastapi import Request, Response
from numpy.typing import NDArray

from ctr.api.answers import Answers, details_of
from ctr.api.background import background
from ctr.api.feedback import FeedbackLog
from ctr.api.operations import Drift, ServingMetrics, stand_in_of
from ctr.api.requests import (
    ARROW,
    ByteLimit,
    JsonRows,
    Limits,
    RequestError,
    UnknownFields,
    check_arrow_content,
    check_content,
    decompressed,
    parse_rows,
    read_body,
    read_table,
    require_brief,
    setting_of,
    write_table,
)
from ctr.api.schema import example_row
from ctr.errors import DataError, StoreError
from ctr.features import Batch, MoreFeaturesError
from ctr.features.windows import NotingHistory, Windows
from ctr.model import Model, explain_row, probabilities_of

if TYPE_CHECKING:  # which loads the Redis client
    from ctr.api.shared_windows import SharedWindows

logger = logging.getLogger(__name__)

INLINE_BYTES = 64 << 10
INLINE_FEATURES = 5_000
"""Requests up to this size (64 KiB) and number of features (120 rows of Criteo, 0.3 ms) are answered in the
event loop.

Handing a request to a thread takes 0.16 ms. Larger requests do go to a thread; in the event loop, one client
that sends thousands of rows at a time would make everyone else's single-row requests wait.
"""
INLINE_LIST_BYTES = 16 << 10
"""The limit if a field may make any number of features of a text, as these are counted only after hashing."""

WAITING_REQUESTS = 32
"""At most this many small requests wait for Redis, or for the lock of the windows, at a time."""

WARM_UP_ROWS = 2_000
"""Enough rows to reach every code path of the model."""

EXPLAINED_ROWS = 100
"""The most rows that one request may ask to explain, at about 2 ms each (39 fields)."""

AHEAD_S = 3600
"""How far an event may be ahead of the server's clock: one of the year 3017 would make all keys expire."""

_NOT_LOGGED = b',"log":false}'

Act = Callable[[bytes, int | None], bytes]
"""Returns the response body for a request body. Raises MoreFeaturesError above the number of features."""


class Service:
    """A model, the limits of a request, and whether the model is ready."""

    def __init__(
        self,
        model: Model,
        limits: Limits,
        windows: SharedWindows | None = None,
        unknown_fields: UnknownFields = "refuse",
        metrics: ServingMetrics | None = None,
        log: FeedbackLog | None = None,
        max_age_s: float | None = None,
    ) -> None:
        self.model = model.indexed()
        self.limits = limits
        self.metrics = metrics or ServingMetrics(model.id)
        self.failure: Exception | None = None
        self._ready = self._has_begun = False
        self._count = self.metrics.predicted_by(model.id, str(model.manifest.get("created", "")))
        self._answers = Answers(self.model, self._on_predictions)
        self._drift = Drift(self.model, self.metrics)
        self._rows = JsonRows(model.transform, limits, unknown_fields, keeps_log=log is not None)
        self._unknown_fields = unknown_fields
        self.log = log
        spec = model.spec
        self._lists = len(spec.list_columns)
        several = any(field.several for field in spec.all_fields)
        self._inline_bytes = INLINE_LIST_BYTES if several else INLINE_BYTES
        self._brief_bytes = min(self._inline_bytes, limits.body_bytes)
        self._large_bodies = asyncio.Semaphore(limits.large_bodies)
        # More threads would be no faster, and need more memory.
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="predict")
        self._windows = windows
        self._live = model.linear.live or stand_in_of(model)
        self._max_age_s = max_age_s
        # Small requests need next to nothing while they wait.
        self._waiting = ThreadPoolExecutor(WAITING_REQUESTS, thread_name_prefix="windows")

    def _on_predictions(self, predictions: NDArray[np.float32]) -> None:
        if self._ready:  # predictions of the warm-up do not count
            self._count(predictions)

    async def warm(self, on_warm: Callable[[Exception | None], None] | None) -> None:
        """Predict one example and then many, so that no request has to wait for the compiler.

        An example is explained after `on_warm`, as that needs kernels of its own.
        """
        self._has_begun = True
        spec = self.model.spec
        times = {window.time for window in spec.windows}
        # Without the time columns of windows, whose latest rows may be ahead of the clock.
        row = {name: value for name, value in example_row(spec).items() if name not in times}
        examples, thread = self.model.examples, background()
        in_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
        try:
            if self._live is not None:
                await in_thread(self._live.start)
            # Many rows use other kernels than one row; so does a request that is refused.
            bodies = [orjson.dumps({"rows": n * [row]}) for n in (1, min(WARM_UP_ROWS, self.limits.rows))]
            bodies.append(orjson.dumps({"columns": {name: [value] for name, value in row.items()}}))
            for body in (*bodies, b"[" * (self.limits.rows + 1)):
                with suppress(RequestError):
                    await in_thread(self.predict, body)
            if examples is not None:
                await in_thread(examples.check, self._predict_rows)
            if spec.windows:
                await in_thread(self._warm_windows)
        except Exception as failure:
            self.failure = failure
            if on_warm is None:
                logger.exception("the model cannot predict")
        self._ready = self.failure is None
        if self._ready and self._live is not None:
            self.metrics.follow(self._live)
        if on_warm is not None:
            on_warm(self.failure)
        if self._ready:
            try:
                # With all fields, as the texts of some features need kernels of their own.
                complete = example_row(spec, len(spec.all_fields))
                complete = {name: value for name, value in complete.items() if name not in times}
                await in_thread(explain_row, self.model, complete)
            except Exception:
                logger.exception("the model cannot explain an example")
        thread.shutdown(wait=False)

    def _predict_rows(self, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """Predictions as a client would ask for them, one row at a time."""
        answers = [orjson.loads(self.predict(orjson.dumps({"rows": [row]}))) for row in rows]
        return np.array([answer["predictions"][0] for answer in answers], np.float32)

    def _warm_windows(self) -> None:
        """Compile the kernels of events, without changing the model's windows."""
        transform, windows = self.model.transform, Windows(self.model.spec)
        cells = transform.cells_of([example_row(self.model.spec)])
        windows.take_in(cells, transform.columns)
        windows.add_clicks(cells, transform.columns)

    def check_ready(self) -> None:
        """Raise `RequestError` (503) until the model has predicted its first example."""
        if self._ready:
            return
        if self.failure is not None:
            raise RequestError(503, f"the model cannot predict: {self.failure}")
        if not self._has_begun:
            raise RequestError(
                503,
                "the application has not been started: an application that mounts it has to run its lifespan,"
                " such as FastAPI(lifespan=app.router.lifespan_context)",
            )
        raise RequestError(503, "the model is warming up; try again when /readyz answers 200")

    @property
    def age_s(self) -> float | None:
        """The age of live weights, or of what is served instead; None for a model that does not change."""
        return None if self._live is None else round(self._live.age_s, 3)

    def check_age(self) -> None:
        """Raise `RequestError` (503) if live weights are too old."""
        if self._max_age_s is not None and (age_s := self.age_s) is not None and age_s > self._max_age_s:
            assert self._live is not None
            raise RequestError(
                503, f"the weights are {age_s:.1f} s old: {self._live.failure or 'catching up'}"
            )

    async def check_windows(self) -> None:
        """Raise `RequestError` (503) if the windows are in Redis and it does not answer."""
        if self._windows is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(self._waiting, self._windows.check)
            except StoreError as error:
                raise RequestError(503, str(error)) from None

    def predict_now(self, body: bytes) -> bytes | None:
        """The answer to JSON rows if it takes next to no time; otherwise None, and `predict_json` answers."""
        if not self._ready or self.model.spec.windows or len(body) > self._brief_bytes:
            return None
        try:
            return self.predict(body, INLINE_FEATURES)
        except Exception:  # noqa: BLE001  (it is raised and reported there again)
            return None

    async def predict_json(self, request: Request) -> Response:
        """The predictions for JSON rows, with the details that the query asks for."""
        details = details_of(request.scope["query_string"])
        return await self._respond(request, partial(self.predict, details=details))

    async def predict_arrow(self, request: Request) -> Response:
        """The predictions for an Arrow table, as an Arrow table."""
        details = details_of(request.scope["query_string"])

        def act(body: bytes, _most: int | None) -> bytes:
            batch = self._batch_of(read_table(body, self.limits), details)
            return write_table(self._answers.table(batch, details))

        return await self._respond(request, act, in_thread=True, is_arrow=True)

    async def respond(self, request: Request, act: Act, *, in_thread: bool = False) -> Response:
        """What `act` returns for the body of a request, which has no parameters."""
        for name in request.query_params:
            raise RequestError(422, f"unknown parameter {name!r:.80}; there are none")
        return await self._respond(request, act, in_thread=in_thread)

    async def _respond(
        self, request: Request, act: Act, *, in_thread: bool = False, is_arrow: bool = False
    ) -> Response:
        """What `act` returns for the body of a request: JSON, or Arrow if `is_arrow`."""
        self.check_ready()
        limits, act_on_plain = self.limits, act
        check, limit = (check_arrow_content, limits.of_arrow) if is_arrow else (check_content, limits.of_body)
        if check(request):
            in_thread = True  # decompression would block the event loop

            def act(body: bytes, most: int | None = None) -> bytes:
                return act_on_plain(decompressed(body, limit), most)

        try:
            content = await self.answer(request, act, limit, in_thread=in_thread)
        except (RequestError, DataError):
            raise
        except Exception:
            # Answered here, because uvicorn would close a connection that the client still relies on.
            logger.exception("a request failed")
            return problem(500, "the server failed on this request; its log has the reason")
        return Response(content, media_type=ARROW[0] if is_arrow else "application/json")

    async def answer(self, request: Request, act: Act, limit: ByteLimit, *, in_thread: bool = False) -> bytes:
        """The result of `act` for the body of a request. Raises `RequestError` and DataError."""
        is_large = int(request.headers.get("content-length", INLINE_BYTES + 1)) > INLINE_BYTES
        try:
            async with self._large_body() if is_large else nullcontext():
                body = await read_body(request, limit, self.limits.body_s)
                return await self._answer(body, act, in_thread=in_thread)
        except asyncio.CancelledError:  # uvicorn would log a traceback
            raise RequestError(503, "the server stopped before it could answer the request") from None
        except StoreError as error:
            raise RequestError(503, str(error)) from None

    @asynccontextmanager
    async def _large_body(self) -> AsyncIterator[None]:
        """Limit the large bodies in memory at a time. Raises `RequestError` (503) after waiting too long."""
        try:
            async with asyncio.timeout(self.limits.body_s):
                await self._large_bodies.acquire()
        except TimeoutError:
            raise RequestError(
                503,
                f"busy with other large requests {setting_of('large_bodies')}; try again, or send fewer rows",
            ) from None
        try:
            yield
        finally:
            self._large_bodies.release()

    async def _answer(self, body: bytes, act: Act, *, in_thread: bool) -> bytes:
        """The result of `act`, computed in a thread if it could block the event loop for other clients."""
        loop = asyncio.get_running_loop()
        if not in_thread and len(body) <= self._inline_bytes:
            with suppress(MoreFeaturesError):
                if not self.model.spec.windows:
                    return act(body, INLINE_FEATURES)
                # Windows are behind a lock, or in Redis.
                return await loop.run_in_executor(self._waiting, act, body, INLINE_FEATURES)
        return await loop.run_in_executor(self._threads, act, body, None)

    def close(self) -> None:
        """Let the threads end and release the model. Nothing can be predicted afterwards."""
        self._ready = False
        self._threads.shutdown(wait=False)
        self._waiting.shutdown(wait=False)
        if self._windows is not None:
            self._windows.close()
        if self._live is not None:
            self._live.close()
            self.metrics.unfollow(self._live)
        # FastAPI caches the functions of endpoints, and through them whole applications, until the process
        # ends.
        del self.model, self._answers, self._rows, self._drift

    def predict(
        self,
        body: bytes,
        most: int | None = None,
        details: frozenset[str] = frozenset(),
        *,
        returns_ids: bool = True,
    ) -> bytes:
        """The response body for JSON rows. Raises `RequestError` or DataError for malformed ones.

        `most`: raise MoreFeaturesError for more features. Rows are stored in the log, and get ids, if the
        request asks for it, or if it does not say and was drawn. `returns_ids`: whether the client gets these
        ids; if not, it could report no clicks, so nothing is stored.
        """
        parsed: list[dict[str, Any]] | None = None
        logged: list[dict[str, Any]] | None = None
        can_log = returns_ids and self._ready
        if body.endswith(_NOT_LOGGED) and body.count(b'"log"') == 1:  # as `Client.predict` has it
            body, can_log = body[: -len(_NOT_LOGGED)] + b"}", False  # which the scanner reads
        if self.log is not None and can_log and ((asks := b'"log"' in body) or self.log.share):
            require_brief(body, most)  # before the draw, which must happen once for each request
            drawn = self.log.is_drawn()
            if asks or drawn:
                parsed = parse_rows(body, self.limits, self._lists, keeps_log=True)
                if orjson.loads(body).get("log", drawn):
                    logged = parsed
        rows = (
            self._rows.read(body, briefly=most is not None) if parsed is None else self._rows.cells_of(parsed)
        )
        transform, noting, keep = self._answers.transform_for(details), None, None
        if logged is not None and transform.history is not None:
            noting = NotingHistory(transform.spec, transform.history)
        batch = transform.apply(rows.cells, most, noting)
        if self.log is not None and logged is not None:
            kept = logged if noting is None else noting.noted(logged)
            keep = partial(self.log.keep, kept, model=self.model.id, metrics=self.metrics)
        answer = self._answers.json(batch, details, keep)
        if self._ready:
            self._drift.sample(lambda transform: transform.apply(rows.cells.part(0, 1)))
        self._count_unknown(rows.unknown)
        return answer

    def _count_unknown(self, values: int) -> None:
        """Count values of fields that the spec does not name."""
        if values and self._unknown_fields == "count":
            self.metrics.unknown_values.inc(values)

    def click(self, body: bytes, _most: int | None = None) -> bytes:
        """Store clicks on rows that were stored."""
        assert self.log is not None  # or there is no such endpoint
        return self.log.click(body, self.limits)

    def compare(self, body: bytes, answer: bytes) -> None:
        """Predict the rows of a request that another version has answered, and record how the two differ."""
        if not self._ready:  # it has been closed
            return
        served = np.array(orjson.loads(answer)["predictions"], np.float32)
        batch = self._answers.transform_for(frozenset()).apply(self._rows.read(body).cells)
        predictions = probabilities_of(self.model.margins(batch))
        for difference in np.abs(predictions - served).tolist():
            self.metrics.shadow.difference.observe(difference)
        self.metrics.shadow.predictions.labels("served").inc(float(served.sum()))
        self.metrics.shadow.predictions.labels("shadow").inc(float(predictions.sum()))

    def _batch_of(self, table: pa.Table, details: frozenset[str]) -> Batch:
        """The batch of a table with some of the columns; it may have ignored ones."""
        from ctr.features import batch_of

        transform = self._answers.transform_for(details)
        unknown = [
            name
            for name in table.column_names
            if name not in transform.columns and name not in transform.ignored
        ]
        if unknown and self._unknown_fields == "refuse":
            raise DataError(
                f"the table: the feature spec names no column {unknown[0]!r:.80}; remove it, list it in the"
                " spec under source.ignore, serve with --unknown-fields ignore, or use one of:"
                f" {', '.join(transform.columns)}."
            )
        self._count_unknown(len(unknown) * table.num_rows)
        for name in transform.columns:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
        batch = batch_of(table, transform)
        self._drift.sample(partial(batch_of, table.slice(0, 1)))
        return batch

    def explain(self, body: bytes, _most: int | None = None) -> bytes:
        """The response body with explanations."""
        rows = parse_rows(body, self.limits, self._lists)
        if len(rows) > EXPLAINED_ROWS:
            raise RequestError(413, f"{len(rows):,} rows to explain; send at most {EXPLAINED_ROWS}")
        explanations = []
        for index, row in enumerate(rows):
            try:
                explanation = explain_row(self.model, row).to_json()
            except DataError as error:  # it names the only row that `explain_row` got
                raise DataError(str(error).replace("rows[0]", f"rows[{index}]", 1)) from None
            del explanation["place"]
            explanations.append(explanation)
        return orjson.dumps({"explanations": explanations, "model": self.model.id})

    def impressions(self, body: bytes, _most: int | None = None) -> bytes:
        """Add the rows of a request to the model's windows."""
        rows = parse_rows(body, self.limits, self._lists)
        return orjson.dumps({"taken": self.model.take_in(rows, int((time() + AHEAD_S) * 1e6))})

    def clicks(self, body: bytes, _most: int | None = None) -> bytes:
        """Add clicks to rows of the windows."""
        return orjson.dumps({"taken": self.model.add_clicks(parse_rows(body, self.limits, self._lists))})


def json_response(content: Mapping[str, Any], status: int = 200) -> Response:
    """A response with an object of JSON."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def problem(status: int, detail: str) -> Response:
    """A response that says why a request was refused."""
    return json_response({"detail": detail}, status)
