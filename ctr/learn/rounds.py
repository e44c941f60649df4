"""Training on one machine: worker threads over one store, in rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import count, islice
from threading import Event
from time import perf_counter
from uuid import uuid4

from ctr.defaults import SAFE_ADDING
from ctr.errors import DataError
from ctr.features import ExampleSource
from ctr.features.threads import Prefetch, ReaderHangs, Threads
from ctr.learn.learner import WARM_UP_ROWS, Learner, warm_up
from ctr.learn.result import AfterPass, LearningCurve, TrainProgress, TrainResult
from ctr.learn.sampling import Admission, Sampling
from ctr.learn.team import Task, Team
from ctr.learn.whole_model import read_out
from ctr.metrics import Metrics
from ctr.optimizers import NOTHING, Optimizer, Passes
from ctr.ps import Store


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a job runs, apart from the optimizer's own settings."""

    workers: int = 1
    chunk: int = 65_536
    """Examples that a worker trains on between one pull and one push; see `default_chunk`."""
    epochs: int = 1
    """Passes over the data."""
    safe_adding: float = SAFE_ADDING
    """How far workers allow for the others, see `Learner`; 0 adds their updates as they are."""
    admit: float = 1.0
    """The probability that a new slot which occurs once in its chunk is stored, see `Admission`."""
    negative_rate: float = 1.0
    """The probability that a row without a click is learnt from, see `Sampling`."""
    pos_weight: float = 1.0
    """By which the weight of a click is multiplied."""

    def sampling(self, seed: int) -> Sampling:
        """Which rows are learnt from."""
        return Sampling(self.negative_rate, self.pos_weight, seed)


_BLOCK = 65_536  # examples in a block of a hashed data set
_LARGE = 524_288  # examples of a chunk through Redis: a worker holds a few of them


