"""`Trained`: what training gave, in memory or through Redis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ctr.learn import Float32, TrainResult
from features import Slots

if TYPE_CHECKING:  # training in memory does without
    from ctr.workers import WorkerReport
    from ps import Store


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


@dataclass(frozen=True, slots=True)
class Trained:
    """What training gave, before anything is saved."""

    result: TrainResult
    state: tuple[Slots, Float32]
    """Everything that the store held in the end."""
    store: Store | None = None
    """The store, open, if it still holds that: to be dropped when the state is safe elsewhere."""
    distributed: DistributedFacts | None = None
