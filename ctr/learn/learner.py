"""`Learner`: trains chunks on local copies of their state, and hands back the difference."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields

import numpy as np

from ctr.errors import ModelError
from ctr.features import Batch, Chunk, warm_up_localize
from ctr.features.batches import localize
from ctr.learn.admission import EVERYTHING, Admission, AdmissionCounts
from ctr.learn.learning_curve import Sums, parts_of_chunk
from ctr.learn.sampling import ALL_ROWS, Sampling
from ctr.metrics import Metrics
from ctr.optimizers import Float32, Optimizer
from ctr.ps import MemoryStore, Token, reachable_n

WARM_UP_ROWS = 16
_DIVERGED = 3.0  # times the base rate's log loss, and at least 1 nat
_LATE_ROWS = 100_000  # that a worker has predicted before it gives a pass up: the first steps may go too far


@dataclass(slots=True)
class Timings:
    """Seconds that workers spent in each part of the loop, summed over workers.

    Through Redis, all but `train` and `wait` happen beside training; `wait` is when nothing could be trained.
    """

    read: float = 0.0
    """Reading and hashing examples."""
    unique: float = 0.0
    """Finding a chunk's slots."""
    pull: float = 0.0
    train: float = 0.0
    push: float = 0.0
    wait: float = 0.0
    """For the next chunk, its weights, or slower workers."""

    def add(self, other: Timings) -> None:
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))

    def to_json(self) -> dict[str, float]:
        """Seconds by part."""
        return asdict(self)


@dataclass(slots=True)
class Learner:
    """Trains chunks on local copies of their state, and measures what it predicts; one object per thread.

    Adding up what several workers learnt from the same state moves the slots that they share too far, and
    diverges. So each trains as if every example stood for some of the others' examples too, and its change is
    divided by as many (safe adding, after CoCoA+: Ma et al., ICML 2015). What only one of them has met is
    added as it is; what all have met is about the average of their changes, each of which went the whole way.

    On 900,000 synthetic rows in rounds of 65,536 the hold-out's log loss is 0.46902 for one worker, 0.46912
    for two, 0.46898 for four and 0.46946 for eight. Damping each slot's move in the margin by how often
    the chunk has it is no better (0.46917, 0.46913, 0.46949), takes 1.8 times as long, as it reads two more
    numbers per feature, and loses more where workers are chunks apart: 0.494 instead of 0.453 on 48,000 real
    rows with 16 of them.
    """

    safe_adding: float
    """For so much of each other worker's examples a worker's own stand, 0 to 1."""
    admission: Admission = EVERYTHING
    sampling: Sampling = ALL_ROWS
    """That the chunks have gone through."""
    n_bits: int | None = None
    """Of the store, if that has an end of sums of squared gradients."""
    admissions: AdmissionCounts = field(default_factory=AdmissionCounts)
    progressive: Metrics = field(default_factory=Metrics)
    """Progressive validation: over the first pass, where every example is new when it is predicted."""
    later_passes: Metrics = field(default_factory=Metrics)
    """The same over later passes, whose examples have been learnt before: no measure of quality."""
    first_chunk: list[Sums] = field(default_factory=list)
    """Progressive validation in parts of the first chunk, for the learning curve."""

    def learn(
        self,
        chunk: Chunk,
        before: Float32,
        optimizer: Optimizer,
        *,
        number: int,
        first_pass: bool,
        peers: int,
    ) -> Float32:
        """Train one chunk, the job's `number`-th, as one of `peers` workers.

        Returns what it adds to `before`, float32[u, width].

        Raises ModelError when training has diverged, see also `require_convergence`.
        """
        state = before.copy()
        copies = 1 + self.safe_adding * (peers - 1)
        margins = optimizer.train(chunk, state, number=number, copies=copies)
        if not np.isfinite(margins).all():
            raise ModelError(
                "training diverged: a prediction is not a number. Lower alpha, or look for huge values in "
                "the data."
            )
        delta = np.subtract(state, before, out=state)
        if copies != 1:
            delta /= np.float32(copies)
        if self.n_bits is not None:
            _hold_at_the_end(before, delta, optimizer, self.n_bits)
        self.admissions.add(self.admission.apply(chunk, before, delta, number))
        assert chunk.labels is not None
        metrics = self.progressive if first_pass else self.later_passes
        weights = self.sampling.plain(chunk.weights, chunk.labels)
        if first_pass and not metrics.examples:
            self.first_chunk = parts_of_chunk(margins, chunk.labels, weights)
        metrics.add(margins, chunk.labels, weights)
        require_convergence(metrics, _LATE_ROWS, self.sampling.pos_weight)
        return delta


def _hold_at_the_end(before: Float32, delta: Float32, optimizer: Optimizer, n_bits: int) -> None:
    """Have slots whose sum of squared gradients will be cut off come to the weights they were trained to.

    Their first number was trained for the larger sum: pushed as it is, it makes each weight larger by as much
    as the sum falls short. With an end of 512 instead of 8 million, 48,000 real rows in chunks of 1,000 come
    to a log loss of 21 so, and to 0.4482 as here (in memory: 0.4477).
    """
    reachable = reachable_n(before[:, 1], n_bits)
    cut = np.flatnonzero(before[:, 1] + delta[:, 1] > reachable)
    if cut.size:
        delta[cut, 0] = optimizer.first_at(before[cut] + delta[cut], reachable[cut]) - before[cut, 0]


def require_convergence(metrics: Metrics, rows: int = 1_000, pos_weight: float = 1.0) -> None:
    """Raise ModelError if training has diverged, as at least so many rows show that it predicted.

    That is where its log loss is far above that of always predicting the base rate, which it began with: its
    odds times `pos_weight`, which metrics do not count. Rows of one class only, a warm start's, do not tell.
    """
    base, rate = metrics.base_logloss, metrics.base_rate
    base += math.log1p((pos_weight - 1) * rate) - rate * math.log(pos_weight)
    if metrics.examples >= rows and base > 0 and not metrics.logloss <= max(_DIVERGED * base, 1.0):
        raise ModelError(
            f"training diverged: over {metrics.examples:,} rows its log loss is {metrics.logloss:.3g}, that "
            f"of always predicting the base rate {base:.3g}. Lower alpha, scale large values to about 1, "
            "look for huge weights, or train fewer epochs."
        )


def warm_up(
    sample: Batch | Chunk, bits: int, optimizer: Optimizer, safe_adding: float, admission: Admission
) -> None:
    """Compile, or load from the cache, all kernels that such examples need, on a store to be thrown away."""
    warm_up_localize(bits)
    chunk = localize(sample)
    scratch, learner = MemoryStore(bits=bits, width=optimizer.width), Learner(safe_adding, admission)
    before = scratch.pull(chunk.slots)
    delta = learner.learn(chunk, before, optimizer, number=0, first_pass=True, peers=1)
    # One slot: those of all the sample would make nearly all of the store's memory resident, for 30 ms.
    scratch.push(chunk.slots[:1], delta[:1], Token("warm-up", 0, 0))
