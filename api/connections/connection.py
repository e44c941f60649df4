"""`Bounded`: HTTP connections of uvicorn with deadlines and a limit, which announce a shutdown."""

from __future__ import annotations

import asyncio
import ssl
import sys
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol

from ctr.api.connections.sockets import has_input, unsent
from ctr.api.connections.tls import start_tls

if TYPE_CHECKING:  # the protocol of httptools has the same methods, as far as they are used
    _Protocol = H11Protocol
else:
    _Protocol = object

HEADER_S = 10.0
"""A connection has this long to set up TLS, and then to send the header of its first request, or the rest of
one that it began."""

UNREAD_S = 30.0
"""A connection whose client has read nothing of an answer for this long is closed."""

LINGER_S, _CHECK_S = 1.0, 0.05
"""When the server stops, idle connections stay open for this long: requests that are on their way are still
answered, and the answers announce that the connection closes. Then a connection is closed unless part of a
request has arrived, which is checked again after the second time."""

MOST_HEADER_BYTES = 64 << 10
"""A header of which more than this has arrived is refused, unless it has ended."""

CLOSE = (b"connection", b"close")
"""The header of all answers once the server stops."""
_FULL = "every connection of this server is in use (CTR_SERVE_LIMIT_CONNECTIONS); try again"
_MALFORMED = "this is not a valid HTTP request"
TOO_LARGE_HEADER = "the header of the request is too large"


class Bounded(_Protocol):
    """A client's connection; a mixin for the protocols of uvicorn.

    uvicorn limits how long a connection may be idle between requests, but neither the time of a header nor
    the number of connections, and a process that runs out of descriptors answers nobody.

    If the application has a method `note_refusal`, it is called with client, status and size of each answer
    that the connection gives by itself, and returns a header for it.
    """

    def __init__(
        self,
        *args: Any,
        limit: int,
        header_s: float = HEADER_S,
        unread_s: float = UNREAD_S,
        tls: ssl.SSLContext | None = None,
        **kwargs: Any,
    ) -> None:
        """At most `limit` connections at a time; each has `header_s` seconds for a request's header,
        and `unread_s` to read more of an answer.

        `tls`: None for connections without TLS.
        """
        super().__init__(*args, **kwargs)
        self._limit = limit
        self._tls = tls
        self._header_s, self._unread_s = header_s, unread_s
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        """Runs while an answer is too long for the client's buffers."""
        self._waits_since = monotonic()  # the loop's time stands still for a millisecond: many would be equal
        self._has_answers = False
        """Whether a request was answered."""
        self._note_refusal = getattr(self.config.app, "note_refusal", None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        is_full = len(self.connections) > self._limit and not self._free_one()
        if self._tls is not None and self.scheme == "http":
            self._start_deadline()
            start_tls(transport, self._tls, self._on_tls)
            return
        if is_full:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, _FULL, (b"retry-after", b"1"))
            return
        self._start_deadline()
        if CLOSE in self.server_state.default_headers:  # it was set up while the server began to stop
            self.shutdown()

    def _on_tls(self, transport: asyncio.Transport | None, first: bytes) -> None:
        self._stop_deadline()
        if transport is None:
            self.connection_lost(None)
            return
        transport.set_protocol(self)
        self.connection_made(transport)
        if first:
            self.data_received(first)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # ends the timer of an idle connection
        if not self._waits:
            self._stop_deadline()
        elif self._deadline is None and (self._has_part or self.timeout_keep_alive_task is None):
            self._start_deadline()  # part of a header, or of a body that its answer did not wait for

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        self._stop_reading()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._check_reading(0)

    def resume_writing(self) -> None:
        self._stop_reading()
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._waits_since = monotonic()
        self._has_answers = True
        self._stop_deadline()
        super().on_response_complete()
        if self._waits and self._has_part:
            self._start_deadline()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, instead of uvicorn."""
        self._refuse(HTTPStatus.BAD_REQUEST, _MALFORMED)

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing() and not self._has_input:
            self.transport.abort()  # closing would wait for a client that does not read its answer

    def shutdown(self) -> None:
        """Answer requests until the connection ends, announcing that it closes."""
        if CLOSE not in self.server_state.default_headers:
            self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]
        if not self._waits and not self.cycle.response_started:
            self.cycle.default_headers = self.server_state.default_headers
        self._waits_since = monotonic()
        self.loop.call_later(LINGER_S, self._end)

    @property
    def _has_part(self) -> bool:
        """Whether part of a request has arrived that has not started."""
        raise NotImplementedError

    @property
    def _waits(self) -> bool:
        """Whether no request is running: the client has sent at most part of one."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _has_input(self) -> bool:
        """Whether bytes have arrived that were not read yet: closing the connection would then reset it.

        An event loop that was kept from running may look at its timers before it reads.
        """
        return has_input(self.transport.get_extra_info("socket"))

    @property
    def _is_in_body(self) -> bool:
        """Whether the application has a request, or will have it, whose body has not arrived as a whole."""
        return self.cycle is not None and self.cycle.more_body

    def _refuse(self, status: HTTPStatus, detail: str, *headers: tuple[bytes, bytes]) -> None:
        """Answer without the application, and close the connection."""
        content = orjson.dumps({"detail": detail})
        named = [*self.server_state.default_headers, *headers, (b"content-type", b"application/json"), CLOSE]
        if self._note_refusal is not None and not self._is_in_body:  # or the application counts it
            named.append(self._note_refusal(self.client, status.value, len(content)))
        lines = b"".join(b"%b: %b\r\n" % header for header in dict.fromkeys(named))
        start = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-length: {len(content)}\r\n".encode()
        self.transport.write(b"%b%b\r\n%b" % (start, lines, content))
        self.transport.close()

    def _free_one(self) -> bool:
        """Close the connection that has waited longest for a request; first those that never sent one.

        Returns False if all connections have running requests.
        """
        others = [c for c in self.connections if isinstance(c, Bounded) and c._waits and c is not self]
        if not others:
            return False
        freed = min(others, key=lambda c: (c._has_answers, c._waits_since))
        freed.transport.abort()
        self.connections.discard(freed)  # already now: the end of a TLS handshake takes a moment
        return True

    def _check_reading(self, unread_before: int) -> None:
        """Close the connection if the client has read nothing since `unread_before` bytes were unread."""
        in_kernel = unsent(
            self.transport.get_extra_info("socket")
        )  # the buffer shrinks in steps of megabytes
        unread = self.transport.get_write_buffer_size() + in_kernel  # nothing is added meanwhile
        if unread == unread_before:
            self.transport.abort()
        else:
            self._reading = self.loop.call_later(self._unread_s, self._check_reading, unread)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._header_s, self.transport.abort)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        """Close the connection as soon as no request has come for `LINGER_S`."""
        if self.transport.is_closing():
            return
        rest_s = self._waits_since + LINGER_S - monotonic()
        if self._waits and rest_s <= 0 and not self._has_part and not self._has_input:
            super().shutdown()
        else:
            self.loop.call_later(max(rest_s, _CHECK_S), self._end)


class H11Connection(Bounded, H11Protocol):
    """A connection whose requests are parsed in Python."""

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()  # uvicorn handles it at this moment
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_LARGE_HEADER)
        else:
            super().send_400_response(msg)

    @property
    def _has_part(self) -> bool:
        return self.conn.their_state is not h11.IDLE or bool(self.conn.trailing_data[0])
