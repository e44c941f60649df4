"""`Bounded`: an HTTP connection of uvicorn with deadlines, a limit on their number, and a last notice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:  # that of httptools has the same methods, as far as they are used
    _Protocol = H11Protocol
else:
    _Protocol = object

HEADER_S = 10.0
"""A connection has this long to send its first request's header, or the rest of one that it has begun."""

LINGER_S = 1.0
"""When the server stops, an idle connection stays open for this long: a request that is on its way is still
answered, and the answer says that the connection closes."""

_CLOSE = (b"connection", b"close")
_DETAIL = b'{"detail":"every connection of this server is in use; try again"}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_DETAIL), _DETAIL)
)


class Bounded(_Protocol):
    """One client's connection, mixed into a protocol of uvicorn.

    uvicorn bounds how long a connection may be idle between requests. It bounds neither how long a header
    may take nor how many connections there are, and a process without a free descriptor answers nobody.
    """

    def __init__(self, *args: Any, limit: int, header_s: float = HEADER_S, **kwargs: Any) -> None:
        """At most `limit` connections at a time, each with `header_s` seconds for a request's header."""
        super().__init__(*args, **kwargs)
        self._limit = limit
        self._header_s = header_s
        self._deadline: asyncio.TimerHandle | None = None
        self._waits_since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limit and not self._make_room():
            transport.write(_FULL)
            transport.close()
            return
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # ends the timer of an idle connection
        if not self._waits:
            self._stop_deadline()
        elif self._deadline is None:  # part of a header, or of a body whose request was answered without it
            self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._waits_since = self.loop.time()
        super().on_response_complete()
        if self._waits and self._has_part and self._deadline is None:
            self._start_deadline()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # to close it would wait for a client that does not read its answer

    def shutdown(self) -> None:
        """Answer what is asked until the connection ends, and say so in the answer."""
        if _CLOSE not in self.server_state.default_headers:
            self.server_state.default_headers = [*self.server_state.default_headers, _CLOSE]
        if self._waits:
            self.loop.call_later(LINGER_S, self._end)
        else:
            self.cycle.default_headers = self.server_state.default_headers
            super().shutdown()

    @property
    def _has_part(self) -> bool:
        """Whether part of a request has come that is not under way."""
        raise NotImplementedError

    @property
    def _waits(self) -> bool:
        """Whether no request is under way: the client has sent part of one at most."""
        return self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> bool:
        """Close the connection that has waited longest for a request, first of those that never sent one.

        False when requests are under way on all.
        """
        others = [c for c in self.connections if isinstance(c, Bounded) and c._waits and c is not self]
        if not others:
            return False
        min(others, key=lambda c: (c.cycle is not None, c._waits_since)).transport.abort()
        return True

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._header_s, self.transport.abort)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()


class H11Connection(Bounded, H11Protocol):
    """A connection that needs nothing but Python."""

    @property
    def _has_part(self) -> bool:
        return self.conn.their_state is not h11.IDLE or bool(self.conn.trailing_data[0])
