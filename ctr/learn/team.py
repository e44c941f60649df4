"""`Team`: worker threads over one store, which train a chunk each at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from threading import Lock
from time import perf_counter
from typing import TypeVar

import numpy as np

from ctr.features import Batch, Chunk, Slots
from ctr.features.batches import localize
from ctr.features.threads import Threads, cores
from ctr.learn.learner import Learner
from ctr.learn.result import Timings
from ctr.learn.sampling import AdmissionCounts
from ctr.optimizers import Float32, Optimizer
from ctr.ps import DirectSessions, Pulled, Store

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Task:
    """One chunk to train, and the optimizer's settings in its pass."""

    examples: Batch | Chunk | Future[Chunk]
    optimizer: Optimizer
    number: int
    """Of the job's pass, from 1."""
    chunk: int
    """Its number in the job."""
    rows: int
    """That were read for it, of which a sample may have been taken."""


@dataclass(frozen=True, slots=True)
class PulledTask:
    """A task whose chunk is there, with the state that it is to be trained on."""

    task: Task
    chunk: Chunk
    pulled: Pulled

    @property
    def state(self) -> Float32:
        """float32[u, width], of the chunk's slots."""
        return self.pulled.state


class Team:
    """Workers, a learner each, and the threads that do their work. Leaving the `with` block ends them.

    In a round every worker trains a chunk on the same state. Then what all of them have learnt is added, in
    their order, share by share: each has partitions of its own, and for the next round their state is taken
    right away. So the result of a round does not depend on the speed of threads.
    """

    def __init__(
        self, store: Store, job: str, learners: Sequence[Learner], threads: Threads | None = None
    ) -> None:
        """`job`: as in the tokens of what is pushed. `threads`: to work on, if it has none of its own."""
        self.learners = learners
        self._timings = [Timings() for _ in learners]
        self._unique_s = 0.0  # of whichever thread is free
        self._width = store.width
        self._partitions = store.partitions
        sessions, workers = DirectSessions(store, job), len(learners)
        self._sessions = [sessions.begin(worker) for worker in range(workers)]
        self._lock = Lock()
        self._owned = threads is None and workers > 1
        self._threads = Threads(min(workers, cores()), "worker") if self._owned else threads
        """None: one worker, which works in the caller's thread."""

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned and self._threads is not None:
            self._threads.close()

    @property
    def timings(self) -> Timings:
        """Of all workers."""
        sums = Timings(unique=self._unique_s)
        for each in self._timings:
            sums.add(each)
        return sums

    @property
    def admissions(self) -> AdmissionCounts:
        """Of all workers."""
        sums = AdmissionCounts()
        for learner in self.learners:
            sums.add(learner.admissions)
        return sums

    def prepare(self, examples: Batch | Chunk) -> Batch | Chunk | Future[Chunk]:
        """The examples of a coming task, localized as soon as there is nothing else to do.

        One worker does it itself: what reads for it has more to do than it has.
        """
        if self._threads is None or isinstance(examples, Chunk):
            return examples
        return self._threads.ahead(self._localize, examples)

    def begin(self, tasks: Iterable[Task]) -> list[PulledTask]:
        """The round of these tasks, at most one per worker. A worker starts as soon as its task is there.

        Raises the errors of `tasks`.
        """
        # The threads must not wait for a chunk: it may be theirs to make it.
        return self._together(self._pull, ((task, self._chunk(task)) for task in tasks))

    def learn(
        self, round_: list[PulledTask], clock: int, *, following: Iterable[Task] = ()
    ) -> list[PulledTask]:
        """Learn a round, the `clock`-th; return the one of the `following` tasks, pulled.

        They are asked for while this one trains.

        Raises the errors of `Learner.learn` and of `following`, then nothing is pushed, and of the store.
        """
        step = partial(self._train, peers=len(round_))
        training = [self._start(step, at, each) for at, each in enumerate(round_)]
        try:
            next_round = [self._unpulled(task) for task in following]
        finally:
            wait(training)
        deltas = [each.result() for each in training]
        exchange = partial(self._exchange, clock, round_, deltas, next_round)
        self._together(exchange, self._share([each.chunk.slots for each in round_ + next_round]))
        return next_round

    def _localize(self, examples: Batch | Chunk) -> Chunk:
        started = perf_counter()
        chunk = localize(examples)
        with self._lock:
            self._unique_s += perf_counter() - started
        return chunk

    def _chunk(self, task: Task) -> Chunk:
        return task.examples.result() if isinstance(task.examples, Future) else self._localize(task.examples)

    def _unpulled(self, task: Task) -> PulledTask:
        """The task with an array for its state."""
        chunk = self._chunk(task)
        return PulledTask(
            task, chunk, Pulled(chunk.slots, np.empty((chunk.slots.size, self._width), np.float32))
        )

    def _pull(self, at: int, localized: tuple[Task, Chunk]) -> PulledTask:
        started = perf_counter()
        task, chunk = localized
        pulled = self._sessions[at].pull(chunk.slots)
        self._timings[at].pull += perf_counter() - started
        return PulledTask(task, chunk, pulled)

    def _train(self, at: int, pulled: PulledTask, *, peers: int) -> Float32:
        started, task = perf_counter(), pulled.task
        delta = self.learners[at].learn(
            pulled.chunk,
            pulled.state,
            task.optimizer,
            number=task.chunk,
            first_pass=task.number == 1,
            peers=peers,
        )
        self._timings[at].train += perf_counter() - started
        return delta

    def _exchange(
        self,
        clock: int,
        round_: list[PulledTask],
        deltas: list[Float32],
        next_round: list[PulledTask],
        at: int,
        shares: list[slice],
    ) -> None:
        """Add what was learnt in some partitions, and take their state for the next round."""
        started = perf_counter()
        # Every partition is in one share: it gets the updates in order, and each of them once.
        for worker, (before, delta, share) in enumerate(zip(round_, deltas, shares, strict=False)):
            slots, added, state = before.chunk.slots[share], delta[share], before.state[share]
            if self.learners[worker].admission.probability < 1:  # what is left out takes no memory
                changed = np.logical_or.reduce([column != 0 for column in added.T])
                slots, added, state = slots[changed], added[changed], state[changed]
            self._sessions[worker].push(Pulled(slots, state), added, clock)
        pushed = perf_counter()
        for session, after, share in zip(self._sessions, next_round, shares[len(round_) :], strict=False):
            after.state[share] = session.pull(after.chunk.slots[share]).state
        self._timings[at].push += pushed - started
        self._timings[at].pull += perf_counter() - pushed

    def _share(self, slots: list[Slots]) -> list[list[slice]]:
        """Of each share, where the slots of its partitions are in each of these lists.

        The shares have about as many slots as each other.
        """
        count = len(self.learners)
        cuts = np.array([self._partitions.cuts(each) for each in slots])
        below = cuts.sum(axis=0)
        wanted = np.arange(1, count) * below[-1] // count
        bounds = [0, *np.searchsorted(below, wanted), self._partitions.count]
        edges = cuts[:, bounds].T.tolist()
        return [[slice(*ends) for ends in zip(*each, strict=True)] for each in pairwise(edges)]

    def _start(self, step: Callable[[int, T], U], at: int, item: T) -> Future[U]:
        if self._threads is not None:
            return self._threads.submit(step, at, item)
        done: Future[U] = Future()
        done.set_result(step(at, item))
        return done

    def _together(self, step: Callable[[int, T], U], items: Iterable[T]) -> list[U]:
        """What `step` gives for each item, with its number: all at the same time, from when it is there."""
        running: list[Future[U]] = []
        try:
            for at, item in enumerate(items):
                running.append(self._start(step, at, item))
        finally:
            wait(running)
        return [each.result() for each in running]
