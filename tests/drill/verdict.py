"""`judge`: whether a job that met faults came to what it would have come to without them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

from ctr.checkpoint import Checkpoint
from ctr.drill.job import DrillJob
from ctr.drill.ledger import Push
from ctr.drill.proof import StoreSums, prove
from ctr.ps.client import LOST
from ctr.ps.redis.layout import Layout
from ctr.workers.description import JobDescription
from tests.ctr.distributed_jobs import State, same, same_sums
from tests.drill.order import Outcome

UNDECIDED = "UNDECIDED"
"""Begins what the ledger cannot tell: too many chunks were trained twice."""
_PYTHON_ERROR = re.compile(r": \w*(Error|Exception|Interrupt)\b")


@dataclass(slots=True)
class Evidence:
    """What is known of a job, run by run: one is a run of the command, resumed or not."""

    job: JobDescription
    expected: State | None
    """The state that the job comes to undisturbed; None when that is another each time."""
    earlier: list[Push] = field(default_factory=list)
    """All pushes of the runs before the last."""
    start: StoreSums | None = None
    """What the last run began with; None: nothing."""

    def resume(self, pushes: Sequence[Push], checkpoint: Checkpoint) -> list[str]:
        """What is wrong with the checkpoint that the next run begins with; `pushes` are the last run's."""
        owed = DrillJob(self.job, Event()).chunks_before(checkpoint)
        partitions = Layout.of(self.job.feature_spec().bits).partitions
        saved = StoreSums.of(checkpoint.dumps(), partitions, str(checkpoint.position["job"]))
        proof = prove(pushes, saved, start=self.start, owed=owed, acknowledged=False, earlier=self.earlier)
        self.earlier += pushes
        self.start = saved
        return [f"in the checkpoint: {problem}" for problem in proof.problems]

    def judge(self, pushes: Sequence[Push], outcome: Outcome) -> list[str]:
        """What is wrong at the end; `pushes` are the last run's."""
        assert outcome.sums is not None
        assert outcome.state is not None
        owed = DrillJob(self.job, Event()).all_chunks()
        found = prove(pushes, outcome.sums, start=self.start, owed=owed, earlier=self.earlier).problems
        if self.expected is not None:
            equal = same if self.job.ranks else same_sums
            if not equal(outcome.state, self.expected):
                found.append("the model is not that of the undisturbed job")
        if outcome.examples != self.job.rows * self.job.passes:
            found.append(f"{outcome.examples} examples were counted, not {self.job.rows * self.job.passes}")
        found += [f"a worker ended: {said}" for said in outcome.dead_workers if _PYTHON_ERROR.search(said)]
        return found


def is_loss(refusal: str) -> bool:
    """Whether a job ended as the documents say that it does when pushes are lost for good."""
    return LOST in refusal
