"""`Service`: a model that answers requests, in the event loop or in threads, within limits."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import orjson
import pyarrow as pa
from fastapi import Request, Response
from numpy.typing import NDArray

from ctr.api.answers import Answers, details_of
from ctr.api.background import background
from ctr.api.feedback import FeedbackLog
from ctr.api.operations import Drift, ServingMetrics
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
from ctr.features.windows import Windows
from ctr.model import Model, explain_row, probabilities_of

if TYPE_CHECKING:  # which loads the Redis client
    from ctr.api.shared_windows import SharedWindows

logger = logging.getLogger(__name__)

INLINE_BYTES = 64 << 10
INLINE_FEATURES = 5_000
"""A request up to this size (64 KiB) and with so many features at most (120 rows of Criteo, 0.3 ms) is
answered in the event loop itself.

Handing it to a thread takes 0.16 ms. Larger ones do go to a thread: answered in the loop, one client that
sends thousands of rows at a time would make everyone else's single-row requests wait.
"""
INLINE_LIST_BYTES = 16 << 10
"""The same where fields make any number of features of a text: they are counted when they have been found."""

WAITING_REQUESTS = 32
"""So many small requests wait for Redis, or for the lock of the windows, at a time."""

WARM_UP_ROWS = 2_000
"""More than any number of rows from which on the model takes another path."""

EXPLAINED_ROWS = 100
"""Rows that one request may have explained: about 1 ms each."""

AHEAD_S = 3600
"""How much later than the server's clock an event may be: one of the year 3017 would make all keys expire."""

Act = Callable[[bytes, int | None], bytes]
"""The response body to a request body; MoreFeaturesError if it has more features than the number, if any."""
_Result = TypeVar("_Result")


