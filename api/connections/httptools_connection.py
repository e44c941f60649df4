"""`HttpToolsConnection`: a connection whose requests are parsed in C."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sized
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ctr.api.connections.connection import CLOSE, MOST_HEADER_BYTES, TOO_LARGE_HEADER, Bounded

logger = logging.getLogger(__name__)


class HttpToolsConnection(Bounded, HttpToolsProtocol):  # type: ignore[misc]  # two protocols, for the types
    """A connection whose requests are parsed by httptools.

    If the application has a method `answer_now`, it is called first with a POST request that has arrived as a
    whole: scope and body. It returns headers and body of an answer with status 200, or None for the normal
    way. That saves a task and the messages of ASGI, which take longer than predicting a row.
    """

    _in_message = False
    _in_header = False
    _header_bytes = 0
    _running: Any = None
    """The cycle of the latest request that was started."""
    _body: bytearray | None = None
    """What has arrived of the body of a request that `answer_now` may answer."""
    _had_turn = False
    """Whether a request of this read was answered at once; clients that send many at a time take turns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answer_now = getattr(self.config.app, "answer_now", None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._running is not None:  # uvicorn tells only the latest request, which may still wait
            self._running.disconnected = True
        super().connection_lost(exc)

    @property
    def _has_part(self) -> bool:
        return self._in_message

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        self._had_turn = False
        super().data_received(data)
        if self._body is not None:  # the rest of it may take long
            self._call_application()
        is_large = self._in_header and self._header_bytes > MOST_HEADER_BYTES
        if is_large and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_LARGE_HEADER)

    @property
    def _is_in_body(self) -> bool:
        return self._body is not None or super()._is_in_body

    def on_message_begin(self) -> None:
        self._in_message = self._in_header = True
        self._header_bytes = 0  # the data in which it begins may have many requests before
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_header = False
        if self._can_answer_now:
            self._body = bytearray()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._body is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._body is not None:
            if self._try_to_answer():
                return
            self._call_application()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        # Both may have begun with the data in which the request's header arrived.
        self._unset_keepalive_if_required()
        self._stop_deadline()
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _can_answer_now(self) -> bool:
        """Whether a request is one to pass to `answer_now`, and nothing else is under way."""
        return (
            self._answer_now is not None
            and not self._had_turn
            and self.parser.get_method() == b"POST"
            and self.url.startswith(b"/")  # or it has to be parsed
            and b"?" not in self.url
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and CLOSE not in self.server_state.default_headers
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
            and self._waits
            and not self.pipeline
            and not self.flow.write_paused
        )

    def _try_to_answer(self) -> bool:
        """Answer the request, if that is possible now; returns whether it was."""
        assert self._body is not None
        assert self._answer_now is not None
        self.scope |= {"method": "POST", "path": self.url.decode("latin-1"), "query_string": b""}
        try:
            answer = self._answer_now(self.scope, bytes(self._body))
        except Exception:  # the parser would take it for a malformed request
            logger.exception("a request failed; the application is called with it")
            return False
        if answer is None:
            return False
        self._body, self._had_turn = None, True
        headers, content = answer
        lines = [b"%b: %b\r\n" % header for header in (*self.server_state.default_headers, *headers)]
        self.transport.write(
            b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (b"".join(lines), len(content), content)
        )
        self.on_response_complete()
        return True

    def _call_application(self) -> None:
        """Let the application answer the request, as far as it has arrived."""
        assert self._body is not None
        body, self._body = bytes(self._body), None
        super().on_headers_complete()
        super().on_body(body)


class _Flow(FlowControl):
    """Reads no more while requests wait for the one before them: the client might never read an answer.

    uvicorn reads on when each request starts, and would store all that the client sends meanwhile.
    """

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()
