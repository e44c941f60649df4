"""What a prediction request carries: its bytes within the limit, then its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request

DRAIN_FACTOR = 4
"""A body up to this many times the limit is read to its end and dropped before it is refused.

A server that closes while the client still sends resets the connection, and the client may never see
the answer. Whoever sends even more is cut off.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one request may ask for."""

    rows: int = 10_000
    """Rows in one request."""
    body_bytes: int = 16 << 20
    """Bytes of one request's body; 16 MiB."""


class RequestError(Exception):
    """A request that gets no predictions: the HTTP status, and what was wrong and what to do."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of `request`. `RequestError` (413) when it is larger than `limits.body_bytes`."""
    limit = limits.body_bytes
    parts: list[bytes] = []
    size = 0
    try:
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
    if size > limit:
        raise RequestError(
            413, f"the body is larger than the limit of {limit:,} bytes; send fewer rows per request"
        )
    return b"".join(parts)


def parse_rows(body: bytes, limits: Limits) -> list[dict[str, Any]]:
    """The rows of the JSON request `body`, each an object; what is inside them is not looked at here.

    `RequestError` with 422 when it is not `{"rows": [{...}, ...]}`, with 413 when there are more rows than
    `limits.rows`.
    """
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(422, f'the body is not JSON: {error}; send {{"rows": [{{...}}, ...]}}') from None
    if not isinstance(request, dict):
        raise RequestError(422, f'the body is {_kind(request)}; send an object: {{"rows": [{{...}}, ...]}}')
    unknown = [key for key in request if key != "rows"]
    if unknown:
        raise RequestError(422, f"unknown key {unknown[0]!r} in the request; its only key is 'rows'")
    if "rows" not in request:
        raise RequestError(422, "the key 'rows' is missing; send {\"rows\": [{...}, ...]}")
    rows = request["rows"]
    if not isinstance(rows, list):
        raise RequestError(422, f"'rows' is {_kind(rows)}; send a list of objects, one per example")
    if len(rows) > limits.rows:
        raise RequestError(413, f"{len(rows):,} rows in one request; send at most {limits.rows:,}")
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise RequestError(422, f"rows[{index}] is {_kind(row)}; send an object of values by field")
    return rows


def _kind(value: object) -> str:
    """What JSON calls `value`."""
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return kinds.get(type(value), "an object")
