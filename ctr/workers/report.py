"""`WorkerReport`: what a worker reports of its work; `PreparedUpdate`: what waits for the other ranks."""

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
from ctr.ps import BoardView, FilterCounts, JobBoard, Saturations

EARLIER = "earlier"
"""The name of the report of what was done before the job was resumed."""
_HEAD = struct.Struct("<qqq")  # of a `PreparedUpdate`: slots, bytes of each of the metrics
_RESULT = "result:"  # begins the name of a worker's report


@dataclass(slots=True)
class WorkerReport:
    """Add several up with `add`."""

    progressive: Metrics = field(default_factory=Metrics)
    later_passes: Metrics = field(default_factory=Metrics)
    examples: int = 0
    """That it has trained, in all passes; of a BSP job, some of them in vain, as another was faster."""
    timings: Timings = field(default_factory=Timings)
    counts: FilterCounts = field(default_factory=FilterCounts)
    admissions: AdmissionCounts = field(default_factory=AdmissionCounts)
    bytes_sent: int = 0
    """To the store, by pulls and pushes."""
    bytes_received: int = 0
    sent_again: int = 0
    """Partitions' shares of pushes that a failover had lost, and that were sent again."""
    troubles: int = 0
    """Requests that met a broken connection or a changing cluster, and were repeated."""
    saturated_z: int = 0
    """See `ctr.ps.Saturations`."""
    saturated_n: int = 0
    bad_rows: BadRows = field(default_factory=BadRows)

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
    """An update, and how well its rank has predicted from its first round to this one.

    Updates count once, whoever made them. So what goes with them does, too.
    """

    slots: Slots
    """uint32|uint64[u], sorted, unique."""
    increments: NDArray[np.int64]
    """int64[u], of packed accumulators."""
    evaluated: tuple[bytes, bytes]
    """Two `Metrics` as bytes: of the first pass, and of later ones."""

    @property
    def metrics(self) -> tuple[Metrics, Metrics]:
        """Of the first pass, and of later ones."""
        progressive, later_passes = self.evaluated
        return Metrics.from_bytes(progressive), Metrics.from_bytes(later_passes)

    def to_bytes(self) -> bytes:
        """As it is prepared."""
        head = _HEAD.pack(self.slots.size, *map(len, self.evaluated))
        numbers = self.increments.astype("<i8").tobytes() + self.slots.tobytes()
        return b"".join((head, numbers, *self.evaluated))

    @classmethod
    def from_bytes(cls, blob: bytes, bits: int) -> PreparedUpdate:
        """What `to_bytes` gave, of slots of `2**bits`."""
        count, length, _ = _HEAD.unpack_from(blob)
        # Copies: Numba compiles its kernels anew for arrays that cannot be written to.
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
    """What workers have reported of their work, and what goes with the ranks' updates, by name.

    All are `WorkerReport`s as bytes. `bits` is the model's.
    """
    reports = {name: blob for name, blob in board.reports().items() if name.startswith(_RESULT)}
    for number, rank in enumerate(view.ranks):
        blob = board.ranks.prepared(number, rank.pushed) or board.ranks.prepared(number, rank.prepared)
        if blob is not None:  # else it has not begun, or a failover has lost it
            evaluated = PreparedUpdate.from_bytes(blob, bits).metrics
            reports[f"rank:{number}"] = WorkerReport(*evaluated).to_bytes()
    return reports


def host_of(name: str) -> str | None:
    """The machine and process of the worker whose report has this name; None: it is of no worker."""
    if not name.startswith(_RESULT):
        return None
    machine, process, _ = name.removeprefix(_RESULT).rsplit("-", 2)
    return f"{machine}:{process}"


def is_of_work(name: str) -> bool:
    """Whether the report of this name is a `WorkerReport`: a worker's, or what was `EARLIER`."""
    return name == EARLIER or name.startswith(_RESULT)


def skipped_rows(reports: Mapping[str, bytes]) -> BadRows:
    """The bad rows that workers have reported, by name."""
    skipped = BadRows()
    for name, blob in reports.items():
        if is_of_work(name):
            skipped.merge(BadRows.from_json(orjson.loads(blob)["bad_rows"]))
    return skipped


def report_failure(board: JobBoard, name: str, error: CtrError) -> None:
    """End the job because of what happened to the worker of this name."""
    failure = {"kind": type(error).__name__, "message": str(error)}
    board.report(f"failure:{name}", orjson.dumps(failure))
    board.fail(str(error))


def host(pid: int | None = None) -> str:
    """This machine and process, or another of its processes, as the board names a worker."""
    return f"{socket.gethostname()}:{os.getpid() if pid is None else pid}"


def report_stall(board: JobBoard, host: str, seconds: float) -> None:
    """Report that a worker counts as dead, as it has made no progress for so long."""
    board.report(f"stalled:{host}", f"no progress for {seconds:.0f} s".encode())


def read_stalls(board: JobBoard, hosts: Collection[str]) -> list[str]:
    """The reports of those of these hosts that count as dead so."""
    stalls = board.reports([f"stalled:{host}" for host in hosts])
    return [f"{name.removeprefix('stalled:')}: {text.decode()}" for name, text in sorted(stalls.items())]


def read_failure(message: str, reports: Mapping[str, bytes]) -> CtrError:
    """The error that ended a job with this message, in the class that it had."""
    for name, blob in reports.items():
        if name.startswith("failure:") and (failure := orjson.loads(blob))["message"] == message:
            return _KINDS.get(failure["kind"], StoreError)(message)
    return StoreError(message)


def progress_report(examples: int, learners: Sequence[Learner], saturations: Saturations) -> bytes:
    """The little that is reported often: how far a worker is, how well it predicts, and what did not fit."""
    again = any(learner.later_passes.examples for learner in learners)
    latest = [learner.later_passes if again else learner.progressive for learner in learners]
    evaluated = sum(metrics.examples for metrics in latest)
    losses = sum(metrics.examples * metrics.logloss for metrics in latest if metrics.examples)
    progress: dict[str, Any] = {
        "examples": examples,
        "evaluated": evaluated,
        "logloss": losses / evaluated if evaluated else None,
        "later_pass": again,
        "totals": {name: sum(each.totals[name] for each in latest) for name in Metrics().totals},
        "saturations": asdict(saturations),
    }
    return orjson.dumps(progress)
