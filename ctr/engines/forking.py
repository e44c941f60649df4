"""`fork_server`: a process that has loaded what every worker needs, and forks itself for each worker.

Importing Numba and loading the first kernel takes two seconds of a processor; a fork takes none, and shares
the memory. Only a process with a single thread can be forked safely, and working processes have several. So
the server, `ctr workers`, does nothing but fork.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import IO, Any

from ctr.errors import CtrError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_READ_BYTES = 1 << 16  # at a time
PROGRAM = "ctr"
"""The module that runs a server; that of tests loads more."""


class Forked:
    """A `ctr` command in a forked process, with some methods of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """Its exit code; negative: the signal that ended it; None while it is alive."""
        self._server = server

    def poll(self) -> int | None:
        """Its `returncode`, if it has ended."""
        return self._poll(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended. Raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            remaining = 1.0 if deadline is None else max(deadline - monotonic(), 0)
            code = self._poll(min(remaining, 0.05))  # others may wait for the same server
            if code is not None:
                return code
            if remaining == 0:
                raise subprocess.TimeoutExpired("ctr", timeout or 0)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _poll(self, timeout_s: float) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.code_of(self.pid, timeout_s)
        return self.returncode


class ForkServer:
    """A fork server. Thread-safe. It ends with this process; forked processes go on."""

    def __init__(
        self, connection: socket.socket, popen: subprocess.Popen[bytes] | None, errors: IO[bytes] | None
    ) -> None:
        """`connection`: to the server; `errors`: its standard error."""
        self._connection = connection
        self._popen = popen
        self._errors = errors
        self._lock = Lock()
        self._unparsed = b""
        self._forked_pid: int | None = None
        self._codes: dict[int, int] = {}
        self._has_ended = False

    @classmethod
    def start(cls) -> ForkServer:
        """Start a server; it takes a while until it can fork."""
        ours, theirs = socket.socketpair()
        errors = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the server is)
        # It imports modules of the current folder only if this process does.
        safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
        with theirs:
            popen = subprocess.Popen(
                [sys.executable, *safe, "-m", PROGRAM, "workers", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                process_group=0,
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},  # it must have a single thread
            )
        return cls(ours, popen, errors)

    def fork(
        self,
        words: Sequence[str],
        files: Sequence[int],
        environment: Mapping[str, str],
        folder: str | os.PathLike[str] = ".",
    ) -> Forked:
        """Run `ctr` with these arguments and environment variables in this folder.

        `files`: descriptors of its standard input, output and error. Raises CtrError if it cannot start.
        """
        request = {"words": [*words], "environment": {**environment}, "folder": os.path.abspath(folder)}
        data = json.dumps(request).encode() + b"\n"
        with self._lock:
            self._forked_pid = None
            with suppress(OSError):  # `_receive` notices that the server has ended
                sent = socket.send_fds(self._connection, [data], list(files))
                self._connection.sendall(data[sent:])
            while self._forked_pid is None:
                if not self._receive(None):
                    raise CtrError(f"no worker process could be started: {self._last_error()}.")
            return Forked(self, self._forked_pid)

    def code_of(self, pid: int, timeout_s: float) -> int | None:
        """The exit code of a process, if it ends within this time; `-SIGKILL` if it is unknown."""
        with self._lock:
            if pid not in self._codes and not self._receive(timeout_s):
                with suppress(ProcessLookupError):
                    os.kill(pid, 0)
                    return None
                self._codes[pid] = -signal.SIGKILL
            return self._codes.pop(pid, None)

    @property
    def has_ended(self) -> bool:
        """Whether the server has ended, so that another is needed."""
        with self._lock:
            return not self._receive(0)

    def close(self) -> None:
        with self._lock:
            self._has_ended = True
            self._connection.close()
            if self._popen is not None:
                self._popen.kill()
                self._popen.wait()
            if self._errors is not None:
                self._errors.close()

    def _last_error(self) -> str:
        errors = b""
        if self._errors is not None:
            self._errors.seek(0)
            errors = self._errors.read()
        return errors.decode(errors="replace").strip().rpartition("\n")[2] or "the fork server has ended"

    def _receive(self, timeout_s: float | None) -> bool:
        """Receive messages, waiting for the first; False if the server has ended."""
        if not self._has_ended and select.select([self._connection], [], [], timeout_s)[0]:
            with suppress(ConnectionError):
                received = self._connection.recv(_READ_BYTES)
                self._has_ended = not received
                *lines, self._unparsed = (self._unparsed + received).split(b"\n")
                for pid, *code in (tuple(map(int, line.split())) for line in lines):
                    if code:
                        self._codes[pid] = code[0]
                    else:
                        self._forked_pid = pid
        return not self._has_ended


