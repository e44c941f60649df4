"""`Trained`: the result of training, in memory or through Redis; its progress, timings and learning curve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ctr.learn.sampling import AdmissionCounts
from ctr.metrics import Metrics
from ctr.optimizers import Float32
from ctr.ps import Slots, Store


@dataclass(slots=True)
class Timings:
    """Seconds that workers spent in each part of the loop, summed over workers.

    With Redis, everything except `train` and `wait` overlaps with training; workers are idle during `wait`.
    """

    read: float = 0.0
    """Reading and hashing examples."""
    unique: float = 0.0
    """Finding a chunk's slots."""
    pull: float = 0.0
    train: float = 0.0
    push: float = 0.0
    wait: float = 0.0
    """Waiting for the next chunk, its weights, or slower workers."""

    def add(self, other: Timings) -> None:
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))

    def to_json(self) -> dict[str, float]:
        """Seconds by part."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """The progress of a running job."""

    examples: int
    """Examples so far, without those from before a resumption."""
    fraction: float
    """The fraction of the job that is done; NaN for a batch optimizer, which ends when it converges."""
    logloss: float
    """The log loss of this pass so far: progressive in the first pass; NaN before the first example."""
    later_pass: bool
    """True if these examples were learnt before: `logloss` is then training loss, no measure of quality."""
    iteration: int | None = None
    """The iteration of a batch optimizer, from 1."""
    objective: float | None = None
    """The objective of a batch optimizer, see `Convergence.objective`."""


@dataclass(frozen=True, slots=True)
class Convergence:
    """How a batch optimizer ended."""

    iterations: int
    objective: float
    """The sum of the examples' log losses and of the penalties."""
    converged: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The figures of a job."""

    examples: int
    seconds: float
    """Training time: reading, pulling, learning and pushing, without start-up and compilation."""
    rows: int
    """Examples of the first pass."""
    progressive: Metrics
    """Progressive validation over the first pass: every example predicted before it was learnt. For a batch
    optimizer: metrics of the final model on the training rows."""
    timings: Timings
    admissions: AdmissionCounts
    """All zeros if everything was stored."""
    passes: float
    """The average number of passes over a row, including earlier rows (see `Passes`); the last pass may be
    incomplete."""
    chunks: int
    """Chunks that were trained, including earlier ones; an estimate for an interrupted job with Redis."""
    interrupted: bool
    """True if it was stopped before the end of the data."""
    learning_curve: Sequence[tuple[int, float]] = ()
    """Points of examples in the first pass and mean log loss since the previous point; only in memory."""
    resumed_from: str | None = None
    """When the checkpoint was written that the job was resumed from."""
    convergence: Convergence | None = None
    """How a batch optimizer ended."""

    @property
    def measured(self) -> str:
        """The origin of the metrics in `progressive`: `progressive` validation, or the `training` rows."""
        return "progressive" if self.convergence is None else "training"


@dataclass(frozen=True, slots=True)
class AfterPass:
    """The state after a pass."""

    number: int
    """The number of the pass, from 1."""
    state: tuple[Slots, Float32]
    """The whole content of the store."""
    passes: float
    """The average number of passes over the state's rows, see `Passes`."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training, before anything is saved."""

    result: TrainResult
    state: tuple[Slots, Float32]
    """The whole content of the store at the end."""
    store: Store | None = None
    """The open store, if it still holds the state; to be dropped once the state is saved elsewhere."""


MOST_POINTS = 64
_MOST_PARTS, _LEAST_ROWS = 16, 1_000

Sums = tuple[int, float, float]
"""The number of examples so far, and the sums of their losses and weights."""


def parts_of_chunk(margins: Float32, labels: Float32, weights: Float32 | None) -> list[Sums]:
    """The sums after each part of a chunk except the last, for chunks of some thousand rows.

    A small data set is a single chunk, which would give only one point of a curve.
    """
    count = min(margins.size // _LEAST_ROWS, _MOST_PARTS)
    losses = np.logaddexp(0, np.where(labels > 0, -margins, margins), dtype=np.float64)
    sizes = np.ones(margins.size) if weights is None else weights.astype(np.float64)
    ends = ((k * margins.size // count) for k in range(1, count))
    return [(end, float(losses[:end] @ sizes[:end]), float(sizes[:end].sum())) for end in ends]


class LearningCurve:
    """Points of progressive validation. If there are too many, every other one is dropped."""

    def __init__(self) -> None:
        self._sums: list[Sums] = []
        self._every = 1
        self._rounds = 0

    def begin(self, parts: Sequence[Sums]) -> None:
        """Start with the parts of a worker's first chunk, before the first round is added."""
        self._sums = list(parts)

    def add(self, workers: Iterable[Metrics]) -> None:
        """Add a point after a round, from the metrics of each worker over all its predictions so far."""
        self._rounds += 1
        if self._rounds % self._every:
            return
        sums = [(metrics.examples, *metrics.loss_and_weight) for metrics in workers]
        examples, loss, weight = (sum(column) for column in zip(*sums, strict=True))
        if examples == (self._sums[-1][0] if self._sums else 0):
            return  # a later pass, or a round whose rows were all skipped
        self._sums.append((int(examples), loss, weight))
        if len(self._sums) > MOST_POINTS:
            self._sums = self._sums[1::2]
            self._every *= 2

    def points(self) -> list[tuple[int, float]]:
        """The number of examples at each point, and the mean log loss since the previous point."""
        before = [(0, 0.0, 0.0), *self._sums]
        return [
            (examples, (loss - loss_before) / (weight - weight_before))
            for (_, loss_before, weight_before), (examples, loss, weight) in zip(
                before, self._sums, strict=False
            )
        ]
