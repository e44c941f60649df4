"""The sockets that a server listens on."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import select
import socket
import struct
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

from ctr.errors import CtrError

BACKLOG = 2_048
"""Connections that the system holds until they are accepted."""

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_DROP_NEW_CONNECTIONS = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # load the flags of the TCP header
        (0x45, 0, 1, 0x02),  # where SYN is set:
        (0x06, 0, 0, 0),  # drop the packet
        (0x06, 0, 0, 0xFFFF_FFFF),  # otherwise keep all of it
    )
)
"""A program of the Berkeley Packet Filter."""


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
        path.chmod(0o666)  # a proxy may run as another user
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CtrError(f"{path}: cannot listen there ({error}); give another path with --socket") from None
    except CtrError:
        listener.close()
        raise
    return listener


def let_no_more_in(listener: socket.socket) -> None:
    """Begin no further TCP connection. Those that have begun get into the listener's queue as before.

    The system resets what is in the queue of a listener that is closed, though its clients may have sent
    their requests. So nothing may come in between the last look at the queue and the end of the listener.
    On other systems than Linux, something may.
    """
    if listener.family != socket.AF_UNIX and sys.platform == "linux":
        code = ctypes.create_string_buffer(_DROP_NEW_CONNECTIONS)
        program = struct.pack("HL", len(_DROP_NEW_CONNECTIONS) // 8, ctypes.addressof(code))
        with suppress(OSError):  # a kernel without filters
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def let_in(listener: socket.socket) -> None:
    """Begin connections, also after the process that had this listener before has stopped by itself."""
    if listener.family != socket.AF_UNIX and sys.platform == "linux":
        with suppress(OSError):  # there is no filter
            listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def close(listener: socket.socket) -> None:
    """Close a listener, and remove a Unix socket's path, unless it is closed already."""
    if listener.fileno() != -1:
        if listener.family == socket.AF_UNIX:
            Path(listener.getsockname()).unlink(missing_ok=True)
        listener.close()


def has_input(connection: socket.socket) -> bool:
    """Whether something waits to be read from a connection, or to be accepted from a listener."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def unsent(connection: socket.socket) -> int:
    """Number of bytes written to a connection that have not arrived at the other side."""
    size = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(size, sys.byteorder)


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
