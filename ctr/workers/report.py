"""`WorkerReport`: a worker's report on its work; `PreparedUpdate`: an update that waits for other ranks."""

from __future__ import annotations

import base64
import os
import socket
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ctr.errors import CtrError, DataError, ModelError, SpecError, StoreError
from ctr.features import BadRows, Slots, slot_dtype
from ctr.learn import AdmissionCounts, Learner, Timings
from ctr.metrics import Metrics
from ctr.ps import BoardView, FilterCounts, JobBoard, LostPushesError, RedisUrl, Saturations

EARLIER = "earlier"
"""The name of the report on the work before the job was resumed."""
_HEAD = struct.Struct("<qqq")  # of a `PreparedUpdate`: slots, bytes of each of the metrics
_RESULT = "result:"  # begins the name of a worker's report


@dataclass(slots=True)
class WorkerReport:
    """What a worker has done; `add` sums several."""

    progressive: Metrics = field(default_factory=Metrics)
    later_passes: Metrics = field(default_factory=Metrics)
    examples: int = 0
    """Examples trained in all passes; in a BSP job, some in vain because another worker was faster."""
    timings: Timings = field(default_factory=Timings)
    counts: FilterCounts = field(default_factory=FilterCounts)
    admissions: AdmissionCounts = field(default_factory=AdmissionCounts)
    bytes_sent: int = 0
    """To the store, in pulls and pushes."""
    bytes_received: int = 0
    sent_again: int = 0
    """Parts of pushes, by partition, that were sent again after a failover had lost them."""
    troubles: int = 0
    """Requests that were repeated after a broken connection or a change of the cluster."""
    saturated_z: int = 0
    """See `ctr.ps.Saturations`."""
    saturated_n: int = 0
    bad_rows: BadRows = field(default_factory=BadRows)

    @classmethod
    def of_learner(cls, learner: Learner, examples: int, timings: Timings, bad_rows: BadRows) -> WorkerReport:
        """The report of a worker with one learner."""
        return cls(
            progressive=learner.progressive,
            later_passes=learner.later_passes,
            examples=examples,
            timings=timings,
            admissions=learner.admissions,
            bad_rows=bad_rows,
        )

    @property
    def saturations(self) -> Saturations:
        return Saturations(self.saturated_z, self.saturated_n)

    def add(self, other: WorkerReport) -> None:
        self.progressive.merge(other.progressive)
        self.later_passes.merge(other.later_passes)
        self.timings.add(other.timings)
        self.counts.add(other.counts)
        self.admissions.add(other.admissions)
        self.bad_rows.merge(other.bad_rows)
        for name in _PLAIN:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def to_bytes(self) -> bytes:
        return orjson.dumps(
            {
                "progressive": base64.b64encode(self.progressive.to_bytes()).decode(),
                "later_passes": base64.b64encode(self.later_passes.to_bytes()).decode(),
                "timings": asdict(self.timings),
                "counts": asdict(self.counts),
                "admissions": asdict(self.admissions),
                "bad_rows": self.bad_rows.to_json(),
                **{name: getattr(self, name) for name in _PLAIN},
            }
        )

    @classmethod
    def from_bytes(cls, text: bytes) -> WorkerReport:
        entries = orjson.loads(text)
        return cls(
            Metrics.from_bytes(base64.b64decode(entries["progressive"])),
            Metrics.from_bytes(base64.b64decode(entries["later_passes"])),
            timings=Timings(**entries["timings"]),
            counts=FilterCounts(**entries["counts"]),
            admissions=AdmissionCounts(**entries["admissions"]),
            bad_rows=BadRows.from_json(entries["bad_rows"]),
            **{name: entries[name] for name in _PLAIN},
        )


@dataclass(frozen=True, slots=True)
class PreparedUpdate:
    """An update, and the metrics of its rank from the first round to this one.

    An update counts once, whichever worker made it, and so do the metrics that belong to it.
    """

    slots: Slots
    """uint32|uint64[u], sorted, unique."""
    increments: NDArray[np.int64]
    """int64[u], for packed accumulators."""
    evaluated: tuple[bytes, bytes]
    """Two `Metrics` as bytes: of the first pass and of later ones."""

    @property
    def metrics(self) -> tuple[Metrics, Metrics]:
        """The metrics of the first pass and of later ones."""
        progressive, later_passes = self.evaluated
        return Metrics.from_bytes(progressive), Metrics.from_bytes(later_passes)

    def to_bytes(self) -> bytes:
        """The update as it is written to the board."""
        head = _HEAD.pack(self.slots.size, *map(len, self.evaluated))
        numbers = self.increments.astype("<i8").tobytes() + self.slots.tobytes()
        return b"".join((head, numbers, *self.evaluated))

    @classmethod
    def from_bytes(cls, blob: bytes, bits: int) -> PreparedUpdate:
        """Parse the result of `to_bytes` for a model of `2**bits` slots."""
        count, length, _ = _HEAD.unpack_from(blob)
        # Copies, as Numba compiles its kernels again for read-only arrays.
        increments = np.frombuffer(blob, "<i8", count, _HEAD.size).astype(np.int64)
        start = _HEAD.size + increments.nbytes
        slots: Slots = np.frombuffer(blob, slot_dtype(bits), count, start).copy()
        start += slots.nbytes
        return cls(slots, increments, (blob[start : start + length], blob[start + length :]))


