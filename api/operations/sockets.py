"""The sockets that a server listens on."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from ctr.errors import CtrError

BACKLOG = 2_048
"""Connections that the system holds until they are accepted."""


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket on `host:port`; port 0: a free one. Raises `CtrError`."""
    if not 0 <= port <= 65_535:
        raise CtrError(f"port {port} does not exist; give one from 1 to 65535, or 0 for a free one")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CtrError(f"host {host!r} is not known here ({error}); try 127.0.0.1 or 0.0.0.0") from None
    family, _, protocol, _, address = addresses[0]
    try:
        return _listening(family, protocol, address)
    except OSError as error:
        raise CtrError(_why_not(host, port, error)) from None


def listen_together(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` sockets as `listen` opens them, at one address; the system distributes connections among them.

    If processes accept from one socket, the first that wakes up may get all connections.
    """
    with listen(host, port) as free:  # fails if another server listens there, which the sockets below do not
        address = free.getsockname()
    listeners: list[socket.socket] = []
    try:
        for _ in range(count):
            listener = _listening(free.family, socket.IPPROTO_TCP, address, shared=True)
            listeners.append(listener)  # those opened before an error are closed
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise CtrError(_why_not(host, port, error)) from None
    return listeners


def _listening(family: int, protocol: int, address: Any, *, shared: bool = False) -> socket.socket:
    # The protocol has to be named: asyncio turns Nagle's algorithm off only on sockets that say TCP. With it,
    # a response whose head and body are two writes waits for a delayed acknowledgement (40 ms).
    listener = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def listen_unix(path: Path) -> socket.socket:
    """A listening Unix socket. Replaces a socket on which nobody listens any more. Raises CtrError."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as other, suppress(ConnectionRefusedError):
                other.connect(str(path))
                raise CtrError(f"{path}: another server listens there; give another path with --socket")
            path.unlink()
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CtrError(f"{path}: cannot listen there ({error}); give another path with --socket") from None
    except CtrError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket, *, secure: bool = False) -> str:
    """The URL of `listener`, such as `http://127.0.0.1:8000`."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http{'s' * secure}://" + (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; give another with --port, or --port 0 for a free one"
    if error.errno == errno.EACCES:
        return f"not allowed to listen on port {port}; give one from 1024 up with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine; try 127.0.0.1 or 0.0.0.0"
    return f"cannot listen on {host} port {port}: {error.strerror}; give another with --host and --port"
