"""`Client` and `AsyncClient`: predictions from a server, for Python programs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
_ROW = re.compile(r"\b(rows\[|row )([0-9]+)(\]|:)")
"""The place of a bad row in the reason why a request was refused: from 0 for JSON, from 1 for Arrow."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, and how to read its answer. It can be repeated: see `content_of`."""

    path: str
    content: bytes
    content_type: str
    read: Callable[[bytes], NDArray[np.float32]]
    first_row: int
    """The place of its first row in the caller's data."""
    key: str | None
    """Which decides between the served versions; see `Client.predict`."""

    def content_of(self, attempt: int) -> bytes:
        """What to send at an attempt, from 0.

        A server that gave no answer may have written the rows to its feedback log, and would write them there
        once more, with other ids. So a repeat asks for rows not to be logged. Otherwise, predicting changes
        nothing on a server; rows as Arrow are never logged.
        """
        if attempt == 0 or self.content_type != _JSON:
            return self.content
        return self.content[:-1] + b',"log":false}'

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

    def _requests(self, data: Any, key: str | None) -> Iterator[_Request]:
        """The requests for the predictions of `data`, in the order of its rows. Raises DataError."""
        try:
            table = _table_of(data)
            rows = [data] if table is not None or isinstance(data, Mapping) else list(data)
        except (pa.ArrowException, AttributeError, TypeError) as error:
            raise DataError(
                f"the data: {type(data).__name__} cannot be sent ({error}); give dicts, or a frame or an"
                " Arrow table whose columns have one type each."
            ) from None
        if table is not None:
            for first in range(0, table.num_rows, self._batch_rows):
                content = _stream_of(table.slice(first, self._batch_rows))
                yield _Request("/v1/predict/arrow", content, _ARROW, _of_arrow, first, key)
            return
        for first in range(0, len(rows), self._batch_rows):
            body = {"rows": rows[first : first + self._batch_rows]}
            try:
                content = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
            except orjson.JSONEncodeError as error:
                raise DataError(
                    f"the data: cannot be sent as JSON ({error}); give text or numbers."
                ) from None
            yield _Request("/v1/predict", content, _JSON, _of_json, first, key)

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
        """
        return _joined([request.read(self._send(request)) for request in self._requests(data, key)])

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
                content = request.content_of(attempt)
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
        requests = list(self._requests(data, key))
        answers = await asyncio.gather(*map(self._send, requests))
        return _joined([request.read(answer) for request, answer in zip(requests, answers, strict=True)])

    async def model(self) -> dict[str, Any]:
        """The manifest of the model that is served."""
        response = await self._http.get("/v1/model")
        _raise_for(response)
        return dict(response.json())

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

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
                content = request.content_of(attempt)
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


def _of_json(content: bytes) -> NDArray[np.float32]:
    return np.array(orjson.loads(content)["predictions"], np.float32)


def _of_arrow(content: bytes) -> NDArray[np.float32]:
    column = pa.ipc.open_stream(content).read_all()["prediction"]
    return np.asarray(column.to_numpy(), np.float32)


def _joined(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate([np.empty(0, np.float32), *parts])


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
