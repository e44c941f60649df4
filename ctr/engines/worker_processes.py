"""`WorkerProcesses`: the workers of a job that run on its own machine."""

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
    """The end of a pipe: when it is closed, or this process ends, the worker leaves."""
    said: IO[bytes]
    seen_dead: bool = False


class WorkerProcesses:
    """`count` processes that run `ctr worker` on a job; a single worker is a thread of this process instead.

    The processes get no Ctrl-C of the terminal, and end when this process does: each has for its standard
    input a pipe whose writing end is here.
    """

    def __init__(self, url: RedisUrl, job: str, count: int) -> None:
        self._stop = Event()
        self._thread: Thread | None = None
        self._failure: BaseException | None = None
        self._processes: list[_Process] = []
        if count == 1:
            # Python does not wait for it at its end: it may be one whose disk hangs.
            self._thread = Thread(target=self._run, args=(url, job), name="worker", daemon=True)
            self._thread.start()
            return
        words = ["worker", "--store", url.public, "--job", job, "--with-parent"]
        server, environment = fork_server(), {**os.environ, **url.credentials}
        try:
            for _ in range(count):
                said = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `close`)
                stopped, stop = os.pipe()
                try:
                    forked = server.fork(words, [stopped, said.fileno(), said.fileno()], environment)
                except BaseException:
                    os.close(stop)
                    raise
                finally:
                    os.close(stopped)
                self._processes.append(_Process(forked, stop, said))
        except BaseException:
            self.close()
            raise

    def pids(self) -> list[int]:
        """Of the processes that are alive."""
        return [each.forked.pid for each in self._processes if each.forked.poll() is None]

    @property
    def hosts(self) -> set[str]:
        """What the board calls them, dead or alive."""
        return {host(each.forked.pid) for each in self._processes} or {host()}

    def alive(self) -> bool:
        """Whether any worker is."""
        return bool(self.pids()) or (self._thread is not None and self._thread.is_alive())

    def newly_dead(self) -> list[DeadWorker]:
        """Those that ended badly since the last call."""
        dead = []
        for each in self._processes:
            code = each.forked.poll()
            if not each.seen_dead and code is not None:
                each.seen_dead = True
                if code != 0:
                    each.said.seek(0)
                    last = each.said.read().decode(errors="replace").strip().split("\n")[-1]
                    said = last or f"ended by signal {-code}"
                    dead.append(DeadWorker(host(each.forked.pid), said, killed=code < 0))
        return dead

    def failure(self) -> BaseException | None:
        """What ended the worker that is a thread."""
        return self._failure

    def close(self, *, at_once: bool = False) -> None:
        """Ask those that still run to leave, and wait for a while until they have ended, or not `at_once`."""
        self._stop.set()
        for each in self._processes:
            os.close(each.stop)
        deadline = monotonic() + (0 if at_once else _LONGEST_END_S)
        for each in self._processes:
            with suppress(subprocess.TimeoutExpired):
                each.forked.wait(max(deadline - monotonic(), 0))
            each.forked.kill()
        for each in self._processes:
            with suppress(subprocess.TimeoutExpired):  # one that waits for a dead disk cannot even be killed
                each.forked.wait(_LONGEST_KILL_S)
            each.said.close()
        if self._thread is not None:
            self._thread.join(max(deadline - monotonic(), 0))

    def _run(self, url: RedisUrl, job: str) -> None:
        try:
            take_part(url, job, stop=self._stop)
        except BaseException as error:  # noqa: BLE001  (raised by the coordinator)
            self._failure = error
