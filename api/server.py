"""`serve`: one process that answers prediction requests until it is told to stop."""

from __future__ import annotations

import errno
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from api.app import create_app
from ctr.artifact import load_model
from ctr.errors import CtrError

KEEP_ALIVE_S = 75
"""An idle connection is closed after this. Longer than the pools of common clients and proxies keep one
(up to 60 s), so that they close first and no request meets a connection that is just being closed."""

DRAIN_TIMEOUT_S = 10
"""After a signal to stop, requests under way have this long to finish."""

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(model_dir: Path, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Load the model in `model_dir` and answer requests on `host:port` until SIGINT or SIGTERM, then return.

    Port 0 takes a free one. When the model is ready to predict, one line on standard output says where it
    listens. Requests under way are finished before it returns; a second SIGINT does not wait for them.
    `ModelError` when the model cannot be loaded, `CtrError` when the address cannot be had.
    """
    model = load_model(model_dir)
    listener = listen(host, port)
    failures: list[Exception] = []

    def on_warm(failure: Exception | None) -> None:
        if failure is None:
            sys.stdout.write(f"serving model {model.id} on {url_of(listener)}\n")
            sys.stdout.flush()
        else:
            failures.append(failure)
            server.should_exit = True

    config = uvicorn.Config(
        create_app(model, on_warm=on_warm),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
    )
    server = uvicorn.Server(config)
    with listener, _signals_end_quietly():
        server.run(sockets=[listener])
    if failures:
        raise failures[0]


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket on `host:port`, port 0 for a free one. `CtrError` when it cannot be had."""
    if not 0 <= port <= 65_535:
        raise CtrError(f"port {port} does not exist; give one from 1 to 65535, or 0 for a free one")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CtrError(f"host {host!r} is not known here ({error}); try 127.0.0.1 or 0.0.0.0") from None
    family, kind, protocol, _, address = found[0]
    # The protocol has to be named: asyncio turns Nagle's algorithm off only on sockets that say TCP, and
    # with it on, a response whose head and body are two writes waits for a delayed acknowledgement (40 ms).
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise CtrError(_why_not(host, port, error)) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Where `listener` can be reached, such as `http://127.0.0.1:8000`."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; give another with --port, or --port 0 for a free one"
    if error.errno == errno.EACCES:
        return f"not allowed to listen on port {port}; give one from 1024 up with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine; try 127.0.0.1 or 0.0.0.0"
    return f"cannot listen on {host} port {port}: {error.strerror}; give another with --host and --port"


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the server without ending the process.

    uvicorn shuts down gracefully on either, then sends the signal once more to whoever handled it before.
    By default that would be a `KeyboardInterrupt`, or death by SIGTERM with a status that says failure.
    SIGHUP is for the terminal that a server may outlive, so it does nothing at all.
    """

    def ignore(_signal: int, _frame: FrameType | None) -> None:
        return None

    before = {number: signal.signal(number, ignore) for number in _HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
