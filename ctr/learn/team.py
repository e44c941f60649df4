"""`Team`: worker threads over one store, which train a chunk each at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

import numpy as np

from ctr.learn.learner import Learner, Timings
from ctr.learn.optimizer import Float32, Optimizer
from features import Batch, Chunk, Slots
from features.batches import localize
from ps import Partitions, Store, Token

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """One chunk to train, and the optimizer's settings in its pass."""

    examples: Batch | Chunk
    optimizer: Optimizer
    number: int
    """Of the pass, from 1."""
    chunk: int
    """Its number in the job."""


@dataclass(frozen=True, slots=True)
class Update:
    """What one chunk wants to add to the store."""

    slots: Slots
    """uint32|uint64[u], sorted, unique."""
    delta: Float32
    """float32[u, width]."""
    pulled: Float32
    """float32[u, width]: the state it starts from."""


@dataclass(frozen=True, slots=True)
class _Worker:
    learner: Learner
    timings: Timings = field(default_factory=Timings)


class Team:
    """`workers` threads, the caller's among them. Leaving the `with` block ends the others.

    In a round every worker trains a chunk on the same state. Then each adds what all of them have learnt, in
    their order, to partitions of its own. So what a round comes to does not depend on how fast a thread is.
    """

    def __init__(self, store: Store, job: str, workers: int, safe_adding: float) -> None:
        """`job`: as in the tokens of what is pushed."""
        self._store = store
        self._job = job
        self._partitions = Partitions(store.bits, store.applied(job, 0).size)
        self._workers = [_Worker(Learner(safe_adding)) for _ in range(workers)]
        self._pool = ThreadPoolExecutor(max(workers - 1, 1), "worker")

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    @property
    def learners(self) -> list[Learner]:
        """Of each worker."""
        return [worker.learner for worker in self._workers]

    @property
    def timings(self) -> Timings:
        """Of all workers."""
        sums = Timings()
        for worker in self._workers:
            sums.add(worker.timings)
        return sums

    def learn(self, tasks: Sequence[Task], clock: int, *, first_pass: int) -> None:
        """Learn a round, the `clock`-th: at most one task per worker. `first_pass`: the number of that pass.

        Raises the errors of `Learner.learn`, then nothing is pushed, and of the store.
        """
        peers = len(tasks)
        updates = self._together(lambda at: self._train(at, tasks[at], peers, first_pass), peers)
        edges = self._share(updates)

        def push(at: int) -> None:
            started = perf_counter()
            for worker, (update, cuts) in enumerate(zip(updates, edges, strict=True)):
                share = slice(cuts[at], cuts[at + 1])
                # Every partition is in one share: so each gets the updates in order, and each of them once.
                token = Token(self._job, worker, clock)
                self._store.push(update.slots[share], update.delta[share], token, update.pulled[share])
            self._workers[at].timings.push += perf_counter() - started

        self._together(push, peers)

    def _train(self, at: int, task: Task, peers: int, first_pass: int) -> Update:
        worker = self._workers[at]
        started = perf_counter()
        chunk = localize(task.examples)
        found = perf_counter()
        before = self._store.pull(chunk.slots)
        pulled = perf_counter()
        delta = worker.learner.learn(
            chunk,
            before,
            task.optimizer,
            number=task.chunk,
            first_pass=task.number == first_pass,
            peers=peers,
        )
        worker.timings.unique += found - started
        worker.timings.pull += pulled - found
        worker.timings.train += perf_counter() - pulled
        return Update(chunk.slots, delta, before)

    def _share(self, updates: list[Update]) -> list[list[int]]:
        """Per update, where the slots of each worker's partitions begin, and where the last one's end.

        The workers have about as many slots to push as each other.
        """
        cuts = np.array([self._partitions.cuts(update.slots) for update in updates])
        below = cuts.sum(axis=0)
        wanted = np.arange(1, len(updates)) * below[-1] // len(updates)
        bounds = [0, *np.searchsorted(below, wanted), self._partitions.count]
        found: list[list[int]] = cuts[:, bounds].tolist()
        return found

    def _together(self, step: Callable[[int], T], workers: int) -> list[T]:
        """What `step` gives each of so many workers, all at the same time."""
        others = [self._pool.submit(step, at) for at in range(1, workers)]
        try:
            first = step(0)
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]
