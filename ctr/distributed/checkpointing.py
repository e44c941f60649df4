"""`CheckpointTaker`: writes the checkpoints of a running job, at intervals and at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import perf_counter

import orjson

from ctr.checkpoint import draft_checkpoint
from ctr.distributed.pause import JobPause
from ctr.distributed.position import JobPosition
from ctr.errors import DataError, ModelError
from ctr.ps import RedisStore
from ctr.ps.wire import watermark_field
from ctr.workers import EARLIER, JobDescription, WorkerReport, collect


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Where checkpoints go, and how often."""

    folder: Path
    every_s: float = 60.0


class CheckpointTaker:
    """Writes checkpoints to one folder, on a thread of its own; without settings, it does nothing."""

    def __init__(
        self,
        settings: CheckpointSettings | None,
        job: JobDescription,
        job_id: str,
        store: RedisStore,
        pause: JobPause,
        earlier: WorkerReport,
    ) -> None:
        """`earlier`: the report of workers from before a resumption."""
        self.count = 0
        self.failures: list[str] = []
        """Why checkpoints could not be written; the job continues without them."""
        self.problem: BaseException | None = None
        """Any other error of the thread."""
        self._settings = settings
        self._job = job
        self._job_id = job_id
        self._store = store
        self._board = pause.board
        self._pause = pause
        self._earlier = earlier.to_bytes()
        self._thread: Thread | None = None
        self._last = perf_counter()
        # Other jobs need no pause: a resumed job recognises later pushes by their tokens.
        self._exact = bool(job.ranks) or (job.workers == 1 and job.stream is None)

    def begin(self) -> None:
        """Start the interval to the first checkpoint."""
        self._last = perf_counter()

    def take_if_due(self, seconds: float, anyone: Callable[[], bool]) -> None:
        """Begin a checkpoint, `seconds` into the job; see `JobPause.close` for `anyone`."""
        if self._settings is None or (self._thread is not None and self._thread.is_alive()):
            return
        if perf_counter() - self._last > self._settings.every_s:
            self.begin()
            self._thread = Thread(target=self._take, args=(seconds, anyone), name="checkpoint", daemon=True)
            self._thread.start()

    def take_last(self, seconds: float, *, at_rest: bool) -> None:
        """Write the checkpoint of a job that was stopped, which needs to be `at_rest`."""
        if self._settings is not None and at_rest:
            self._write(seconds)
        elif self._settings is not None:
            self._fail(f"{self._settings.folder}: workers left within a round; an earlier checkpoint stays.")

    def join(self, longest_s: float | None = None) -> None:
        """Wait until the thread has ended, at most `longest_s`."""
        if self._thread is not None:
            self._thread.join(longest_s)

    def _take(self, seconds: float, anyone: Callable[[], bool]) -> None:
        """Write a checkpoint; training goes on unless the store must not change while it is read."""
        try:
            self._write(seconds, anyone if self._exact else None)
        except BaseException as error:  # noqa: BLE001  (the coordinator raises it)
            self.problem = error

    def _write(self, seconds: float, anyone: Callable[[], bool] | None = None) -> None:
        """Write a checkpoint if anything was learnt; with `anyone`, workers pause while the store is read."""
        try:
            with ExitStack() as draft:
                try:
                    if anyone is not None and not self._pause.close(anyone):
                        return
                    commit = self._draft(draft, seconds)
                finally:
                    if anyone is not None:
                        self._pause.open()
                if commit is not None:
                    commit()
                    self.count += 1
        except (DataError, ModelError) as error:  # the disk's
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        self.failures.append(reason)
        sys.stderr.write(f"\nno checkpoint was written: {reason}\n")

    def _draft(self, draft: ExitStack, seconds: float) -> Callable[[], None] | None:
        """Draft a checkpoint of the store; return what commits it, or None if nothing was learnt yet."""
        assert self._settings is not None
        view = self._board.look()  # before the store is read
        position = JobPosition.of(view)
        if not any(position.examples(self._job.plan())):
            return None
        watermarks = position.watermarks(self._job.plan())
        return draft.enter_context(
            draft_checkpoint(
                self._settings.folder,
                self._store,
                job=orjson.loads(self._job.to_bytes()),
                position={"job": self._job_id, "seconds": seconds, **position.to_json()},
                reports={EARLIER: self._earlier, **collect(self._board, view, self._store.bits)},
                pushed={
                    watermark_field(self._job_id, shard).decode(): last for shard, last in watermarks.items()
                },
                # Raises if the job was resumed elsewhere while this process was frozen.
                confirm=lambda: self._board.look(shards=False),
            )
        )