def default_chunk(workers: int, rows: Callable[[], int], *, in_memory: bool = True) -> int:
    """The chunk for this number of workers; `rows`, the number of examples, is called only if it matters.

    In memory it is a block of a hashed data set, which is read as it is; to cut one up takes as long as to
    train it. One worker loses nothing by large chunks. Several see each other's updates only from round to
    round. On 900,000 synthetic rows, two lose none of the log loss with 8 rounds, four 0.09% with 5, eight
    0.08% with 9 and 0.4% with 4. So data with less than 6 rounds of blocks is cut into some 25.

    Through Redis a larger chunk moves fewer slots per example. One worker makes the same model of any, if
    there are chunks enough to overlap. Several are worth 12 chunks each: one is pulled while the one before
    trains, so others' updates come two chunks late. On 1M synthetic rows, two workers with 8 chunks each cost
    0.28% of the log loss, with 12 each 0.11%. What comes after the last row is predicted best if that was
    learnt with all that was learnt before. So a sixth of a chunk is left for the end: on 10M rows, two with
    12 chunks each and no rest cost up to 0.14%, with 18 up to 0.18%, with 24 up to 0.15%; with 12 and a rest,
    at most 0.02%. A worker with data for 32 takes up to 1,048,576 examples: 1.5 GB of memory, and at 2**36
    slots a fifteenth less time.
    """
    if in_memory:
        if workers == 1 or (total := rows()) >= 6 * workers * _BLOCK:
            return _BLOCK
        return min(max(total // (25 * workers), 256), _BLOCK)
    total = rows()
    most = min(total // workers // 32, 2 * _LARGE)
    if workers == 1:
        return max(min(total // 8, _LARGE), 65_536, most)
    return max(min(6 * total // (6 * 12 * workers + 1), _LARGE), 256, most)  # 12 each, and a sixth of one


@dataclass(slots=True)
class Rounds:
    """Trains `store` on the rows of `source` before `stop_row`, once.

    Chunks are dealt to the workers in rounds (bulk-synchronous, see `Team`). So the result depends on the
    data and the settings alone, never on how fast a thread was. With one worker it is sequential FTRL.
    """

    source: ExampleSource
    store: Store
    optimizer: Optimizer
    settings: TrainSettings
    _: KW_ONLY
    before: Passes = NOTHING
    """Over the rows that the store's state comes from."""
    chunks_before: int = 0
    """Chunks of these rows: rounding depends on a chunk's number, so that the result is the same as that of
    one job over all rows."""
    stop_row: int | None = None
    on_progress: Callable[[TrainProgress], None] = lambda _: None
    progress_every_s: float = 0.2
    stop: Event = field(default_factory=Event)
    """Once set, it ends the job after the running round."""
    on_pass: Callable[[AfterPass], object] | None = None
    """Called after each pass that another follows. (Where two passes share a round of several workers, it is
    after that round.) Training waits for it; its time does not count."""
    threads: Threads | None = None
    """The threads of several workers, if they do other work, too."""
    _waited_s: float = field(default=0.0, init=False)
    """For `on_pass`."""
    _team: Team = field(init=False)
    _curve: LearningCurve = field(default_factory=LearningCurve, init=False)
    _examples: int = field(default=0, init=False)
    _rows: int = field(default=0, init=False)
    """Of the first pass."""
    _chunks: int = field(default=0, init=False)
    _failure: Exception | None = field(default=None, init=False)
    """Of the reader."""
    _epoch: int = field(default=0, init=False)
    """That is being read."""
    _passes: int = field(default=1, init=False)
    """The latest pass, from 1."""

    def __post_init__(self) -> None:
        learners = [self._learner() for _ in range(self.settings.workers)]
        self._team = Team(self.store, uuid4().hex, learners, self.threads)

    def _learner(self) -> Learner:
        admission = Admission(self.settings.admit, self.source.spec.seed)
        return Learner(self.settings.safe_adding, admission, self._sampling)

    @property
    def _sampling(self) -> Sampling:
        return self.settings.sampling(self.source.spec.seed)

    def train(self) -> TrainResult:
        """Raises DataError when there is no row to learn from, StoreError when the store refuses."""
        sample = self._sampling.sample(self.source, WARM_UP_ROWS)
        warm_up(sample, self.store.bits, self.optimizer, self._learner())
        started = perf_counter()
        try:
            with self._team, Prefetch(self._tasks(), 2 * self.settings.workers, self.stop) as tasks:
                clock, reported = 0, started
                several = self.settings.workers > 1
                round_ = self._team.begin(self._deal(tasks, clock))
                while round_ and self._failure is None and not self.stop.is_set():
                    first, last = round_[0].task.number, round_[-1].task.number
                    if first > self._passes:
                        self._end_pass(self._passes)
                    following = self._deal(tasks, clock + 1) if several else ()
                    next_round = self._team.learn(round_, clock, following=following)
                    clock += 1
                    self._examples += sum(each.task.rows for each in round_)
                    self._rows += sum(each.task.rows for each in round_ if each.task.number == 1)
                    if first < last:
                        self._end_pass(first)
                    self._chunks += len(round_)
                    self._passes = last
                    if clock == 1:
                        self._curve.begin(self._team.learners[0].first_chunk)
                    self._curve.add(learner.progressive for learner in self._team.learners)
                    if (now := perf_counter()) - reported > self.progress_every_s:
                        self.on_progress(self._progress())
                        reported = now
                    round_ = next_round
                    if not several and not self.stop.is_set():
                        round_ = self._team.begin(self._deal(tasks, clock))
                if self._failure is not None:
                    raise self._failure
                interrupted = self.stop.is_set() and (next(tasks, None) is not None or bool(round_))
        except ReaderHangs:
            interrupted = True
        seconds = perf_counter() - started - self._waited_s
        if self._examples == 0 and not self.stop.is_set():
            raise DataError("the input has no row to learn from: check the file, or the hold-out fraction.")
        progressive = self._merged([learner.progressive for learner in self._team.learners])
        return TrainResult(
            examples=self._examples,
            seconds=seconds,
            rows=self._rows,
            progressive=progressive,
            timings=self._team.timings,
            admissions=self._team.admissions,
            passes=self.before.after(self._passes, self._rows),
            chunks=self.chunks_before + self._chunks,
            interrupted=interrupted,
            learning_curve=self._curve.points(),
        )

    def _deal(self, tasks: Iterator[Task], clock: int) -> Iterator[Task]:
        """The tasks of a round. What keeps it from being whole is raised when the one before is over."""
        try:
            for task in islice(tasks, self._workers(clock)):
                yield task
                if self.stop.is_set():  # what was taken already makes the job interrupted
                    return
        except Exception as error:  # noqa: BLE001  (see `train`)
            self._failure = error

    def _workers(self, clock: int) -> int:
        """How many workers a round has.

        The first chunks of a new model teach every worker the same, so it begins with one, then 2, 4 and so
        on. When all began at once, two with blocks of 900,000 rows lost 0.12% of the log loss, and four with
        chunks of 2,000 of 48,000 real rows 0.18%; so they lose nothing.
        """
        if self.chunks_before:
            return self.settings.workers
        return min(self.settings.workers, 1 << min(clock, 30))

    def _end_pass(self, number: int) -> None:
        if self.on_pass is None:
            return
        started = perf_counter()
        self.on_pass(AfterPass(number, read_out(self.store), self.before.after(number, self._rows)))
        self._waited_s += perf_counter() - started

    def _tasks(self) -> Iterator[Task]:
        chunks = count(self.chunks_before)
        first = 0
        for epoch in range(self.settings.epochs):
            self._epoch = epoch
            number, rows = epoch + 1, first
            optimizer = self.optimizer.in_pass(self.before.during(number, rows))
            first = 0
            for examples in self.source.batches(self.settings.chunk, stop=self.stop_row):
                kept = self._sampling.apply(examples, first)
                yield Task(self._team.prepare(kept), optimizer, number, next(chunks), len(examples))
                first += len(examples)

    @staticmethod
    def _merged(parts: list[Metrics]) -> Metrics:
        merged = Metrics()
        for part in parts:
            merged.merge(part)
        return merged

    def _progress(self) -> TrainProgress:
        if self.stop_row is None:
            # the reader is a few chunks ahead of the workers: close enough for a progress bar
            fraction = (self._epoch + self.source.fraction_read) / self.settings.epochs
        else:
            fraction = self._examples / max(self.stop_row * self.settings.epochs, 1)
        first = self._passes == 1
        parts = [each.progressive if first else each.later_passes for each in self._team.learners]
        return TrainProgress(self._examples, min(fraction, 1.0), self._merged(parts).logloss, not first)
