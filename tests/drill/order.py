"""`Order` and `Outcome`: what a process is to train, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ctr.drill.proof import StoreSums
from ctr.workers.description import JobDescription
from tests.ctr.distributed_jobs import State


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be trained, and where."""

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
    """What came of it: a message, or all of the rest."""

    refusal: str | None = None
    sums: StoreSums | None = None
    state: State | None = None
    examples: int = 0
    checkpoints: int = 0
    dead_workers: tuple[str, ...] = ()
