"""`Trained`: what training gave, in memory or through Redis; what it did, and where it is meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ctr.learn.admission import AdmissionCounts
from ctr.learn.learner import Timings
from ctr.metrics import Metrics
from ctr.optimizers import Float32
from ctr.ps import Slots, Store


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """Where a running job is."""

    examples: int
    """Without those of before a resumption."""
    fraction: float
    """Of the whole job, 0 to 1; NaN for a batch optimizer, which ends when it has converged."""
    logloss: float
    """Over the examples of this pass so far: progressive in a first pass; NaN before any."""
    later_pass: bool
    """Whether these examples have been learnt before: then it is training loss, no measure of quality."""
    iteration: int | None = None
    """Of a batch optimizer, from 1."""
    objective: float | None = None
    """What that minimises: see `Convergence.objective`."""


@dataclass(frozen=True, slots=True)
class Convergence:
    """How a batch optimizer came to its end."""

    iterations: int
    objective: float
    """The sum of the examples' log losses, and the penalties."""
    converged: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a job did."""

    examples: int
    seconds: float
    """Training alone: reading, pulling, learning and pushing, without start-up and compilation."""
    rows: int
    """Examples of the first pass."""
    progressive: Metrics
    """Progressive validation over the first pass: every example predicted before it was learnt. Of a batch
    optimizer: the training rows, predicted by the model."""
    timings: Timings
    admissions: AdmissionCounts
    """All zeros where everything was to be stored."""
    passes: float
    """Over a row, on average, earlier rows included (see `Passes`); the last may have been interrupted."""
    chunks: int
    """That were trained, earlier ones included; of a job through Redis that was stopped, about so many."""
    interrupted: bool
    """Whether examples were left when it was told to stop."""
    learning_curve: Sequence[tuple[int, float]] = ()
    """Examples of the first pass, and the mean log loss of those since the point before; in memory only."""
    resumed_from: str | None = None
    """When the checkpoint was taken that the job went on from."""
    convergence: Convergence | None = None
    """Of a batch optimizer."""

    @property
    def measured(self) -> str:
        """What `progressive` is of: `progressive` validation, or the `training` rows themselves."""
        return "progressive" if self.convergence is None else "training"


@dataclass(frozen=True, slots=True)
class Trained:
    """What training gave, before anything is saved."""

    result: TrainResult
    state: tuple[Slots, Float32]
    """Everything that the store held in the end."""
    store: Store | None = None
    """The store, open, if it still holds that: to be dropped when the state is safe elsewhere."""
