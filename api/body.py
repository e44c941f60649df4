"""What a prediction request carries: its bytes within the limits, then its rows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from starlette.requests import ClientDisconnect, Request

from ctr.api.json_kernels import count_containers

DRAIN_FACTOR = 4
"""A body up to this many times the limit is read to its end and dropped before it is refused.

A server that closes while the client still sends resets the connection, and the client may never see
the answer. Whoever sends even more is cut off.
"""

JSON = "application/json"

ROW_DEPTH = 2
"""A row stands inside a list inside the request's object."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one request may ask for."""

    rows: int = 10_000
    """Rows in one request."""
    body_bytes: int = 2 << 20
    """Bytes of one request's body; 2 MiB."""
    body_s: float = 8.0
    """Seconds that a body may take to arrive. Less than a server that stops waits for its requests."""
    large_bodies: int = 16
    """Bodies of more than `ctr.api.app.INLINE_BYTES` in memory at a time; others wait unread."""


class RequestError(Exception):
    """A request that gets no predictions: the HTTP status, and what was wrong and what to do."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def check_content(request: Request) -> None:
    """`RequestError` (415) when the headers announce another body than plain JSON in UTF-8."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise RequestError(415, f"the body is encoded as {encoding!r:.80}; send it without Content-Encoding")
    sent = request.headers.get("content-type", JSON)  # who sends none has JSON in mind
    kind, *parameters = (part.strip().lower() for part in sent.split(";"))
    if kind != JSON:
        raise RequestError(415, f"the body is of type {kind!r:.80}; send JSON with Content-Type: {JSON}")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in {"utf-8", "utf8", "us-ascii"}:
            raise RequestError(415, f"the body's charset is {value!r:.80}; send JSON in UTF-8")


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of `request`.

    `RequestError`: 413 when it is larger than `limits.body_bytes`, 408 when it takes longer than
    `limits.body_s`.
    """
    limit = limits.body_bytes
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_s):
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    parts.append(part)
                    continue
                parts.clear()
                if size > limit * DRAIN_FACTOR:
                    break
    except ClientDisconnect:
        # Nobody is left to read the answer; this only keeps a traceback out of the log.
        raise RequestError(400, "the connection was closed before the whole body had arrived") from None
    except TimeoutError:
        raise RequestError(
            408, f"the body did not arrive within {limits.body_s:g} seconds; send fewer rows per request"
        ) from None
    if size > limit:
        raise RequestError(
            413, f"the body is larger than the limit of {limit:,} bytes; send fewer rows per request"
        )
    return b"".join(parts)


def containers_at_most(body: bytes) -> int:
    """A bound on the lists and objects that parsing `body` makes; brackets within text count, too."""
    return body.count(b"{") + body.count(b"[")


def parse_rows(body: bytes, limits: Limits, lists: int = 0) -> list[dict[str, Any]]:
    """The rows of the JSON request `body`, each an object; their content is not checked here.

    `RequestError` with 422 when it is not `{"rows": [{...}, ...]}`, with 413 when there are more rows than
    `limits.rows`. The rows are counted before any is made: one of 3 bytes becomes an object of 72. So many
    values of a row as `lists` says may be lists.
    """
    if containers_at_most(body) > limits.rows:
        rows_at_most, total = count_containers(np.frombuffer(body, np.uint8), ROW_DEPTH)
        if rows_at_most > limits.rows:
            raise _too_many(rows_at_most, limits)
        if total - rows_at_most > (limits.rows * lists + ROW_DEPTH if lists else limits.rows):
            value = "text, a number or null" + (", or in some fields a list" if lists else "")
            raise RequestError(
                422, f"{total - rows_at_most:,} lists and objects in the rows; a value is {value}"
            )
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(422, f'the body is not JSON: {error}; send {{"rows": [{{...}}, ...]}}') from None
    if not isinstance(request, dict):
        raise RequestError(422, f'the body is {_kind(request)}; send an object: {{"rows": [{{...}}, ...]}}')
    unknown = [key for key in request if key != "rows"]
    if unknown:
        raise RequestError(422, f"unknown key {unknown[0]!r:.80} in the request; its only key is 'rows'")
    if "rows" not in request:
        raise RequestError(422, "the key 'rows' is missing; send {\"rows\": [{...}, ...]}")
    rows = request["rows"]
    if not isinstance(rows, list):
        raise RequestError(422, f"'rows' is {_kind(rows)}; send a list of objects, one per example")
    if len(rows) > limits.rows:
        raise _too_many(len(rows), limits)
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise RequestError(422, f"rows[{index}] is {_kind(row)}; send an object of values by field")
    return rows


def _too_many(rows: int, limits: Limits) -> RequestError:
    return RequestError(413, f"{rows:,} rows in one request; send at most {limits.rows:,}")


def _kind(value: object) -> str:
    """What JSON calls `value`."""
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return kinds.get(type(value), "an object")
