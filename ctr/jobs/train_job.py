"""`TrainJob`: what `ctr train` is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ctr.defaults import CHECKPOINT_EVERY_S, MOST_POS_WEIGHT, SAFE_ADDING, STALENESS, STALL_S, STORE
from ctr.errors import ModelError
from ctr.features.threads import cores
from ctr.outputs import beside
from ctr.workers import Consistency

if TYPE_CHECKING:
    from ctr.features import FeatureSpec
    from ctr.features.readers import RowChoice
    from ctr.model import Method


@dataclass(frozen=True, slots=True)
class TrainJob:
    """What to train, on what, and where the model goes."""

    inputs: Sequence[str | Path]
    """A hashed data set, or raw files: see `ctr.features.open_source`."""
    spec: str | Path | FeatureSpec | None
    """The feature spec, its path or name; None for a hashed data set, which carries its own."""
    model: Path
    spec_name: str | None = None
    """The spec's name or path as a user gave it; None: it came from a program, a data set or a model."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """By field or cross, those that take the place of the spec's."""
    workers: int = 1
    chunk: int | None = None
    """None: what suits the number of workers and rows, see `default_chunk`."""
    epochs: int = 1
    safe_adding: float = SAFE_ADDING
    admit: float = 1.0
    negative_rate: float = 1.0
    pos_weight: float = 1.0
    """See `TrainSettings`."""
    optimizer: Mapping[str, str | float] = field(default_factory=dict)
    """What was chosen of `choose_optimizer`; the rest is as in the warm start, or else the default."""
    search: Mapping[str, Any] | None = None
    """What the manifest says of the search that chose them, if there was one."""
    store: str = STORE
    consistency: Consistency | None = None
    """None: `bsp` in memory, which can do no other, and `ssp` through Redis."""
    staleness: int = STALENESS
    """Chunks that a worker may be ahead of the slowest, with `ssp`."""
    filters: Mapping[str, bool | float] = field(default_factory=dict)
    """Settings of `Filters` that were chosen; the others are the defaults."""
    checkpoint: Path | None = None
    checkpoint_every_s: float = CHECKPOINT_EVERY_S
    resume: bool = False
    lease_s: float | None = None
    """See `StoreSettings.lease_s`."""
    stall_s: float = STALL_S
    """Through Redis: a worker that is without progress for so long counts as dead, though it lives."""
    holdout: Sequence[str | Path] = ()
    """Inputs to evaluate the model on."""
    holdout_fraction: float | None = None
    """Or: the part at the end of `inputs` to keep for that, below 1."""
    early_stopping: bool = False
    """Whether to end when a pass makes the hold-out worse, and to keep the best one."""
    holdout_where: str | None = None
    """Or: the rows of `inputs` that meet this condition; see `ctr.features.readers.Condition`."""
    calibrate: Method | None = None
    """How to fit the model's probabilities to the hold-out."""
    warm_start: Path | None = None
    """Model whose state to train on from."""
    forget: float = 0.0
    """The share of its evidence that the warm start loses: see `Optimizer.forget`."""
    base_rate: float | None = None
    """The click rate at which a new model's bias starts; None: that of the first rows, see `base_rate`."""
    on_bad_rows: Literal["fail", "skip", "quarantine"] = "fail"
    max_bad_fraction: float | None = None
    """With `skip` and `quarantine`: of the rows of training or the hold-out that may be bad; None: all."""

    def __post_init__(self) -> None:
        for name, share in (("holdout-fraction", self.holdout_fraction), ("forget", self.forget)):
            if share is not None and not 0 <= share <= 1:
                raise ModelError(f"{name} is {share}: give a number from 0 to 1.")
        if not 1 / MOST_POS_WEIGHT <= self.pos_weight <= MOST_POS_WEIGHT:
            raise ModelError(
                f"pos-weight is {self.pos_weight:g}: give a number from {1 / MOST_POS_WEIGHT:g} to "
                f"{MOST_POS_WEIGHT:,.0f}, such as 5."
            )

    def rows(self, *, held_out: bool) -> RowChoice | None:
        """The rows of the inputs that are kept for evaluation, or the others; None: no condition tells."""
        if self.holdout_where is None:
            return None
        from ctr.features.readers import Condition, RowChoice

        return RowChoice(Condition.parse(self.holdout_where), held_out)

    @property
    def in_memory(self) -> bool:
        """Whether the parameters live in this process alone."""
        return self.store.startswith("memory:")

    @property
    def reading_threads(self) -> int:
        """How many threads train in memory and make examples of raw rows: as many as workers, or as cores."""
        return min(self.workers, cores()) if self.in_memory else 1

    @property
    def quarantine(self) -> Path | None:
        """Where bad rows of the inputs go, if they are kept."""
        return beside(self.model, ".bad-rows") if self.on_bad_rows == "quarantine" else None

    @property
    def holdout_quarantine(self) -> Path | None:
        """The same for the hold-out."""
        return beside(self.model, ".holdout.bad-rows") if self.on_bad_rows == "quarantine" else None

    @property
    def interrupted(self) -> Path:
        """Where the model of a job goes that was stopped before its end."""
        return beside(self.model, ".interrupted")


def require_batch(job: TrainJob) -> None:
    """Raise ModelError for what a job says that means nothing where all examples are learnt from at once."""
    told = {
        "--store": not job.in_memory,
        "--epochs": job.epochs > 1,
        "--early-stopping": job.early_stopping,
        "--chunk": job.chunk is not None,
        "--admit": job.admit < 1,
        "--forget": job.forget > 0,
    }
    if wrong := [option for option, given in told.items() if given]:
        raise ModelError(
            f"lbfgs learns from all examples at once, in the memory of one machine: leave out "
            f"{', '.join(wrong)} (--iterations says how long it may take; it uses all cores by itself)."
        )
