"""`Client` and `AsyncClient`: predictions from a server, for Python programs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import CtrError, DataError
from ctr.packages import require_packages

if TYPE_CHECKING:
    import httpx

_ARROW = "application/vnd.apache.arrow.stream"
_JSON = "application/json"
_AGAIN = frozenset({429, 502, 503, 504})
"""Statuses after which a later attempt may succeed."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_BATCH_ROWS = 5_000
_BODY_BYTES = (2 << 20) - 64  # within the server's default limit
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATETIME
_ROW = re.compile(r"\b(rows\[|row )([0-9]+)(\]|:)")
"""The place of a bad row in the reason why a request was refused: from 0 for JSON, from 1 for Arrow."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server to the rows of one call."""

    predictions: NDArray[np.float32]
    """float32[rows]: click probabilities."""
    ids: list[str | None]
    """The id of each row in the server's feedback log, to report a click with; None if it was not logged."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, which may be repeated, and how to read its answer."""

    path: str
    content: bytes
    repeat: bytes
    """What to send instead at the second attempt and later ones.

    A server that gave no answer may have written the rows to its feedback log, and would write them there
    once more, with other ids. So a repeat asks for rows not to be logged. Otherwise, predicting changes
    nothing on a server; rows as Arrow are never logged, and a click that is repeated counts once.
    """
    content_type: str
    first_row: int = 0
    """The place of its first row in the caller's data."""
    key: str | None = None
    """Which decides between the served versions; see `Client.predict`."""

    @property
    def headers(self) -> dict[bytes, bytes]:
        key = {} if self.key is None else {b"ctr-request-key": self.key.encode()}
        return {b"content-type": self.content_type.encode(), **key}


