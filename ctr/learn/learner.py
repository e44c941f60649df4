"""`Learner`: trains chunks on local copies of their state, and returns the changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ctr.errors import ModelError
from ctr.features import Batch, Chunk, warm_up_localize
from ctr.features.batches import localize
from ctr.learn.result import Sums, parts_of_chunk
from ctr.learn.sampling import ALL_ROWS, EVERYTHING, Admission, AdmissionCounts, Sampling
from ctr.metrics import Metrics
from ctr.optimizers import Float32, Optimizer
from ctr.ps import MemoryStore, Token, reachable_n

WARM_UP_ROWS = 16
_DIVERGED = 3.0  # times the base rate's log loss, and at least 1 nat
_LATE_ROWS = 100_000  # rows predicted before a pass may count as diverged: the first steps may go too far


@dataclass(slots=True)
class Learner:
    """Trains chunks on local copies of their state, and keeps metrics of its predictions; one per thread.

    Adding the changes of several workers to the same state moves shared slots too far, and diverges. So each
    worker trains as if every example also stood for some examples of the other workers, and divides its
    change by their number (safe adding, after CoCoA+: Ma et al., ICML 2015). If only one worker has a slot,
    its change is added almost as it is; if all have it, the sum is about the average of their changes.

    On 900,000 synthetic rows in rounds of 65,536 the validation log loss is 0.46902 for one worker, 0.46912
    for two, 0.46898 for four and 0.46946 for eight. Damping each slot's move in the margin by its frequency
    in the chunk is no better (0.46917, 0.46913, 0.46949), takes 1.8 times as long, as it reads two more
    numbers per feature, and is worse if workers are chunks apart: 0.494 instead of 0.453 on 48,000 real rows
    with 16 workers.
    """

    safe_adding: float
    """The share of each other worker's examples that a worker's own examples stand for, 0 to 1."""
    admission: Admission = EVERYTHING
    sampling: Sampling = ALL_ROWS
    """How the chunks were sampled."""
    n_bits: int | None = None
    """The `n_bits` of a store that limits sums of squared gradients."""
    max_evidence: float = math.inf
    """The largest sum of squared gradients: steps then get no smaller, and weights follow changes."""
    admissions: AdmissionCounts = field(default_factory=AdmissionCounts)
    progressive: Metrics = field(default_factory=Metrics)
    """Progressive validation: metrics of the first pass, where every example is new when it is predicted."""
    later_passes: Metrics = field(default_factory=Metrics)
    """Metrics of later passes, whose examples were learnt before: not a measure of quality."""
    first_chunk: list[Sums] = field(default_factory=list)
    """Sums after each part of the first chunk, for the learning curve."""

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

        Returns the change of the state `before`, float32[u, width]. Raises ModelError if training has
        diverged; see also `require_convergence`.
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
        if self.max_evidence < math.inf:
            _stop_evidence(before, delta, optimizer, self.max_evidence)
        if self.n_bits is not None:
            _keep_weights_at_limit(before, delta, optimizer, reachable_n(before[:, 1], self.n_bits))
        self.admissions.add(self.admission.apply(chunk, before, delta, number))
        assert chunk.labels is not None
        metrics = self.progressive if first_pass else self.later_passes
        weights = self.sampling.plain(chunk.weights, chunk.labels)
        if first_pass and not metrics.examples:
            self.first_chunk = parts_of_chunk(margins, chunk.labels, weights)
        metrics.add(margins, chunk.labels, weights)
        require_convergence(metrics, _LATE_ROWS, self.sampling.pos_weight)
        return delta


def _stop_evidence(before: Float32, delta: Float32, optimizer: Optimizer, most: float) -> None:
    """Limit sums of squared gradients to `most`; the trained weights stay."""
    reachable = np.maximum(before[:, 1], np.float32(most))
    cut = _keep_weights_at_limit(before, delta, optimizer, reachable)
    delta[cut, 1] = reachable[cut] - before[cut, 1]


def _keep_weights_at_limit(
    before: Float32, delta: Float32, optimizer: Optimizer, reachable: Float32
) -> NDArray[np.intp]:
    """Keep the trained weights of slots whose sum of squared gradients will be cut off at `reachable`.

    Returns the indices of these slots. Their first number was trained with the larger sum; with the smaller
    one, it would mean a larger weight. With a limit of 512 instead of 8 million, 48,000 real rows in chunks
    of 1,000 would end at a log loss of 21 instead of 0.4482 (in memory: 0.4477).
    """
    cut = np.flatnonzero(before[:, 1] + delta[:, 1] > reachable)
    if cut.size:
        delta[cut, 0] = optimizer.first_at(before[cut] + delta[cut], reachable[cut]) - before[cut, 0]
    return cut


def require_convergence(metrics: Metrics, rows: int = 1_000, pos_weight: float = 1.0) -> None:
    """Raises ModelError if training has diverged, judged by at least `rows` predictions.

    It has diverged if its log loss is far above that of always predicting the base rate, with odds multiplied
    by `pos_weight`, which metrics ignore. Rows with only one label, as in some warm starts, show nothing.
    """
    base, rate = metrics.base_logloss, metrics.base_rate
    base += math.log1p((pos_weight - 1) * rate) - rate * math.log(pos_weight)
    if metrics.examples >= rows and base > 0 and not metrics.logloss <= max(_DIVERGED * base, 1.0):
        raise ModelError(
            f"training diverged: over {metrics.examples:,} rows its log loss is {metrics.logloss:.3g}, that "
            f"of always predicting the base rate {base:.3g}. Lower alpha, scale large values to about 1, "
            "look for huge weights, or train fewer epochs."
        )


def warm_up(sample: Batch | Chunk, bits: int, optimizer: Optimizer, learner: Learner) -> None:
    """Compile, or load from the cache, all kernels that examples like these need, on a temporary store.

    `learner` must not be used for anything else, as it keeps metrics.
    """
    warm_up_localize(bits)
    chunk, scratch = localize(sample), MemoryStore(bits=bits, width=optimizer.width)
    before = scratch.pull(chunk.slots)
    delta = learner.learn(chunk, before, optimizer, number=0, first_pass=True, peers=1)
    # One slot only: the slots of the whole sample would touch nearly all of the store's memory, for 30 ms.
    scratch.push(chunk.slots[:1], delta[:1], Token("warm-up", 0, 0))
