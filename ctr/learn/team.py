"""`Team`: worker threads over one store; each trains a chunk at the same time."""

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
    """The number of the pass, from 1."""
    chunk: int
    """The number of the chunk in the job."""
    rows: int
    """The rows that were read for it, before sampling."""


@dataclass(frozen=True, slots=True)
class PulledTask:
    """A task with its chunk and the state to train on."""

    task: Task
    chunk: Chunk
    pulled: Pulled

    @property
    def state(self) -> Float32:
        """float32[u, width]: the state of the chunk's slots."""
        return self.pulled.state


class Team:
    """Workers with a learner each, and the threads that run them. Leaving the `with` block ends the threads.

    In a round every worker trains a chunk on the same state. Then the changes of all workers are added, in
    the order of workers. This is split into shares of partitions, and each share also pulls its state for the
    next round. So the result of a round does not depend on the speed of threads.
    """

    def __init__(
        self, store: Store, job: str, learners: Sequence[Learner], threads: Threads | None = None
    ) -> None:
        """`job`: the job's id in the tokens of pushes. `threads`: threads to use; None: its own."""
        self.learners = learners
        self._timings = [Timings() for _ in learners]
        self._unique_s = 0.0  # over all threads
        self._width = store.width
        self._partitions = store.partitions
        sessions, workers = DirectSessions(store, job), len(learners)
        self._sessions = [sessions.begin(worker) for worker in range(workers)]
        self._lock = Lock()
        self._owned = threads is None and workers > 1
        self._threads = Threads(min(workers, cores()), "worker") if self._owned else threads
        """None: one worker, which runs in the caller's thread."""

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned and self._threads is not None:
            self._threads.close()

    @property
    def timings(self) -> Timings:
        """Of all workers."""
        total = Timings(unique=self._unique_s)
        for timings in self._timings:
            total.add(timings)
        return total

    @property
    def admissions(self) -> AdmissionCounts:
        """Of all workers."""
        total = AdmissionCounts()
        for learner in self.learners:
            total.add(learner.admissions)
        return total

    def prepare(self, examples: Batch | Chunk) -> Batch | Chunk | Future[Chunk]:
        """The examples of a coming task; an idle thread localizes them.

        A single worker localizes them itself, as its reader is busier than it is.
        """
        if self._threads is None or isinstance(examples, Chunk):
            return examples
        return self._threads.ahead(self._localize, examples)

    def begin(self, tasks: Iterable[Task]) -> list[PulledTask]:
        """Pull the state for a round of tasks, at most one per worker. A worker starts once it has its task.

        Raises the errors of `tasks`.
        """
        # Threads must not wait for a chunk, as it may be theirs to localize.
        return self._together(self._pull, ((task, self._chunk(task)) for task in tasks))

    def learn(
        self, round_: list[PulledTask], clock: int, *, following: Iterable[Task] = ()
    ) -> list[PulledTask]:
        """Learn the `clock`-th round; returns the round of the `following` tasks, pulled.

        `following` is consumed while this round trains. Raises the errors of `Learner.learn` and of
        `following`, in which case nothing is pushed, and of the store.
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
        """The task with an empty array for its state."""
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
        """Push the changes of some partitions, and pull their state for the next round."""
        started = perf_counter()
        # Every partition is in exactly one share, so it gets each update once, in order.
        for worker, (before, delta, share) in enumerate(zip(round_, deltas, shares, strict=False)):
            slots, added, state = before.chunk.slots[share], delta[share], before.state[share]
            if self.learners[worker].admission.probability < 1:  # slots that are not stored take no memory
                changed = np.logical_or.reduce([column != 0 for column in added.T])
                slots, added, state = slots[changed], added[changed], state[changed]
            self._sessions[worker].push(Pulled(slots, state), added, clock)
        pushed = perf_counter()
        for session, after, share in zip(self._sessions, next_round, shares[len(round_) :], strict=False):
            after.state[share] = session.pull(after.chunk.slots[share]).state
        self._timings[at].push += pushed - started
        self._timings[at].pull += perf_counter() - pushed

    def _share(self, slots: list[Slots]) -> list[list[slice]]:
        """For each share, where the slots of its partitions are in each of these lists.

        The shares have about equally many slots.
        """
        count = len(self.learners)
        cuts = np.array([self._partitions.cuts(each) for each in slots])
        below = cuts.sum(axis=0)
        targets = np.arange(1, count) * below[-1] // count
        bounds = [0, *np.searchsorted(below, targets), self._partitions.count]
        edges = cuts[:, bounds].T.tolist()
        return [[slice(*ends) for ends in zip(*each, strict=True)] for each in pairwise(edges)]

    def _start(self, step: Callable[[int, T], U], at: int, item: T) -> Future[U]:
        if self._threads is not None:
            return self._threads.submit(step, at, item)
        done: Future[U] = Future()
        done.set_result(step(at, item))
        return done

    def _together(self, step: Callable[[int, T], U], items: Iterable[T]) -> list[U]:
        """The results of `step` for each item and its number; each call starts once its item is there."""
        running: list[Future[U]] = []
        try:
            for at, item in enumerate(items):
                running.append(self._start(step, at, item))
        finally:
            wait(running)
        return [each.result() for each in running]
