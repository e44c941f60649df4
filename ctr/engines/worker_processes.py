"""`WorkerProcesses`: the workers of a job on its own machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import IO

from ctr.engines.engine import DeadWorker
from ctr.engines.forking import Forked, fork_server
from ctr.ps import RedisUrl
from ctr.workers import host, take_part

_LONGEST_END_S = 15.0
_LONGEST_KILL_S = 2.0


@dataclass(slots=True)
class _Process:
    """One `ctr worker`."""

    forked: Forked
    stop: int
    """The end of a pipe; the worker leaves when it is closed or this process ends."""
    output: IO[bytes]
    is_reported: bool = False
    """Whether its end was returned by `newly_dead`."""


class WorkerProcesses:
    """`count` processes that run `ctr worker` for a job; a single worker is a thread of this process.

    The processes do not receive the terminal's Ctrl-C, and end with this process: their standard input is a
    pipe from it.
    """

    def __init__(self, url: RedisUrl, job: str, count: int) -> None:
        self._stop = Event()
        self._thread: Thread | None = None
        self._failure: BaseException | None = None
        self._processes: list[_Process] = []
        if count == 1:
            # A daemon, so that Python does not wait for a worker whose disk hangs.
            self._thread = Thread(target=self._run, args=(url, job), name="worker", daemon=True)
            self._thread.start()
            return
        words = ["worker", "--store", url.public, "--job", job, "--with-parent"]
        server, environment = fork_server(), {**os.environ, **url.credentials}
        try:
            for _ in range(count):
                output = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `close`)
                stopped, stop = os.pipe()
                try:
                    forked = server.fork(words, [stopped, output.fileno(), output.fileno()], environment)
                except BaseException:
                    os.close(stop)
                    raise
                finally:
                    os.close(stopped)
                self._processes.append(_Process(forked, stop, output))
        except BaseException:
            self.close()
            raise

    def pids(self) -> list[int]:
        """The ids of live processes."""
        return [process.forked.pid for process in self._processes if process.forked.poll() is None]

    @property
    def hosts(self) -> set[str]:
        """See `WorkerGroup`."""
        return {host(process.forked.pid) for process in self._processes} or {host()}

    def alive(self) -> bool:
        """See `WorkerGroup`."""
        return bool(self.pids()) or (self._thread is not None and self._thread.is_alive())

    def newly_dead(self) -> list[DeadWorker]:
        """See `WorkerGroup`."""
        dead = []
        for process in self._processes:
            code = process.forked.poll()
            if code is None or process.is_reported:
                continue
            process.is_reported = True
            if code != 0:
                process.output.seek(0)
                last_line = process.output.read().decode(errors="replace").strip().split("\n")[-1]
                last_line = last_line or f"ended by signal {-code}"
                dead.append(DeadWorker(host(process.forked.pid), last_line, killed=code < 0))
        return dead

    def failure(self) -> BaseException | None:
        """See `WorkerGroup`: the error of a worker that is a thread."""
        return self._failure

    def close(self, *, at_once: bool = False) -> None:
        """See `WorkerGroup`."""
        self._stop.set()
        for process in self._processes:
            os.close(process.stop)
        deadline = monotonic() + (0 if at_once else _LONGEST_END_S)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.forked.wait(max(deadline - monotonic(), 0))
            process.forked.kill()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):  # a process that waits for a dead disk cannot be killed
                process.forked.wait(_LONGEST_KILL_S)
            process.output.close()
        if self._thread is not None:
            self._thread.join(max(deadline - monotonic(), 0))

    def _run(self, url: RedisUrl, job: str) -> None:
        try:
            take_part(url, job, stop=self._stop)
        except BaseException as error:  # noqa: BLE001  (raised by the coordinator)
            self._failure = error