_server: ForkServer | None = None
_starting = Lock()


def fork_server() -> ForkServer:
    """The fork server of this process, started on first use."""
    global _server  # noqa: PLW0603
    with _starting:
        if _server is None or _server.has_ended:
            _server = ForkServer.start()
            atexit.register(_server.close)
        return _server


def serve(connection: socket.socket) -> list[str] | None:
    """Fork for every request from `connection`; returns None when its other end is closed.

    Also returns in each fork, with the arguments of its command, in the state that the command expects.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # they are meant for the client
    gc.freeze()  # so that forks share the memory of everything loaded
    return _Server(connection).run()


class _Server:
    """The clients of a fork server, and the processes it has forked."""

    def __init__(self, connection: socket.socket) -> None:
        self._parent = connection
        self._connections = [connection]
        """To the process that has started the server, and to forked ones, which may ask for more forks."""
        self._clients: dict[int, socket.socket] = {}
        """By live process: the connection of the client that asked for it."""
        self._wake_reader, self._wake_writer = os.pipe()
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)

    def run(self) -> list[str] | None:
        while True:
            connections = {connection.fileno(): connection for connection in self._connections}
            ready, _, _ = select.select([self._wake_reader, *connections], [], [])
            for file in ready:
                connection = connections.get(file)
                if connection is None:
                    os.read(self._wake_reader, _READ_BYTES)
                    self._send_codes()
                    continue
                request, files = _receive(connection)
                if request is not None:
                    words = self._fork(connection, request, files)
                    if words is not None:
                        return words
                elif connection is self._parent:
                    return None
                else:
                    self._connections.remove(connection)
                    connection.close()

    def _fork(self, connection: socket.socket, request: dict[str, Any], files: list[int]) -> list[str] | None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for inherited in (*self._connections, ours):
                inherited.close()
            for end in (self._wake_reader, self._wake_writer):
                os.close(end)
            return _become(request, files, theirs)
        theirs.close()
        for file in files:
            os.close(file)
        self._connections.append(ours)
        self._clients[pid] = connection
        _send(connection, b"%d\n" % pid)
        return None

    def _send_codes(self) -> None:
        for pid, connection in list(self._clients.items()):
            has_ended, status = os.waitpid(pid, os.WNOHANG)
            if has_ended:
                del self._clients[pid]
                _send(connection, b"%d %d\n" % (pid, os.waitstatus_to_exitcode(status)))


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A request and its files; None at the end."""
    try:
        data, files, _, _ = socket.recv_fds(connection, _READ_BYTES, 3)
        while data and not data.endswith(b"\n"):
            more = connection.recv(_READ_BYTES)
            data = data + more if more else b""
    except ConnectionError:
        data, files = b"", []
    return (json.loads(data) if data else None), files


def _send(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the client may have ended
        connection.sendall(data)


def _become(request: dict[str, Any], files: list[int], connection: socket.socket) -> list[str]:
    """Put a new fork into the state of a command that was just started; returns its arguments."""
    global _server  # noqa: PLW0603
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.setpgid(0, 0)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # the environment may name another
    random.seed()
    _server = ForkServer(connection, None, None)
    return list(request["words"])
