"""`Evidence`: whether a job that met faults came to what it would have come to without them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain

from ctr.checkpoint import Checkpoint
from ctr.ps import LOST, JobBoard, RedisStore
from ctr.ps.layout import Layout
from ctr.workers.description import JobDescription
from tests.ctr.distributed_jobs import State
from tests.drill.ledger import Push
from tests.drill.process import Outcome
from tests.drill.proof import StoreSums, Token, prove

UNDECIDED = "UNDECIDED"
"""Begins what the ledger cannot tell: too many chunks were trained twice."""
Compare = Callable[[State], str | None]
"""What is wrong with the state that a job came to; None: nothing."""
_OUT_OF_MEMORY = "Redis has reached its memory limit"
_PYTHON_ERROR = re.compile(r": \w*(Error|Exception|Interrupt)\b")


@dataclass(slots=True)
class Evidence:
    """What is known of a job, run by run: one is a run of the command, resumed or not."""

    job: JobDescription
    compare: Compare
    earlier: list[Push] = field(default_factory=list)
    """All pushes of the runs before the last."""
    start: StoreSums | None = None
    """What the last run began with; None: nothing."""

    def stop(self, pushes: Sequence[Push], sums: StoreSums) -> list[str]:
        """What is wrong with what a run left in the store that stopped early; `pushes` are that run's."""
        proof = prove(pushes, sums, start=self.start, earlier=self.earlier)
        return [f"when it stopped: {problem}" for problem in proof.problems]

    def resume(self, pushes: Sequence[Push], checkpoint: Checkpoint) -> list[str]:
        """What is wrong with the checkpoint that the next run begins with; `pushes` are the last run's."""
        partitions = Layout.for_nodes(self.job.feature_spec().bits, 1).partitions
        saved = StoreSums.of(
            chain.from_iterable(checkpoint.ranges()), partitions, str(checkpoint.manifest.position["job"])
        )
        owed = chunks_before(self.job, checkpoint)
        proof = prove(pushes, saved, start=self.start, owed=owed, acknowledged=False, earlier=self.earlier)
        self.earlier += pushes
        self.start = saved
        return [f"in the checkpoint: {problem}" for problem in proof.problems]

    def judge(self, pushes: Sequence[Push], outcome: Outcome) -> list[str]:
        """What is wrong at the end; `pushes` are the last run's."""
        assert outcome.sums is not None
        assert outcome.state is not None
        owed = all_chunks(self.job)
        problems = prove(pushes, outcome.sums, start=self.start, owed=owed, earlier=self.earlier).problems
        if (difference := self.compare(outcome.state)) is not None:
            problems.append(difference)
        if outcome.examples != self.job.rows * self.job.passes:
            problems.append(
                f"{outcome.examples} examples were counted, not {self.job.rows * self.job.passes}"
            )
        problems += [f"a worker ended: {said}" for said in outcome.dead_workers if _PYTHON_ERROR.search(said)]
        return problems


def is_loss(refusal: str) -> bool:
    """Whether a job ended as the documents say that it does when pushes are lost for good."""
    return LOST in refusal


def is_out_of_memory(refusal: str) -> bool:
    """Whether a job ended as it does when a server's memory is full."""
    return _OUT_OF_MEMORY in refusal


def sums_in(store: RedisStore) -> StoreSums:
    """What a store holds of the job on its board."""
    with closing(JobBoard(store.url)) as board:
        job = board.job()
    assert job is not None
    dumps = (store.dumps.take(partition) for partition in range(store.partitions.count))
    return StoreSums.of(dumps, store.partitions, job.id)


def all_chunks(job: JobDescription) -> set[Token]:
    """What the workers have to push, as data shard (or rank) and chunk."""
    plan = job.plan()
    if job.ranks:
        return {(rank, number) for rank in range(job.ranks) for number in range(plan.rounds_of(rank))}
    return {(shard, n) for shard in range(plan.shards) for n in range(plan.chunks_of(shard))}


def chunks_before(job: JobDescription, checkpoint: Checkpoint) -> set[Token]:
    """Those of them that a checkpoint says are in it."""
    position = checkpoint.manifest.position
    if job.ranks:
        return {token for token in all_chunks(job) if token[1] <= position["ranks"][token[0]]}
    progress = {int(shard): chunks for shard, chunks in position["progress"].items()}
    return {
        (shard, chunk)
        for shard, chunk in all_chunks(job)
        if shard < position["begun"] and (shard not in progress or chunk < progress[shard])
    }
