"""The bytes of a request's body, within the limits."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass
from typing import Literal

from starlette.requests import ClientDisconnect, Request

DRAIN_FACTOR = 4
"""A body up to this many times the limit is read to its end and discarded before it is refused.

A server that closes while the client still sends resets the connection, and the client may never see the
answer. A client that sends even more is cut off.
"""

JSON = "application/json"
ARROW = ("application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file")

_GZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one request; `ctr serve` has a setting `limit_…` for each."""

    rows: int = 10_000
    """Rows in one request."""
    body_bytes: int = 2 << 20
    """Bytes of a request's body after decompression; 2 MiB."""
    arrow_bytes: int = 8 << 20
    """The same for a body in the Arrow format; 8 MiB."""
    body_s: float = 8.0
    """Seconds that a body may take to arrive: less than a stopping server waits for its requests."""
    large_bodies: int = 16
    """Bodies of more than `ctr.api.service.INLINE_BYTES` in memory at a time; others wait unread."""

    @property
    def of_body(self) -> ByteLimit:
        """The limit of a JSON body."""
        return ByteLimit("body_bytes", self.body_bytes)

    @property
    def of_arrow(self) -> ByteLimit:
        """The limit of an Arrow body."""
        return ByteLimit("arrow_bytes", self.arrow_bytes)


class RequestError(Exception):
    """Why a request is refused: the HTTP status, the problem and the remedy."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def check_content(request: Request) -> bool:
    """Whether the body is compressed with gzip.

    Raises `RequestError` (415) if the headers announce anything but JSON in UTF-8.
    """
    compressed = is_gzip(request)
    sent = request.headers.get("content-type", JSON)  # absent: JSON
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
    return is_gzip(request)


def is_gzip(request: Request) -> bool:
    """Whether the body is compressed with gzip. Raises `RequestError` (415) for any other encoding."""
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
    """The setting of a field of `Limits`, for messages about that limit."""
    return f"(CTR_SERVE_LIMIT_{limit.upper()})"


def too_many(rows: int, limits: Limits) -> RequestError:
    """The refusal of a request with too many rows."""
    return RequestError(
        413, f"{rows:,} rows in one request; send at most {limits.rows:,} {setting_of('rows')}"
    )


def too_slow(seconds: float) -> RequestError:
    """The refusal of a request whose body does not arrive in time."""
    return RequestError(
        408,
        f"the body did not arrive within {seconds:g} seconds {setting_of('body_s')}; send fewer rows per"
        " request",
    )


@dataclass(frozen=True, slots=True)
class ByteLimit:
    """The largest size of a body, and the field of `Limits` that sets it."""

    name: Literal["body_bytes", "arrow_bytes"]
    bytes: int

    def exceeded(self) -> RequestError:
        """The refusal of a larger body."""
        return RequestError(
            413,
            f"the body is larger than the limit of {self.bytes:,} bytes {setting_of(self.name)}; send fewer"
            " rows per request",
        )


def decompressed(body: bytes, limit: ByteLimit) -> bytes:
    """The content of a gzip body; at most `limit` bytes of it are ever decompressed.

    Raises `RequestError`: 413 for a larger content, 422 if the body is not gzip.
    """
    parts, remaining = [], limit.bytes
    try:
        while body:
            stream = zlib.decompressobj(_GZIP)
            part = stream.decompress(body, remaining + 1)
            remaining -= len(part)
            if remaining < 0:
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

    Raises `RequestError`: 413 if it is larger than `limit`, 408 if it takes longer than `seconds`.
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
        # Nobody reads the answer; this only keeps a traceback out of the log.
        raise RequestError(400, "the connection was closed before the whole body had arrived") from None
    except TimeoutError:
        raise too_slow(seconds) from None
    if size > limit.bytes:
        raise limit.exceeded()
    return parts[0] if len(parts) == 1 else b"".join(parts)
