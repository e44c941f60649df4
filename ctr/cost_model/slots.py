"""`ChunkSlots`: which slots a chunk has, and what becomes of them.

- Features that are in one chunk only are as many per example as the data has features in all, less those that
  recur. Those that recur follow a power law of the chunk (Heaps' law, 0.28 from 256 to 65,536 rows; Criteo's
  own log gives 0.276 from 1,000 to 60,000) until the chunk has nearly all of them.
- Hashing throws features into slots at random: `s = S * (1 - (1 - 1 / S)**U)`.
- Nobody had pushed the new ones, nor what came up for the first time in the chunk before, which is still in
  work when this one is pulled. Of those that recur, a lone worker finds half in its cache; of the others,
  until logs are folded, only those that were ever added to have a state that can be pulled.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, log1p
from typing import Final

from ctr.cost_model.costs import Costs
from ctr.cost_model.workload import MEASURED_CHUNK, MEASURED_FEATURES, Workload

PRESENCE_BITS: Final = 30
"""Of a worker's bitmap of pushed slots, as in `ctr.ps.client.marks`: with more, neighbours share a bit."""


@dataclass(frozen=True, slots=True)
class ChunkSlots:
    """Slots of one chunk."""

    unique: float
    ranged: bool
    """Whether they travel as whole ranges; then all are pulled and added."""
    cached: float
    absent: float
    """Not pulled, because nobody has pushed them."""
    pulled: float
    added: float
    """Whose changes are added to the state at once."""
    logged: float
    """Whose changes go to logs."""
    named: float = 0.0
    """Of those that are added, the ones that logs name, as nobody had pushed them."""

    @property
    def entries(self) -> float:
        """Of logs."""
        return self.logged + self.named


def chunk_slots(workload: Workload, chunk: int, costs: Costs) -> ChunkSlots:
    """The slots of `chunk` examples, expected, on average over the job."""
    unique = occupied(workload.slots, unique_features(workload, chunk, costs))
    density = costs.far_density if workload.cores is None else costs.near_density
    if unique * density >= workload.slots:
        return ChunkSlots(unique, True, 0.0, 0.0, unique, unique, 0.0)
    recurring = min(_recurring(workload, chunk, costs) * chunk, unique)
    known = recurring * exp(-((chunk / costs.known_span) ** costs.known_exponent))
    begun = max(1 - 2 * chunk * workload.active_workers / workload.examples, 0.0)  # nothing in the first two
    known *= begun
    shrunk = (MEASURED_CHUNK / chunk) ** costs.recurring_exponent
    added = min(
        costs.added * shrunk * chunk * workload.features_per_example / MEASURED_FEATURES, 0.5 * unique
    )
    share = costs.cached if workload.active_workers == 1 else costs.cached_beside
    # What is in a log only has no state yet, and a worker adds its own log to that.
    folded = _folded(workload, (unique - added) * workload.examples / chunk, costs)
    stateful = folded * known + (1 - folded) * min(costs.ever_added * added * begun, known)
    absent = (unique - share * known - (1 - share) * stateful) * _told_apart(workload)
    cached = share * known
    logged = (unique - added) * _deferring(workload, (unique - added) / chunk, costs)
    named = min(unique - added - logged, absent)
    pulled = unique - cached - absent
    return ChunkSlots(unique, False, cached, absent, pulled, unique - logged, logged, named)


def _deferring(workload: Workload, per_example: float, costs: Costs) -> float:
    """The share of the job in which a worker defers: not once its own log has become too long.

    From then on it is about as long as logs that are folded now and then let it be, half of the longest.
    """
    folded = 0.5 * workload.slots / costs.fold_density / workload.active_workers
    if folded <= costs.own_log_entries:
        return 1.0
    of_worker = per_example * workload.examples * workload.passes / workload.active_workers
    return min(costs.own_log_entries / max(of_worker, 1.0), 1.0)


def _folded(workload: Workload, entries: float, costs: Costs) -> float:
    """The share of the job in which logs have been folded, first at three quarters of their length."""
    first = 0.75 * workload.slots / costs.fold_density
    return max(1 - first / (entries * workload.passes), 0.0)


def unique_features(workload: Workload, chunk: int, costs: Costs) -> float:
    """Distinct features that `chunk` examples have together, expected."""
    seldom = workload.features / workload.examples
    # All examples together have all features.
    rest = _recurring(workload, chunk, costs) - _recurring(workload, workload.examples, costs)
    per_example = min(seldom + max(rest, 0.0), workload.features_per_example)
    return float(min(per_example * chunk, workload.features))


def occupied(bins: int, balls: float) -> float:
    """The expected number of bins, two or more, that balls thrown at random hit."""
    return -bins * expm1(balls * log1p(-1 / bins))


def _recurring(workload: Workload, chunk: int, costs: Costs) -> float:
    """Features per example of a chunk that other chunks have, too."""

    def law(examples: float) -> float:
        knee = costs.recurring_knee
        e = costs.recurring_exponent
        return float((1 / examples) ** e * (1 + examples / knee) ** (e - 1))

    per_example = costs.recurring * law(chunk) / law(MEASURED_CHUNK)
    return per_example * workload.features_per_example / MEASURED_FEATURES


def _told_apart(workload: Workload) -> float:
    """The share of slots nobody has pushed that a worker knows as such, on average over the job."""
    if workload.bits <= PRESENCE_BITS:
        return 1.0
    pushed = min(workload.features, workload.examples * workload.features_per_example)
    most = pushed / (1 << PRESENCE_BITS)  # pushes to the slots of one bit, at the end
    return -expm1(-most) / most
