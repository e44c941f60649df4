"""A worker: find a chunk's slots, pull their state, train on the local copy, hand back the difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from ctr.errors import ModelError
from ctr.ftrl import Float32, Ftrl
from ctr.metrics import Metrics
from features import Batch, Chunk, Slots, localize
from ps import Store


@dataclass(slots=True)
class Timings:
    """Seconds that workers spent in each part of the loop, summed over workers."""

    unique: float = 0.0
    pull: float = 0.0
    train: float = 0.0
    push: float = 0.0

    def add(self, other: Timings) -> None:
        self.unique += other.unique
        self.pull += other.pull
        self.train += other.train
        self.push += other.push


@dataclass(frozen=True, slots=True)
class Move:
    """What one chunk wants to add to the store."""

    slots: Slots
    """uint32|uint64[u], sorted, unique."""
    delta: Float32
    """float32[u, width]."""
    pulled: Float32
    """float32[u, width]: the state it starts from."""


@dataclass(slots=True)
class Worker:
    """Trains chunks against a store; one object per thread."""

    store: Store
    safe_adding: float
    progressive: Metrics = field(default_factory=Metrics)
    """Progressive validation: over the first pass, where every example is new when it is predicted."""
    seen_again: Metrics = field(default_factory=Metrics)
    """The same over later passes, whose examples have been learnt before: no measure of quality."""
    timings: Timings = field(default_factory=Timings)

    def train(
        self,
        examples: Batch | Chunk,
        optimizer: Ftrl,
        *,
        first_pass: bool,
        peers: int,
        on_pulled: Callable[[], object],
    ) -> Move:
        """Train one chunk as one of `peers` workers; `on_pulled` is called once its state has been read.

        The move is not pushed: the caller decides when, and in which order with the moves of others.
        """
        started = perf_counter()
        try:
            chunk = localize(examples)
            found = perf_counter()
            before = self.store.pull(chunk.slots)
        finally:
            on_pulled()  # also after a failure: the others are waiting
        pulled = perf_counter()
        state = before.copy()
        predictions = optimizer.train(chunk, state, peers=peers, safe_adding=self.safe_adding)
        if not np.isfinite(predictions).all():
            raise ModelError(
                "training diverged: a prediction is not a number. Lower --alpha, or look for huge values in "
                "the data."
            )
        delta = np.subtract(state, before, out=state)
        assert chunk.labels is not None
        metrics = self.progressive if first_pass else self.seen_again
        metrics.add(predictions, chunk.labels, chunk.weights)
        trained = perf_counter()
        self.timings.add(Timings(found - started, pulled - found, trained - pulled))
        return Move(chunk.slots, delta, before)
