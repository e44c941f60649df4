"""`DistributedFacts`: what a job through Redis tells besides its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # training in memory does without
    from ctr.workers import WorkerReport


@dataclass(frozen=True, slots=True)
class DistributedFacts:
    """What only a job through Redis has to tell, besides its `TrainResult`."""

    report: WorkerReport
    """Of all workers together. What a worker that died had done in its last seconds is not in it."""
    workers_seen: int
    dead_workers: list[str]
    """What is known of workers that died."""
    checkpoints: int
    failed_checkpoints: list[str]
    """Why some could not be written."""
