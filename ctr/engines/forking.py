"""`fork_server`: a process that has loaded what every worker needs, and forks itself for each of them.

To import Numba and to load the first kernel takes a processor two seconds; a fork takes it none, and shares
the memory. Only a process with a single thread can be forked safely, which one at work seldom is. So the
server, `ctr workers`, does nothing else.
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
_LONGEST = 1 << 16  # bytes read at a time


class Forked:
    """A `ctr` command in a process of its own, with the methods of `subprocess.Popen` that it needs."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """Its exit code, or less than zero for the signal that ended it; None as long as it is alive."""
        self._server = server

    def poll(self) -> int | None:
        """Look whether it has ended: its `returncode`."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            left = 1.0 if deadline is None else max(deadline - monotonic(), 0)
            code = self._look(min(left, 0.05))  # others may wait for the same server
            if code is not None:
                return code
            if left == 0:
                raise subprocess.TimeoutExpired("ctr", timeout or 0)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.code_of(self.pid, timeout_s)
        return self.returncode


class ForkServer:
    """What forks. Thread-safe. It ends when this process does; what was forked goes on."""

    def __init__(
        self, line: socket.socket, popen: subprocess.Popen[bytes] | None, said: IO[bytes] | None
    ) -> None:
        """`line` leads to the server; `said` is what it says when it cannot start."""
        self._line = line
        self._popen = popen
        self._said = said
        self._lock = Lock()
        self._answers = b""
        self._forked: int | None = None
        self._codes: dict[int, int] = {}
        self._over = False

    @classmethod
    def start(cls) -> ForkServer:
        """Start it; it takes a while until it can fork."""
        ours, theirs = socket.socketpair()
        said = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the server is)
        # Like this process, it imports what lies in the current folder only if that is on its path.
        safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
        with theirs:
            popen = subprocess.Popen(
                [sys.executable, *safe, "-m", "ctr", "workers", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=[theirs.fileno()],
                process_group=0,
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},  # it must have one thread only
            )
        return cls(ours, popen, said)

    def fork(
        self,
        words: Sequence[str],
        files: Sequence[int],
        environment: Mapping[str, str],
        folder: str | os.PathLike[str] = ".",
    ) -> Forked:
        """Run `ctr` with these words and environment variables, in this folder.

        `files` are descriptors of its standard input, output and error. Raises CtrError when it cannot start.
        """
        request = {"words": [*words], "environment": {**environment}, "folder": os.path.abspath(folder)}
        data = json.dumps(request).encode() + b"\n"
        with self._lock:
            self._forked = None
            with suppress(OSError):  # the server is gone: `_hear` tells
                sent = socket.send_fds(self._line, [data], list(files))
                self._line.sendall(data[sent:])
            while self._forked is None:
                if not self._hear(None):
                    raise CtrError(f"no worker process could be started: {self._last_words()}.")
            return Forked(self, self._forked)

    def code_of(self, pid: int, timeout_s: float) -> int | None:
        """How a process has ended, if it does within this time; `-SIGKILL` if nobody is left who knows."""
        with self._lock:
            if pid not in self._codes and not self._hear(timeout_s):
                with suppress(ProcessLookupError):
                    os.kill(pid, 0)
                    return None
                self._codes[pid] = -signal.SIGKILL
            return self._codes.pop(pid, None)

    @property
    def over(self) -> bool:
        """Whether it has ended, so that another one is needed."""
        with self._lock:
            return not self._hear(0)

    def close(self) -> None:
        with self._lock:
            self._over = True
            self._line.close()
            if self._popen is not None:
                self._popen.kill()
                self._popen.wait()
            if self._said is not None:
                self._said.close()

    def _last_words(self) -> str:
        said = b""
        if self._said is not None:
            self._said.seek(0)
            said = self._said.read()
        return said.decode(errors="replace").strip().rpartition("\n")[2] or "what starts them has ended"

    def _hear(self, timeout_s: float | None) -> bool:
        """Read what it has to say, waiting for the first of it; False when it has ended."""
        if not self._over and select.select([self._line], [], [], timeout_s)[0]:
            with suppress(ConnectionError):
                received = self._line.recv(_LONGEST)
                self._over = not received
                *whole, self._answers = (self._answers + received).split(b"\n")
                for pid, *code in (tuple(map(int, line.split())) for line in whole):
                    if code:
                        self._codes[pid] = code[0]
                    else:
                        self._forked = pid
        return not self._over


_server: ForkServer | None = None
_starting = Lock()


def fork_server() -> ForkServer:
    """The one of this process, started when it is first asked for."""
    global _server  # noqa: PLW0603
    with _starting:
        if _server is None or _server.over:
            _server = ForkServer.start()
            atexit.register(_server.close)
        return _server


def serve(line: socket.socket) -> list[str] | None:
    """Fork for every request that comes over `line`; None when its other end is closed.

    Returns in each fork, too, with the words of its command, and everything as that expects it.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # they are for whoever asks
    gc.freeze()  # so that no fork needs memory of its own for what was loaded
    return _Server(line).run()


class _Server:
    """Whom a server forks for, and what it has forked."""

    def __init__(self, line: socket.socket) -> None:
        self._first = line
        self._lines = [line]
        """To the process that has started it, and to those forked, which may ask for more."""
        self._asked: dict[int, socket.socket] = {}
        """By live process: who asked for it."""
        self._wake, self._woken = os.pipe()
        for end in (self._wake, self._woken):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)

    def run(self) -> list[str] | None:
        while True:
            lines = {line.fileno(): line for line in self._lines}
            ready, _, _ = select.select([self._wake, *lines], [], [])
            for file in ready:
                line = lines.get(file)
                if line is None:
                    os.read(self._wake, _LONGEST)
                    self._tell_codes()
                else:
                    request, files = _receive(line)
                    if request is not None:
                        words = self._fork(line, request, files)
                        if words is not None:
                            return words
                    elif line is self._first:
                        return None
                    else:
                        self._lines.remove(line)
                        line.close()

    def _fork(self, line: socket.socket, request: dict[str, Any], files: list[int]) -> list[str] | None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for each in (*self._lines, ours):
                each.close()
            for end in (self._wake, self._woken):
                os.close(end)
            return _become(request, files, theirs)
        theirs.close()
        for file in files:
            os.close(file)
        self._lines.append(ours)
        self._asked[pid] = line
        _tell(line, b"%d\n" % pid)
        return None

    def _tell_codes(self) -> None:
        for pid, line in list(self._asked.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._asked[pid]
                _tell(line, b"%d %d\n" % (pid, os.waitstatus_to_exitcode(status)))


def _receive(line: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A request and its files; None at the end."""
    try:
        data, files, _, _ = socket.recv_fds(line, _LONGEST, 3)
        while data and not data.endswith(b"\n"):
            more = line.recv(_LONGEST)
            data = data + more if more else b""
    except ConnectionError:
        data, files = b"", []
    return (json.loads(data) if data else None), files


def _tell(line: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # whoever asked may be gone
        line.sendall(data)


def _become(request: dict[str, Any], files: list[int], line: socket.socket) -> list[str]:
    """Make a fresh fork what a command is that was just started; its words."""
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
    tempfile.tempdir = None  # as the environment has it
    random.seed()
    _server = ForkServer(line, None, None)
    return list(request["words"])