class Service:
    """A model, how much one request may ask of it, and whether it is ready."""

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
        self._ready = False
        self._note = self.metrics.predicted_by(model.id, str(model.manifest.get("created", "")))
        self._answers = Answers(self.model, self._predicted)
        self._drift = Drift(self.model, self.metrics)
        self._rows = JsonRows(model.transform, limits, unknown_fields, keeps_log=log is not None)
        self._unknown_fields = unknown_fields
        self.log = log
        spec = model.spec
        self._lists = len(spec.list_columns)
        several = any(field.several for field in spec.all_fields)
        self._inline_bytes = INLINE_LIST_BYTES if several else INLINE_BYTES
        self._large_bodies = asyncio.Semaphore(limits.large_bodies)
        # More at a time are no faster and need more memory.
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="predict")
        self._windows = windows
        self._live = model.linear.live
        self._max_age_s = max_age_s
        # Small requests that wait need next to nothing while they wait.
        self._waiting = ThreadPoolExecutor(WAITING_REQUESTS, thread_name_prefix="windows")

    def _predicted(self, predictions: NDArray[np.float32]) -> None:
        if self._ready:  # what it warmed up with was nobody's
            self._note(predictions)

    async def warm(self, on_warm: Callable[[Exception | None], None] | None) -> None:
        """Predict an example and then many, so that no request has to wait for a compiler."""
        spec = self.model.spec
        times = {window.time for window in spec.windows}
        # Without the times of windows: these may have rows that are later than the clock.
        row = {name: value for name, value in example_row(spec).items() if name not in times}
        examples, thread = self.model.examples, background()
        aside = partial(asyncio.get_running_loop().run_in_executor, thread)
        try:
            if self._live is not None:
                await aside(self._live.start)
                self.metrics.follow(self._live)
            # Many rows take another path through the model, with other kernels; so does a refused request.
            bodies = [orjson.dumps({"rows": n * [row]}) for n in (1, min(WARM_UP_ROWS, self.limits.rows))]
            bodies.append(orjson.dumps({"columns": {name: [value] for name, value in row.items()}}))
            for body in (*bodies, b"[" * (self.limits.rows + 1)):
                with suppress(RequestError):
                    await aside(self.predict, body)
            if examples is not None:
                await aside(examples.check, self._predict_rows)
            if spec.windows:
                await aside(self._warm_windows)
        except Exception as failure:
            self.failure = failure
            if on_warm is None:
                logger.exception("the model cannot predict")
        thread.shutdown(wait=False)
        self._ready = self.failure is None
        if on_warm is not None:
            on_warm(self.failure)

    def _predict_rows(self, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """As a client would ask for them, one at a time."""
        answers = [orjson.loads(self.predict(orjson.dumps({"rows": [row]}))) for row in rows]
        return np.array([answer["predictions"][0] for answer in answers], np.float32)

    def _warm_windows(self) -> None:
        """Compile the kernels of events; the model's windows do not change."""
        transform, windows = self.model.transform, Windows(self.model.spec)
        cells = transform.cells_of([example_row(self.model.spec)])
        windows.take_in(cells, transform.columns)
        windows.add_clicks(cells, transform.columns)

    def check_ready(self) -> None:
        """`RequestError` (503) until the model has predicted its first example."""
        if self._ready:
            return
        if self.failure is not None:
            raise RequestError(503, f"the model cannot predict: {self.failure}")
        raise RequestError(503, "the model is warming up; try again when /readyz answers 200")

    @property
    def age_s(self) -> float | None:
        """How old live weights are; None for a model that does not change."""
        return None if self._live is None else round(self._live.age_s, 3)

    def check_age(self) -> None:
        """`RequestError` (503) when live weights are older than they may be."""
        if self._max_age_s is not None and (age_s := self.age_s) is not None and age_s > self._max_age_s:
            assert self._live is not None
            raise RequestError(
                503, f"the weights are {age_s:.1f} s old: {self._live.failure or 'catching up'}"
            )

    async def check_windows(self) -> None:
        """`RequestError` (503) when the windows are in Redis and it does not answer."""
        if self._windows is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(self._waiting, self._windows.check)
            except StoreError as error:
                raise RequestError(503, str(error)) from None

    def predict_now(self, body: bytes) -> bytes | None:
        """The answer to JSON rows, if it takes next to no time; None: ask `predict_json`, which says why."""
        if not self._ready or self.model.spec.windows or len(body) > self.limits.body_bytes:
            return None
        try:
            return self.predict(body, INLINE_FEATURES)
        except Exception:  # noqa: BLE001  (which happens there once more, and is told)
            return None

    async def predict_json(self, request: Request) -> Response:
        """The predictions for a request with JSON rows; the details that its query asks for."""
        if not request.scope["query_string"]:
            return await self.respond(request, self.predict)
        details = details_of(request.scope["query_string"])
        return await self.respond(request, partial(self.predict, details=details))

    async def predict_arrow(self, request: Request) -> Response:
        """The same for an Arrow table, as another."""
        self.check_ready()
        is_gzip, details = check_arrow_content(request), details_of(request.scope["query_string"])
        limit = self.limits.of_arrow

        def act(body: bytes, _most: int | None) -> bytes:
            body = decompressed(body, limit) if is_gzip else body
            return self.predict_table(body, details)

        return await self._respond(request, act, limit, is_aside=True, media_type=ARROW[0])

    async def answer(self, body: bytes) -> bytes:
        """The predictions for JSON rows. `RequestError`, DataError and StoreError when there are none."""
        async with self._large_body() if len(body) > INLINE_BYTES else nullcontext():
            return await self._answer(body, self.predict, is_aside=False)

    async def explain_json(self, request: Request) -> Response:
        """What each feature adds to the predictions for a request with JSON rows."""
        return await self.respond(request, self.explain, is_aside=True)

    async def respond(self, request: Request, act: Act, *, is_aside: bool = False) -> Response:
        """The response to a request with JSON: what `act` returns for its body; `is_aside`: in a thread."""
        self.check_ready()
        limit = self.limits.of_body
        if check_content(request):  # what decompression takes, the event loop does not have
            plain, is_aside = act, True

            def act(body: bytes, most: int | None = None) -> bytes:
                return plain(decompressed(body, limit), most)

        return await self._respond(request, act, limit, is_aside=is_aside)

    async def _respond(
        self,
        request: Request,
        act: Act,
        limit: ByteLimit,
        *,
        is_aside: bool,
        media_type: str = "application/json",
    ) -> Response:
        large = int(request.headers.get("content-length", INLINE_BYTES + 1)) > INLINE_BYTES
        try:
            if large:
                async with self._large_body():
                    body = await read_body(request, limit, self.limits.body_s)
                    content = await self._answer(body, act, is_aside=is_aside)
            else:
                body = await read_body(request, limit, self.limits.body_s)
                content = await self._answer(body, act, is_aside=is_aside)
        except (RequestError, DataError):
            raise
        except asyncio.CancelledError:  # uvicorn would log a traceback
            raise RequestError(503, "the server stops before the request could be answered") from None
        except StoreError as error:
            raise RequestError(503, str(error)) from None
        except Exception:
            # Answered here, because uvicorn would close the connection that the client still counts on.
            logger.exception("a request failed")
            return problem(500, "the server failed on this request; its log says why")
        return Response(content, media_type=media_type)

    @asynccontextmanager
    async def _large_body(self) -> AsyncIterator[None]:
        """Only so many large bodies are in memory at a time. `RequestError` (503): others last too long."""
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

    async def _answer(self, body: bytes, act: Act, *, is_aside: bool) -> bytes:
        """The result of `act`, in a thread if it could block the event loop for other clients."""
        if is_aside or len(body) > self._inline_bytes:
            return await self._in_thread(act, body, None)
        try:
            if not self.model.spec.windows:
                return act(body, INLINE_FEATURES)
            # Windows are behind a lock, or in Redis.
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._waiting, act, body, INLINE_FEATURES)
        except MoreFeaturesError:
            return await self._in_thread(act, body, None)

    def close(self) -> None:
        """Let the threads end, and the model go. Nothing can be predicted after that."""
        self._ready = False
        self._threads.shutdown(wait=False)
        self._waiting.shutdown(wait=False)
        if self._windows is not None:
            self._windows.close()
        if self._live is not None:
            self._live.close()
            self.metrics.follow(None)
        # FastAPI has the functions of endpoints, and through them whole applications, in caches for as long
        # as the process lives.
        del self.model, self._answers, self._rows, self._drift

    async def _in_thread(self, call: Callable[..., _Result], *arguments: Any) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def predict(self, body: bytes, most: int | None = None, details: frozenset[str] = frozenset()) -> bytes:
        """The response body to JSON rows. `RequestError` or DataError when it is malformed.

        `most`: with more features than that it raises MoreFeaturesError.
        """
        if self.log is not None and self._ready and ((asks := b'"log"' in body) or self.log.share):
            require_brief(body, most)  # before it is drawn, as that is asked once for each request
            drawn = self.log.is_drawn()
            if asks or drawn:
                return self._predict_and_log(body, most, details, drawn=drawn)
        rows = self._rows.read(body, briefly=most is not None)
        batch = self._answers.transform_for(details).apply(rows.cells, most)
        answer = self._answers.json(batch, details)
        if self._ready:
            self._drift.sample(lambda transform: transform.apply(rows.cells.part(0, 1)))
        if rows.unknown and self._unknown_fields == "count":
            self.metrics.unknown_values.inc(rows.unknown)
        return answer

    def _predict_and_log(
        self, body: bytes, most: int | None, details: frozenset[str], *, drawn: bool
    ) -> bytes:
        """The same; rows are kept, and get ids, if the request says so, or says nothing and was drawn."""
        assert self.log is not None
        rows = parse_rows(body, self.limits, self._lists, keeps_log=True)
        known = self._rows.cells_of(rows)
        batch = self._answers.transform_for(details).apply(known.cells, most)
        if known.unknown and self._unknown_fields == "count":
            self.metrics.unknown_values.inc(known.unknown)
        if not orjson.loads(body).get("log", drawn):
            return self._answers.json(batch, details)
        keep = partial(self.log.keep, rows, model=self.model.id, metrics=self.metrics)
        return self._answers.json(batch, details, keep)

    def click(self, body: bytes, _most: int | None = None) -> bytes:
        """Keep clicks on rows that were kept."""
        if self.log is None:
            raise RequestError(404, "this server keeps no log; it takes --feedback-log")
        return self.log.click(body, self.limits)

    def predict_table(self, body: bytes, details: frozenset[str]) -> bytes:
        """The response body to an Arrow table, likewise."""
        batch = self._batch_of(read_table(body, self.limits), details)
        return write_table(self._answers.table(batch, details))

    def compare(self, body: bytes, answer: bytes) -> None:
        """Predict the rows of a request that another version has answered, and note how the two differ."""
        if not self._ready:  # no longer: it has been closed
            return
        served = np.array(orjson.loads(answer)["predictions"], np.float32)
        batch = self._answers.transform_for(frozenset()).apply(self._rows.read(body).cells)
        predictions = probabilities_of(self.model.margins(batch))
        for difference in np.abs(predictions - served).tolist():
            self.metrics.shadow.difference.observe(difference)
        self.metrics.shadow.predictions.labels("served").inc(float(served.sum()))
        self.metrics.shadow.predictions.labels("shadow").inc(float(predictions.sum()))

    def _batch_of(self, table: pa.Table, details: frozenset[str]) -> Batch:
        """The rows of a table that has some of the columns, or of the ignored ones."""
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
                f" spec under source.ignore, or use one of: {', '.join(transform.columns)}."
            )
        if unknown and self._unknown_fields == "count":
            self.metrics.unknown_values.inc(len(unknown) * table.num_rows)
        for name in transform.columns:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
        batch = batch_of(table, transform)
        self._drift.sample(partial(batch_of, table.slice(0, 1)))
        return batch

    def explain(self, body: bytes, _most: int | None = None) -> bytes:
        """The response body of an explanation."""
        rows = parse_rows(body, self.limits, self._lists)
        if len(rows) > EXPLAINED_ROWS:
            raise RequestError(413, f"{len(rows):,} rows to explain; send at most {EXPLAINED_ROWS}")
        explained = []
        for index, row in enumerate(rows):
            try:
                explanation = explain_row(self.model, row).to_json()
            except DataError as error:  # about the one row that it got
                raise DataError(str(error).replace("rows[0]", f"rows[{index}]", 1)) from None
            del explanation["place"]
            explained.append(explanation)
        return orjson.dumps({"explanations": explained, "model": self.model.id})

    def impressions(self, body: bytes, _most: int | None = None) -> bytes:
        """Take the rows of a request into the model's windows."""
        rows = parse_rows(body, self.limits, self._lists)
        return orjson.dumps({"taken": self.model.take_in(rows, int((time() + AHEAD_S) * 1e6))})

    def clicks(self, body: bytes, _most: int | None = None) -> bytes:
        """Add clicks to rows that the windows have."""
        return orjson.dumps({"taken": self.model.add_clicks(parse_rows(body, self.limits, self._lists))})


def problem(status: int, detail: str) -> Response:
    """A response that says why a request gets nothing else."""
    return Response(orjson.dumps({"detail": detail}), status, media_type="application/json")
