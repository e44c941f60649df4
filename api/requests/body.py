"""The bytes of a request's body, within the limits."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass
from typing import Literal

from starlette.requests import ClientDisconnect, Request

DRAIN_FACTOR = 4
"""A body up to this many times the limit is read to its end and dropped before it is refused.

A server that closes while the client still sends resets the connection, and the client may never see
the answer. Whoever sends even more is cut off.
"""

JSON = "application/json"
ARROW = ("application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file")

_GZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one request may ask for; `ctr serve` has a setting `limit_…` for each."""

    rows: int = 10_000
    """Rows in one request."""
    body_bytes: int = 2 << 20
    """Bytes of one request's body, once it is decompressed; 2 MiB."""
    arrow_bytes: int = 8 << 20
    """The same of a body in the Arrow format; 8 MiB."""
    body_s: float = 8.0
    """Seconds that a body may take to arrive. Less than a server that stops waits for its requests."""
    large_bodies: int = 16
    """Bodies of more than `ctr.api.app.INLINE_BYTES` in memory at a time; others wait unread."""

    @property
    def of_body(self) -> ByteLimit:
        """Of JSON."""
        return ByteLimit("body_bytes", self.body_bytes)

    @property
    def of_arrow(self) -> ByteLimit:
        """Of Arrow."""
        return ByteLimit("arrow_bytes", self.arrow_bytes)


class RequestError(Exception):
    """A request that gets no predictions: the HTTP status, and what was wrong and what to do."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def check_content(request: Request) -> bool:
    """Whether the body is compressed with gzip.

    `RequestError` (415) when the headers announce another body than JSON in UTF-8, compressed or not.
    """
    compressed = _is_gzip(request)
    sent = request.headers.get("content-type", JSON)  # who sends none has JSON in mind
    if sent == JSON:
        return compressed
    kind, *parameters = (part.strip().lower() for part in sent.split(";"))
    if kind != JSON:
        raise RequestError(415, f"the body is of type {kind!r:.80}; send JSON with Content-Type: {JSON}")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in {"utf-8", "utf8", "us-ascii"}:
            raise RequestError(415, f"the body's charset is {value!r:.80}; send JSON in UTF-8")
    return compressed


def check_arrow_content(request: Request) -> bool:
    """As `check_content`, for a body in the Arrow format."""
    kind = request.headers.get("content-type", ARROW[0]).partition(";")[0].strip().lower()
    if kind not in ARROW:
        raise RequestError(415, f"the body is of type {kind!r:.80}; send Arrow with Content-Type: {ARROW[0]}")
    return _is_gzip(request)


def _is_gzip(request: Request) -> bool:
    encoding = request.headers.get("content-encoding")
    if encoding is None:
        return False
    encoding = encoding.strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip"):
        raise RequestError(
            415, f"the body has the Content-Encoding {encoding!r:.80}; send it with gzip, or without one"
        )
    return encoding != "identity"


def setting_of(limit: str) -> str:
    """The setting of a field of `Limits`, for an answer that it causes."""
    return f"(CTR_SERVE_LIMIT_{limit.upper()})"


def too_many(rows: int, limits: Limits) -> RequestError:
    """What a client is told that sends more rows than it may."""
    return RequestError(
        413, f"{rows:,} rows in one request; send at most {limits.rows:,} {setting_of('rows')}"
    )


def too_slow(seconds: float) -> RequestError:
    """What a client is told whose body does not arrive in time."""
    return RequestError(
        408,
        f"the body did not arrive within {seconds:g} seconds {setting_of('body_s')}; send fewer rows per"
        " request",
    )


@dataclass(frozen=True, slots=True)
class ByteLimit:
    """The size of a body, and which field of `Limits` says so."""

    name: Literal["body_bytes", "arrow_bytes"]
    bytes: int

    def exceeded(self) -> RequestError:
        """What the client is told."""
        return RequestError(
            413,
            f"the body is larger than the limit of {self.bytes:,} bytes {setting_of(self.name)}; send fewer"
            " rows per request",
        )


def decompressed(body: bytes, limit: ByteLimit) -> bytes:
    """What gzip has compressed; never more than `limit` of it is made.

    `RequestError`: 413 when it is larger, 422 when it is not gzip.
    """
    parts, room = [], limit.bytes
    try:
        while body:
            stream = zlib.decompressobj(_GZIP)
            part = stream.decompress(body, room + 1)
            room -= len(part)
            if room < 0:
                raise limit.exceeded()
            if not stream.eof:
                raise zlib.error("it is cut short")
            parts.append(part)
            body = stream.unused_data
    except zlib.error as error:
        raise RequestError(422, f"the body is not gzip ({error}); send it without Content-Encoding") from None
    return b"".join(parts)


async def read_body(request: Request, limit: ByteLimit, seconds: float) -> bytes:
    """The body of `request`.

    `RequestError`: 413 when it is larger than `limit`, 408 when it takes longer than `seconds`.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size <= limit.bytes:
                    parts.append(part)
                    continue
                parts.clear()
                if size > limit.bytes * DRAIN_FACTOR:
                    break
    except ClientDisconnect:
        # Nobody is left to read the answer; this only keeps a traceback out of the log.
        raise RequestError(400, "the connection was closed before the whole body had arrived") from None
    except TimeoutError:
        raise too_slow(seconds) from None
    if size > limit.bytes:
        raise limit.exceeded()
    return parts[0] if len(parts) == 1 else b"".join(parts)
