"""`serve`: one process that answers prediction requests until it is told to stop."""

from __future__ import annotations

import errno
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from ctr.api.app import create_app
from ctr.api.connection import Bounded, H11Connection
from ctr.api.requests import UnknownFields
from ctr.errors import CtrError
from ctr.model import Model, load_model

if TYPE_CHECKING:
    from ctr.api.shared_windows import SharedWindows

KEEP_ALIVE_S = 75
"""An idle connection is closed after this. Longer than the pools of common clients and proxies keep one
(up to 60 s), so that they close first and no request meets a connection that is just being closed."""

DRAIN_TIMEOUT_S = 10
"""After a signal to stop, requests under way have this long to finish."""

MAX_CONNECTIONS = 1_000
OTHER_DESCRIPTORS = 64
"""Kept free for files, and for connections that were accepted and are not yet counted."""

BACKLOG = 2_048
"""Connections that the system keeps until they are accepted."""

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(
    model_dir: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    windows: str | None = None,
    unknown_fields: UnknownFields = "refuse",
) -> None:
    """Load the model in `model_dir` and answer requests on `host:port` until SIGINT or SIGTERM, then return.

    Port 0 takes a free one. When the model is ready to predict, one line on standard output says where it
    listens. Requests under way are finished before it returns; a second SIGINT does not wait for them.
    `windows` is the URL of a Redis that keeps what the model's windows know, for all servers with this URL.
    `unknown_fields`: see `create_app`.
    `ModelError` when the model cannot be loaded, `CtrError` when the address cannot be had, `StoreError` when
    Redis cannot be reached or has other windows.
    """
    shared = None
    if windows is None:
        model = load_model(model_dir)
    else:
        model, shared = _with_windows(windows, model_dir)
    listener = listen(host, port)
    failures: list[Exception] = []

    def on_warm(failure: Exception | None) -> None:
        if failure is None:
            sys.stdout.write(f"serving model {model.id} on {url_of(listener)}{_windows_line(shared)}\n")
            sys.stdout.flush()
        else:
            failures.append(failure)
            server.should_exit = True

    app = create_app(model, windows=shared, unknown_fields=unknown_fields, on_warm=on_warm)
    server = server_of(app, limit=connection_limit())
    with listener, _signals_end_quietly():
        server.run(sockets=[listener])
    if failures:
        raise failures[0]


def _with_windows(url: str, model_dir: Path) -> tuple[Model, SharedWindows]:
    """The model, and its windows in Redis."""
    from ctr.api.shared_windows import SharedWindows
    from ctr.ps import parse_redis_url

    redis = parse_redis_url(url)  # before a large model is loaded
    model = load_model(model_dir)
    if model.windows is None:
        raise CtrError(f"{model_dir}: the model has no windows to keep in Redis; leave --windows out")
    shared = SharedWindows(redis, model.spec, model.windows)
    return model.with_shared(shared), shared


def _windows_line(shared: SharedWindows | None) -> str:
    if shared is None:
        return ""
    return f", windows in {shared.url} ({'as the model has them' if shared.created else 'as they are there'})"


def server_of(app: FastAPI, **connection: Any) -> uvicorn.Server:
    """A server for `app`; `connection` are the keyword arguments of `Bounded`."""
    protocol: Any = partial(connection_class(), **connection)
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        backlog=1,
        log_level="error",  # not a line for every client that talks no HTTP
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
    )
    return _Server(config)


def connection_class() -> type[Bounded]:
    """The faster one where httptools is installed."""
    if find_spec("httptools") is None:
        return H11Connection
    from ctr.api.httptools_connection import HttpToolsConnection

    return HttpToolsConnection


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # asyncio accepts as many connections as its backlog says before it looks at any, which could be more
        # than there are descriptors. So it accepts one at a time; the system's own backlog is set afterwards.
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)


def connection_limit() -> int:
    """How many connections this process can have, after raising its limit of descriptors if it is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    else:
        soft = wanted
    return max(1, min(MAX_CONNECTIONS, soft - OTHER_DESCRIPTORS))


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket on `host:port`, port 0 for a free one. `CtrError` when it cannot be had."""
    if not 0 <= port <= 65_535:
        raise CtrError(f"port {port} does not exist; give one from 1 to 65535, or 0 for a free one")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CtrError(f"host {host!r} is not known here ({error}); try 127.0.0.1 or 0.0.0.0") from None
    family, kind, protocol, _, address = addresses[0]
    # The protocol has to be named: asyncio turns Nagle's algorithm off only on sockets that say TCP, and
    # with it on, a response whose head and body are two writes waits for a delayed acknowledgement (40 ms).
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
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
