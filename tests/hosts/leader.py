"""`python -m tests.hosts.leader COMMANDS WORD...` is `ctr WORD...`, whose workers run on other hosts.

COMMANDS is a list, as JSON, of the words that each begins with: see `Network.enter`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ctr.engines
from ctr.cli.app import start
from ctr.engines import DeadWorker, WorkerGroup
from ctr.ps import RedisUrl

CTR = Path(sys.executable).with_name("ctr")
_END_S = 10.0
_LOOP = "until {worker}; do kill -0 {leader} || exit; sleep 0.3; done"
"""Until the worker ends well, or this process is no more."""


class HostWorkers:
    """Workers that are started again when they fail, as a supervisor would do it."""

    hosts: frozenset[str] = frozenset()

    def __init__(self, enters: Sequence[Sequence[str]], url: RedisUrl, job: str) -> None:
        worker = [str(CTR), "worker", "--store", url.public, "--job", job]
        self._processes = [
            subprocess.Popen(
                ["sh", "-c", _LOOP.format(worker=shlex.join([*enter, *worker]), leader=os.getpid())],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | url.credentials,
            )
            for enter in enters
        ]

    def alive(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def newly_dead(self) -> list[DeadWorker]:
        return []

    def failure(self) -> BaseException | None:
        return None

    def close(self, *, at_once: bool = False) -> None:
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0 if at_once else _END_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class HostEngine:
    """Starts one worker on each of some hosts."""

    tasks_at_once = 1

    def __init__(self, enters: Sequence[Sequence[str]]) -> None:
        self._enters = enters

    def map(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], on_progress: Callable[[float], None]
    ) -> list[Any]:
        return list(map(function, tasks))

    def prepare(self, workers: int) -> None:
        pass

    def start_workers(self, url: RedisUrl, job: str, count: int) -> WorkerGroup:
        return HostWorkers(self._enters[:count], url, job)

    def close(self) -> None:
        pass


def main(commands: str, *words: str) -> None:
    """Run the command line."""
    ctr.engines.open_engine = lambda *_: HostEngine(json.loads(commands))
    sys.argv = ["ctr", *words]
    start()


if __name__ == "__main__":
    main(*sys.argv[1:])
