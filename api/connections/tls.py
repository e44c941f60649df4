"""`start_tls`: TLS on a connection that was just accepted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable


class _FirstData(asyncio.Protocol):
    """Keeps what a client sends right after its handshake, as it may arrive before `on_end` is called."""

    def __init__(self) -> None:
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data


def start_tls(
    transport: asyncio.Transport,
    context: ssl.SSLContext,
    on_end: Callable[[asyncio.Transport | None, bytes], None],
) -> None:
    """Set up TLS, then call `on_end` with the transport and the first data, or with None if it failed.

    asyncio's TLS servers show a connection only after its handshake, when limits come too late. Call this in
    `connection_made`, as the event loop reads from the connection as soon as that returns.
    """
    first = _FirstData()
    handshake = asyncio.get_running_loop().start_tls(transport, first, context, server_side=True)

    def end(_: asyncio.Future[None]) -> None:
        secure = None
        try:
            handshake.send(None)
        except StopIteration as returned:
            secure = returned.value
        except OSError:  # ssl.SSLError is one
            pass
        if secure is None or secure.is_closing():
            on_end(None, b"")
        else:
            on_end(secure, first.data)

    handshake.send(None).add_done_callback(end)  # not as a task, which would begin too late