class _ClientSettings:
    """The part that both clients share."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 10.0,
        retries: int = 5,
        batch_rows: int = _BATCH_ROWS,
        socket: str | Path | None = None,
        verify: Any = True,
        version: str | None = None,
    ) -> None:
        """`url`: such as `http://127.0.0.1:8000`. `token`: see `ctr serve --tokens-file`. `retries`: how
        often to repeat a request if the server does not answer, is busy or is warming up. `batch_rows`: the
        most rows of one request. `socket`: the path of a Unix socket. `verify`: as in httpx.
        `version`: the label or id of the served version to ask; None: the server chooses.
        """
        require_packages("A client", {"httpx": "httpx"})
        self._retries, self._batch_rows = retries, batch_rows
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        if version is not None:
            headers["ctr-version"] = version
        self._options: dict[str, Any] = {
            "base_url": url,
            "timeout": timeout_s,
            "headers": headers,
        }
        self._transport: dict[str, Any] = {"verify": verify}
        if socket is not None:
            self._transport["uds"] = str(socket)

    def _requests(
        self, data: Any, key: str | None, log: bool | None, *, with_ids: bool = True
    ) -> Iterator[_Request]:
        """The requests for the predictions of `data`, in the order of its rows. Raises DataError.

        `log`: see `Client.ask`. `with_ids`: whether the caller gets ids; if not, frames are sent as Arrow.
        """
        try:
            table = _table_of(data)
            if table is not None and not table.num_columns:
                data, table = [{}] * table.num_rows, None
            rows = [data] if table is not None or isinstance(data, Mapping) else list(data)
        except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
            raise DataError(
                f"the data: {type(data).__name__} cannot be sent ({error}); give dicts, or a frame or an"
                " Arrow table whose columns have one type each."
            ) from None
        size = len(rows) if table is None else table.num_rows
        for first in range(0, size, self._batch_rows):
            if table is not None and not with_ids:
                content = _stream_of(table.slice(first, self._batch_rows))
                yield _Request("/v1/predict/arrow", content, content, _ARROW, first, key)
            else:
                part = slice(first, min(first + self._batch_rows, size))
                for place, body in _bodies(rows if table is None else table, part):
                    content, repeat = _with_log(body, log), _with_log(body, False)
                    yield _Request("/v1/predict", content, repeat, _JSON, place, key)

    def _click_requests(self, ids: str | Iterable[str | None]) -> Iterator[_Request]:
        """The requests that report clicks."""
        try:
            clicks = [ids] if isinstance(ids, str) else [id_ for id_ in ids if id_ is not None]
            parts = [clicks[first : first + _BATCH_ROWS] for first in range(0, len(clicks), _BATCH_ROWS)]
            contents = [orjson.dumps({"clicks": part}) for part in parts]
        except TypeError as error:  # orjson's is one
            raise DataError(f"the clicks: cannot be sent ({error}); give ids from answers.") from None
        for content in contents:
            yield _Request("/v1/feedback", content, content, _JSON)

    def _pause_s(self, attempt: int, response: httpx.Response | None) -> float:
        retry_after = "" if response is None else response.headers.get("retry-after", "")
        pause = float(retry_after) if retry_after.isdecimal() else _FIRST_PAUSE_S * 2**attempt
        return min(pause, _LONGEST_PAUSE_S)


class Client(_ClientSettings):
    """Asks a server for predictions. Thread-safe; also a context manager.

    >>> with Client("http://127.0.0.1:8000") as client:     # doctest: +SKIP
    ...     client.predict([{"site": "news"}, {"site": "shop"}])
    """

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        import httpx

        self._http = httpx.Client(transport=httpx.HTTPTransport(**self._transport), **self._options)

    def predict(self, data: Any, *, key: str | None = None) -> NDArray[np.float32]:
        """float32[rows]: a click probability for each row.

        `data`: dicts, a dict, a frame of pandas or polars, or an Arrow table. `key`: such as a user's id;
        while a canary is served, the same version answers all requests with the same key. Raises DataError
        with the server's reason for rows that it refuses, and CtrError if it does not answer.

        The rows are not logged, whatever share the server logs: without ids, nobody could report their
        clicks. See `ask`.
        """
        requests = self._requests(data, key, log=False, with_ids=False)
        return _joined([_answer_of(request, self._send(request)) for request in requests]).predictions

    def ask(self, data: Any, *, key: str | None = None, log: bool | None = None) -> Answer:
        """The same predictions, and the ids of the rows that the server has logged, for `feedback`.

        `log`: True: log all of these rows; False: none; None: the server's `--log-impressions` decides, for
        each of the requests in which the rows are sent. Raises as `predict` does, and DataError for
        True if the server has no feedback log.
        """
        requests = self._requests(data, key, log)
        return _joined([_answer_of(request, self._send(request)) for request in requests])

    def feedback(self, ids: str | Iterable[str | None]) -> int:
        """Report clicks on rows, by their ids in an `Answer`; returns how many the server has stored.

        None, for a row that was not logged, is skipped; a click that is reported twice counts once. Raises
        DataError for ids that are not from an answer, and CtrError if the server cannot store clicks.
        """
        return sum(_clicks_of(self._send(request)) for request in self._click_requests(ids))

    def model(self) -> dict[str, Any]:
        """The manifest of the model that is served."""
        response = self._http.get("/v1/model")
        _raise_for(response)
        return dict(response.json())

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, request: _Request) -> bytes:
        import httpx

        for attempt in range(self._retries + 1):
            response = failure = None
            try:
                content = request.repeat if attempt else request.content
                response = self._http.post(request.path, content=content, headers=request.headers)
            except httpx.TransportError as error:
                failure = error
            if not _is_to_repeat(response) or attempt == self._retries:
                return _content(request, response, failure, str(self._http.base_url))
            time.sleep(self._pause_s(attempt, response))
        raise AssertionError


class AsyncClient(_ClientSettings):
    """The same for asyncio: `async with AsyncClient(url) as client: await client.predict(rows)`."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        import httpx

        transport = httpx.AsyncHTTPTransport(**self._transport)
        self._http = httpx.AsyncClient(transport=transport, **self._options)

    async def predict(self, data: Any, *, key: str | None = None) -> NDArray[np.float32]:
        """See `Client.predict`; the requests of one call run concurrently."""
        return (await self._answer(self._requests(data, key, log=False, with_ids=False))).predictions

    async def ask(self, data: Any, *, key: str | None = None, log: bool | None = None) -> Answer:
        """See `Client.ask`; the requests of one call run concurrently."""
        return await self._answer(self._requests(data, key, log))

    async def feedback(self, ids: str | Iterable[str | None]) -> int:
        """See `Client.feedback`."""
        return sum(map(_clicks_of, await asyncio.gather(*map(self._send, self._click_requests(ids)))))

    async def model(self) -> dict[str, Any]:
        """The manifest of the model that is served."""
        response = await self._http.get("/v1/model")
        _raise_for(response)
        return dict(response.json())

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _answer(self, requests: Iterable[_Request]) -> Answer:
        requests = list(requests)
        contents = await asyncio.gather(*map(self._send, requests))
        return _joined(list(map(_answer_of, requests, contents)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, request: _Request) -> bytes:
        import httpx

        for attempt in range(self._retries + 1):
            response = failure = None
            try:
                content = request.repeat if attempt else request.content
                response = await self._http.post(request.path, content=content, headers=request.headers)
            except httpx.TransportError as error:
                failure = error
            if not _is_to_repeat(response) or attempt == self._retries:
                return _content(request, response, failure, str(self._http.base_url))
            await asyncio.sleep(self._pause_s(attempt, response))
        raise AssertionError


def _is_to_repeat(response: httpx.Response | None) -> bool:
    return response is None or response.status_code in _AGAIN


def _content(
    request: _Request, response: httpx.Response | None, failure: Exception | None, url: str
) -> bytes:
    if response is None:
        raise CtrError(f"{url}: the server cannot be reached ({failure}).") from failure
    _raise_for(response, request.first_row)
    return response.content


def _raise_for(response: httpx.Response, first_row: int = 0) -> None:
    """Raise the reason of an answer without success; `first_row`: see `_Request`."""
    if response.is_success:
        return
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = response.text[:200]
    if first_row:

        def place(match: re.Match[str]) -> str:
            return f"{match[1]}{first_row + int(match[2])}{match[3]}"

        detail = _ROW.sub(place, str(detail), count=1)
    error = DataError if response.status_code in (413, 422) else CtrError
    raise error(f"{response.url}: {detail} ({response.status_code})")


def _answer_of(request: _Request, content: bytes) -> Answer:
    if request.content_type == _ARROW:
        column = pa.ipc.open_stream(content).read_all()["prediction"]
        return Answer(np.asarray(column.to_numpy(), np.float32), [None] * len(column))
    answer = orjson.loads(content)
    predictions = np.array(answer["predictions"], np.float32)
    return Answer(predictions, answer.get("ids") or [None] * predictions.size)


def _joined(parts: Sequence[Answer]) -> Answer:
    predictions = np.concatenate([np.empty(0, np.float32), *(part.predictions for part in parts)])
    return Answer(predictions, [id_ for part in parts for id_ in part.ids])


def _clicks_of(content: bytes) -> int:
    return int(orjson.loads(content)["taken"])


def _bodies(data: pa.Table | list[Any], part: slice) -> Iterator[tuple[int, bytes]]:
    """The bodies for a part of the rows of `data`, each with the place of its first row.

    There are several if the rows are long. Raises DataError for rows that cannot be sent.
    """
    rows = part.stop - part.start
    try:
        if isinstance(data, list):
            body = orjson.dumps({"rows": data[part]}, _text_of, _OPTIONS)
            if b"null" in body:
                _require_finite(data[part], part.start)
        else:
            from ctr.features import json_columns  # loads Numba

            body = orjson.dumps({"columns": json_columns(data.slice(part.start, rows))})
    except (orjson.JSONEncodeError, pa.ArrowException) as error:
        raise DataError(f"the data: cannot be sent as JSON ({error}); give text or numbers.") from None
    if len(body) <= _BODY_BYTES or rows == 1:
        yield part.start, body
        return
    middle = part.start + rows // 2
    yield from _bodies(data, slice(part.start, middle))
    yield from _bodies(data, slice(middle, part.stop))


def _text_of(value: object) -> str:
    """The text of a time, as a model in this process has it."""
    if isinstance(value, date):
        return str(value).removeprefix("NaT")
    raise TypeError(f"{type(value).__name__} has no text")


def _require_finite(rows: list[Any], first: int) -> None:
    """Raise DataError for an infinite number, which JSON would turn into null, a missing value."""
    for index, row in enumerate(rows, first):
        for name, value in row.items() if isinstance(row, Mapping) else ():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, float | np.floating) and np.isinf(each):
                    raise DataError(
                        f"the data: rows[{index}]: column {name!r}: {each} is not a finite number."
                    )


def _with_log(body: bytes, log: bool | None) -> bytes:
    """A body that says whether to log its rows; None: it does not say."""
    return body if log is None else body[:-1] + (b',"log":true}' if log else b',"log":false}')


def _table_of(data: Any) -> pa.Table | None:
    """The Arrow table of a table or a frame; None for rows."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "to_arrow"):  # polars
        table = data.to_arrow()
        return table if isinstance(table, pa.Table) else None
    if type(data).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    return None


def _stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
