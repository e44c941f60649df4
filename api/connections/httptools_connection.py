"""`HttpToolsConnection`: a connection whose requests are parsed in C."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ctr.api.connections.connection import Bounded

MOST_HEADER_BYTES = 64 << 10
"""The limit of h11; httptools has none."""


class HttpToolsConnection(Bounded, HttpToolsProtocol):  # type: ignore[misc]  # two protocols, for the types
    """A connection whose requests are parsed by httptools."""

    _in_message = False
    _in_header = False
    _header_bytes = 0

    @property
    def _has_part(self) -> bool:
        return self._in_message

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_header:
            self._header_bytes = 0
            return
        self._header_bytes += len(data)
        if self._header_bytes > MOST_HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's header is too large.")

    def on_message_begin(self) -> None:
        self._in_message = self._in_header = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_header = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_message = False
        super().on_message_complete()
