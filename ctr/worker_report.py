"""`WorkerReport`: what a worker tells the coordinator of its work."""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from ctr.metrics import Metrics
from ctr.worker import Learner, Timings
from ps import FilterCounts


@dataclass(slots=True)
class WorkerReport:
    """Add several up with `add`."""

    progressive: Metrics = field(default_factory=Metrics)
    seen_again: Metrics = field(default_factory=Metrics)
    timings: Timings = field(default_factory=Timings)
    counts: FilterCounts = field(default_factory=FilterCounts)
    bytes_sent: int = 0
    """To the store, by pulls and pushes."""
    bytes_received: int = 0
    sent_again: int = 0
    """Partitions' shares of pushes that a failover had lost, and that were sent again."""
    troubles: int = 0
    """Requests that met a broken connection or a changing cluster, and were repeated."""
    bad_rows: list[int] = field(default_factory=list)
    """Their positions in the data, ascending."""
    bad_row_examples: list[str] = field(default_factory=list)

    def add(self, other: WorkerReport) -> None:
        self.progressive.merge(other.progressive)
        self.seen_again.merge(other.seen_again)
        self.timings.add(other.timings)
        self.counts.add(other.counts)
        self.bytes_sent += other.bytes_sent
        self.bytes_received += other.bytes_received
        self.sent_again += other.sent_again
        self.troubles += other.troubles
        self.bad_rows = sorted({*self.bad_rows, *other.bad_rows})
        self.bad_row_examples += other.bad_row_examples

    def to_bytes(self) -> bytes:
        return orjson.dumps(
            {
                "progressive": base64.b64encode(self.progressive.to_bytes()).decode(),
                "seen_again": base64.b64encode(self.seen_again.to_bytes()).decode(),
                "timings": asdict(self.timings),
                "counts": asdict(self.counts),
                **{name: getattr(self, name) for name in _PLAIN},
            }
        )

    @classmethod
    def from_bytes(cls, text: bytes) -> WorkerReport:
        found = orjson.loads(text)
        return cls(
            Metrics.from_bytes(base64.b64decode(found["progressive"])),
            Metrics.from_bytes(base64.b64decode(found["seen_again"])),
            Timings(**found["timings"]),
            FilterCounts(**found["counts"]),
            **{name: found[name] for name in _PLAIN},
        )


_PLAIN = ("bytes_sent", "bytes_received", "sent_again", "troubles", "bad_rows", "bad_row_examples")


def sign_of_life(learner: Learner) -> bytes:
    """The little that is told many times: how far the worker is, and how well it predicts."""
    latest = learner.seen_again if learner.seen_again.examples else learner.progressive
    told: dict[str, Any] = {
        "examples": learner.progressive.examples + learner.seen_again.examples,
        "judged": latest.examples,
        "logloss": latest.logloss if latest.examples else None,
    }
    return orjson.dumps(told)
