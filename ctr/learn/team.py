"""`Team`: worker threads over one store, which train a chunk each at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import TypeVar

import numpy as np

from ctr.learn.admission import EVERYTHING, Admission, AdmissionCounts
from ctr.learn.learner import Learner, Timings
from ctr.learn.sampling import ALL_ROWS, Sampling
from ctr.optimizers import Float32, Optimizer
from features import Batch, Chunk, Slots
from features.batches import localize
from ps import Partitions, Store, Token

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Task:
    """One chunk to train, and the optimizer's settings in its pass."""

    examples: Batch | Chunk
    optimizer: Optimizer
    number: int
    """Of the pass, from 1."""
    chunk: int
    """Its number in the job."""
    rows: int
    """That were read for it, of which a sample may have been taken."""


@dataclass(frozen=True, slots=True)
class _Pulled:
    task: Task
    chunk: Chunk
    state: Float32
    """float32[u, width], of the chunk's slots."""


@dataclass(frozen=True, slots=True)
class _Worker:
    learner: Learner
    timings: Timings = field(default_factory=Timings)


class Team:
    """`workers` threads. Leaving the `with` block ends them.

    In a round every worker trains a chunk on the same state. Then each adds what all of them have learnt, in
    their order, to partitions of its own. So what a round comes to does not depend on how fast a thread is.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        workers: int,
        safe_adding: float,
        admission: Admission = EVERYTHING,
        sampling: Sampling = ALL_ROWS,
    ) -> None:
        """`job`: as in the tokens of what is pushed."""
        self._store = store
        self._job = job
        self._admission = admission
        self._partitions = Partitions(store.bits, store.applied(job, 0).size)
        self._workers = [_Worker(Learner(safe_adding, admission, sampling)) for _ in range(workers)]
        self._pool = ThreadPoolExecutor(workers, "worker")

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

    @property
    def admissions(self) -> AdmissionCounts:
        """Of all workers."""
        sums = AdmissionCounts()
        for learner in self.learners:
            sums.add(learner.admissions)
        return sums

    def learn(self, tasks: Iterable[Task], clock: int, *, first_pass: int) -> list[Task]:
        """Learn a round, the `clock`-th, of at most one task per worker; return its tasks.

        A worker starts as soon as its task is there. `first_pass`: the number of that pass.

        Raises the errors of `tasks` and of `Learner.learn`, then nothing is pushed, and of the store.
        """
        pulled = self._together(self._pull, tasks)
        peers = len(pulled)
        deltas = self._together(partial(self._train, peers=peers, first_pass=first_pass), pulled)
        shares = self._share([each.chunk.slots for each in pulled])
        self._together(partial(self._push, clock, pulled, deltas), shares)
        return [each.task for each in pulled]

    def _pull(self, at: int, task: Task) -> _Pulled:
        timings = self._workers[at].timings
        started = perf_counter()
        chunk = localize(task.examples)
        found = perf_counter()
        state = self._store.pull(chunk.slots)
        timings.unique += found - started
        timings.pull += perf_counter() - found
        return _Pulled(task, chunk, state)

    def _train(self, at: int, pulled: _Pulled, *, peers: int, first_pass: int) -> Float32:
        worker, task = self._workers[at], pulled.task
        started = perf_counter()
        delta = worker.learner.learn(
            pulled.chunk,
            pulled.state,
            task.optimizer,
            number=task.chunk,
            first_pass=task.number == first_pass,
            peers=peers,
        )
        worker.timings.train += perf_counter() - started
        return delta

    def _push(
        self, clock: int, pulled: list[_Pulled], deltas: list[Float32], at: int, shares: list[slice]
    ) -> None:
        started = perf_counter()
        for worker, (before, delta, share) in enumerate(zip(pulled, deltas, shares, strict=True)):
            # Every partition is in one worker's shares: it gets the updates in order, and each of them once.
            token = Token(self._job, worker, clock)
            slots, added, state = before.chunk.slots[share], delta[share], before.state[share]
            if self._admission.probability < 1:  # what is left out takes no memory
                changed = np.logical_or.reduce([column != 0 for column in added.T])
                slots, added, state = slots[changed], added[changed], state[changed]
            self._store.push(slots, added, token, state)
        self._workers[at].timings.push += perf_counter() - started

    def _share(self, slots: list[Slots]) -> list[list[slice]]:
        """Per worker, what it pushes of each update to these slots: that to its partitions.

        The workers have about as many slots to push as each other.
        """
        cuts = np.array([self._partitions.cuts(each) for each in slots])
        below = cuts.sum(axis=0)
        wanted = np.arange(1, len(slots)) * below[-1] // len(slots)
        bounds = [0, *np.searchsorted(below, wanted), self._partitions.count]
        edges = cuts[:, bounds].T.tolist()
        return [[slice(*ends) for ends in zip(*each, strict=True)] for each in pairwise(edges)]

    def _together(self, step: Callable[[int, T], U], items: Iterable[T]) -> list[U]:
        """What `step` gives each worker for its item: all at the same time, from when the item is there."""
        if len(self._workers) == 1:
            return [step(at, item) for at, item in enumerate(items)]
        running: list[Future[U]] = []
        try:
            for at, item in enumerate(items):
                running.append(self._pool.submit(step, at, item))
        finally:
            wait(running)
        return [each.result() for each in running]
