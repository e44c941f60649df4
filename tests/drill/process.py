"""`JobProcess`: one run of a job, as the command that leads it and perhaps a worker that it did not start."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

from ctr.errors import StoreError
from ctr.ps import JobBoard, parse_redis_url
from ctr.workers.description import JobDescription
from tests.ctr.distributed_jobs import CTR, State
from tests.drill.ledger import ledger_variables
from tests.drill.proof import StoreSums

ROOT = Path(__file__).parents[2]
_LEAVE_S = 20.0


@dataclass(frozen=True, slots=True)
class Order:
    """What the command is to train, and where."""

    job: JobDescription
    url: str
    checkpoint: Path
    checkpoint_s: float
    resume: bool
    lease_s: float
    outcome: Path
    """Where the `Outcome` goes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the command ended: with a message, or with all of the rest."""

    refusal: str | None = None
    sums: StoreSums | None = None
    state: State | None = None
    examples: int = 0
    checkpoints: int = 0
    dead_workers: tuple[str, ...] = ()


class JobProcess:
    """Started at once; everything that it writes is in `folder`, which is made."""

    def __init__(self, folder: Path, order: Order, *, pace_s: float, remote: bool) -> None:
        """A push of a worker takes at least `pace_s`."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.ledger = folder / "ledger"
        self.ledger.mkdir()
        self._order = order
        self._environment = {**os.environ, **ledger_variables(self.ledger, pace_s)}
        (folder / "order").write_bytes(pickle.dumps(order))
        self._processes = [
            self._start("command", sys.executable, "-m", "tests.drill.command", folder / "order")
        ]
        self.pid = self._processes[0].pid
        """Of the command."""
        self.remote: int | None = None
        """The process of the worker that the command did not start."""
        if remote:
            Thread(target=self._start_worker, daemon=True).start()

    def wait(self, seconds: float) -> int | None:
        """The exit code of the command; None when it does not end within so long, and then it is killed."""
        command, code = self._processes[0], None
        with suppress(subprocess.TimeoutExpired):
            code = command.wait(seconds)
        if code is None:
            command.send_signal(signal.SIGUSR1)  # where it is goes to its standard error
            sleep(1.0)
            command.kill()
            command.wait()
        return code

    def close(self) -> None:
        """Wait until the worker has left, too; who does not leave is killed."""
        deadline = monotonic() + _LEAVE_S
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - monotonic(), 0))
            process.kill()
            process.wait()

    def outcome(self) -> Outcome | None:
        """None when it died."""
        path = self._order.outcome
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def tracebacks(self) -> list[str]:
        """The last line of each that a process has printed."""
        tracebacks = []
        for path in sorted(self.folder.glob("*.log")):
            said = path.read_text(errors="replace")
            if "Traceback (most recent call last)" in said:
                tracebacks.append(f"{path.name}: {said.strip().splitlines()[-1]}")
        return tracebacks

    def _start_worker(self) -> None:
        """As soon as the job is there; never if that has ended before."""
        url = parse_redis_url(self._order.url)
        self._environment |= url.credentials
        while self._processes[0].poll() is None:
            with suppress(StoreError), closing(JobBoard(url, patience_s=2.0)) as board:
                if (job := board.job()) is not None and board.look().state == "running":
                    words = ("worker", "--store", url.public, "--job", job.id)
                    self._processes.append(self._start("worker", CTR, *words))
                    self.remote = self._processes[-1].pid
                    return
            sleep(0.1)

    def _start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                list(map(str, words)),
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