_PLAIN = tuple(each.name for each in fields(WorkerReport) if each.default == 0)
_KINDS: dict[str, type[CtrError]] = {
    each.__name__: each for each in (SpecError, DataError, ModelError, StoreError)
}


def collect(board: JobBoard, view: BoardView, bits: int) -> dict[str, bytes]:
    """By name, the workers' reports and the metrics of the ranks' updates, all as `WorkerReport`s in bytes.

    `bits`: of the model.
    """
    reports = {name: blob for name, blob in board.reports().items() if name.startswith(_RESULT)}
    for number, rank in enumerate(view.ranks):
        blob = board.ranks.prepared(number, rank.pushed) or board.ranks.prepared(number, rank.prepared)
        if blob is not None:  # else it has not begun, or a failover has lost it
            metrics = PreparedUpdate.from_bytes(blob, bits).metrics
            reports[f"rank:{number}"] = WorkerReport(*metrics).to_bytes()
    return reports


def host_of(name: str) -> str | None:
    """The machine and process of the worker whose report has this name; None for other reports."""
    if not name.startswith(_RESULT):
        return None
    machine, process, _ = name.removeprefix(_RESULT).rsplit("-", 2)
    return f"{machine}:{process}"


def is_of_work(name: str) -> bool:
    """Whether the report of this name is a `WorkerReport`: of a worker, or `EARLIER`."""
    return name == EARLIER or name.startswith(_RESULT)


def skipped_rows(reports: Mapping[str, bytes]) -> BadRows:
    """The bad rows in the reports of workers."""
    skipped = BadRows()
    for name, blob in reports.items():
        if is_of_work(name):
            skipped.merge(BadRows.from_json(orjson.loads(blob)["bad_rows"]))
    return skipped


def report_failure(board: JobBoard, name: str, error: CtrError) -> None:
    """End the job because of an error of the worker of this name."""
    failure = {"kind": type(error).__name__, "message": str(error)}
    board.report(f"failure:{name}", orjson.dumps(failure))
    board.fail(str(error))


def host(pid: int | None = None) -> str:
    """The board's name for a worker in this process, or in another process of this machine."""
    return f"{socket.gethostname()}:{os.getpid() if pid is None else pid}"


def report_stall(board: JobBoard, host: str, seconds: float) -> None:
    """Report that a worker counts as dead because it made no progress for this long."""
    board.report(f"stalled:{host}", f"no progress for {seconds:.0f} s".encode())


def read_stalls(board: JobBoard, hosts: Collection[str]) -> list[str]:
    """The reports of those hosts that count as dead for lack of progress."""
    stalls = board.reports([f"stalled:{host}" for host in hosts])
    return [f"{name.removeprefix('stalled:')}: {text.decode()}" for name, text in sorted(stalls.items())]


def read_failure(url: RedisUrl, message: str, reports: Mapping[str, bytes]) -> CtrError:
    """The error that ended a job with this message, in its original class; `url`: of the job's store."""
    for name, blob in reports.items():
        if name.startswith("failure:") and (failure := orjson.loads(blob))["message"] == message:
            if failure["kind"] == LostPushesError.__name__:
                return LostPushesError(url)  # names settings as this process does
            return _KINDS.get(failure["kind"], StoreError)(message)
    return StoreError(message)


def progress_report(examples: int, learners: Sequence[Learner], saturations: Saturations) -> bytes:
    """The short report of a heartbeat: a worker's progress, its metrics, and saturated numbers."""
    is_later_pass = any(learner.later_passes.examples for learner in learners)
    latest = [learner.later_passes if is_later_pass else learner.progressive for learner in learners]
    evaluated = sum(metrics.examples for metrics in latest)
    losses = sum(metrics.examples * metrics.logloss for metrics in latest if metrics.examples)
    progress: dict[str, Any] = {
        "examples": examples,
        "evaluated": evaluated,
        "logloss": losses / evaluated if evaluated else None,
        "later_pass": is_later_pass,
        "totals": {name: sum(metrics.totals[name] for metrics in latest) for name in Metrics().totals},
        "saturations": asdict(saturations),
    }
    return orjson.dumps(progress)
