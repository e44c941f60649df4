"""`run_stream_job`: training that never stops, from a stream of examples to versions that are published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import numpy as np
import orjson

from ctr.checkpoint import read_position
from ctr.distributed import CheckpointSettings, StoreSettings, train_distributed
from ctr.errors import CtrError, ModelError
from ctr.features import Batch
from ctr.interrupts import stop_requests
from ctr.jobs.training.outcome import require_places
from ctr.jobs.training.setup import wanted_spec
from ctr.learn import (
    TrainSettings,
    click_rate,
    converted,
    expected_n,
    read_out,
    starting_state,
    weights_of,
)
from ctr.metrics import MetricSummary
from ctr.model import DIGESTS, LinearModel, Model, SavedState, load_optimizer, load_state, save_model
from ctr.optimizers import Float32, Optimizer, choose_optimizer
from ctr.ps import JobBoard, RedisStore, Slots, n_fraction_bits, parse_redis_url
from ctr.registry import Registry, parse_place
from ctr.settings import TrainJob
from ctr.stream import ExampleStream, StreamSource
from ctr.workers import JobDescription, WorkerReport, collect, filters_for, learnt_text

Say = Callable[[str], object]
"""Prints a line."""

_LOOK_S = 1.0
_FIRST_ROWS = 16_384
_LEAST_WATCHED = 1_000
"""Examples since the last look at quality; of fewer, log loss and calibration say little."""
_REMEMBERED = 0.3
"""How much one interval changes the log loss that later ones are compared with."""


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """What came of a job until it was stopped."""

    model: Model
    saved_to: Path
    examples: int
    progressive: MetricSummary
    published: int
    """Versions."""


@dataclass(frozen=True, slots=True)
class _Setup:
    job: TrainJob
    description: JobDescription
    former: SavedState | None
    source: StreamSource
    start: tuple[Slots, Float32] | None

    @property
    def optimizer(self) -> Optimizer:
        return self.description.optimizer_in(0)

    def model(self, state: tuple[Slots, Float32], progressive: MetricSummary) -> Model:
        """The model of a state, with what was predicted before it was learnt."""
        linear = LinearModel(*weights_of(state, self.optimizer, self.job.model.parent))
        if not np.isfinite(linear.weights.sum(dtype=np.float64)):
            raise ModelError(
                "training diverged: a weight is not a number; lower alpha, or scale large values."
            )
        facts = {
            "optimizer": {**self.optimizer.to_json(), "passes": 1.0},
            "training": {
                "inputs": [self.description.stream],
                DIGESTS: [],
                "rows": progressive.examples,
                "examples": progressive.examples,
                "bad_rows": self.source.bad_rows.count,
                **self.job.manifest(chunk=None, base_rate=None),
                "chunks": 0,
                "lineage": [] if self.former is None else list(self.former.lineage),
                "interrupted": False,
                "learning_curve": [],
            },
            "metrics": {"progressive": progressive.to_json()},
            "calibration": progressive.to_json()["calibration"],
        }
        return Model.of(self.source.spec, linear, facts, state=state)


def run_stream_job(job: TrainJob, say: Say) -> StreamOutcome:
    """Train until SIGINT or SIGTERM; then the model is saved, and the store is emptied.

    Meanwhile, versions are saved and published every so often while their quality is within bounds. Raises
    the errors of the parts.
    """
    with stop_requests() as stop, ExitStack() as opened:
        require_places(job)
        assert job.stream is not None
        stream = opened.enter_context(closing(ExampleStream(job.stream)))
        setup = _set_up(job, stream, stop, say)
        publisher = _Publisher(setup, say, stop)
        checkpoints = None
        if job.checkpoint is not None:
            checkpoints = CheckpointSettings(job.checkpoint, job.checkpoint_every)
        opened.callback(publisher.close)
        trained, cluster = train_distributed(
            setup.description,
            setup.source,
            StoreSettings(job.store, checkpoints, job.resume, job.lease, job.model.parent),
            start=setup.start,
            stop=stop,
            on_start=lambda _: publisher.start(),
        )
        publisher.close()
        assert trained.store is not None
        with closing(trained.store):
            progressive = cluster.report.progressive.summary()
            model = setup.model(trained.state, progressive)
            save_model(model, job.model, trained.state)
            publisher.let_go()  # what is in the model, so that a job that goes on from it begins there
            trained.store.drop()
        if publisher.failure is not None:
            raise publisher.failure
    return StreamOutcome(model, job.model, progressive.examples, progressive, publisher.published)


def _set_up(job: TrainJob, stream: ExampleStream, stop: Event, say: Say) -> _Setup:
    """What a job starts with; of a new model, this waits for the first rows of the stream."""
    assert job.stream is not None
    spec = wanted_spec(job)
    if spec is None:
        raise ModelError("a stream needs a feature spec: give one, or a model to train on from.")
    former = None if job.warm_start is None else load_state(job.warm_start, spec)
    optimizer = choose_optimizer(
        job.optimizer_settings, None if job.warm_start is None else load_optimizer(job.warm_start)
    )
    source = StreamSource(stream, spec, "fail" if job.on_bad_rows == "fail" else "skip")
    start, needed = None, optimizer.needed_n
    if former is not None:
        needed = max(needed, 2 * float(former.state[:, 1].max(initial=0)))
        before, now = (each.in_pass(former.passes) for each in (former.optimizer, optimizer))

        def convert(state: Float32) -> Float32:
            adopted = now.adopt(state, before)
            return optimizer.forget(adopted, job.forget) if job.forget else adopted

        start = former.slots, converted(former.state, convert, job.model.parent)
    elif not job.resume:
        first = _first_rows(source, stop, say)
        needed = max(needed, expected_n(first, TrainSettings().sampling(spec.seed)))
        if spec.bias:
            assert first.labels is not None
            rate = click_rate(first.labels, first.weights) if job.base_rate is None else job.base_rate
            start = starting_state(optimizer, rate, spec.bits)
    n_bits = n_fraction_bits(needed)
    # Of rows that are there twice, nothing may wait in logs: each click counts.
    filters = filters_for("asp", {"defer": 0.0, **job.filters})
    description = JobDescription(
        inputs=(),
        stream=stream.url.public,
        stream_from=tuple(stream.positions()),
        hashed=False,
        spec=spec.to_yaml(),
        learnt=learnt_text(spec),
        on_bad_rows=job.on_bad_rows,
        rows=1,
        chunk=1,
        shard_chunks=1,
        passes=1,
        passes_before=0.0,
        workers=job.workers,
        safe_adding=job.safe_adding,
        admit=job.admit,
        max_evidence=job.max_evidence,
        consistency="asp",
        staleness=job.staleness,
        stall_s=job.stall_timeout,
        optimizer=optimizer,
        z_bits=optimizer.z_bits(n_bits),
        n_bits=n_bits,
        filters=filters,
    )
    return _Setup(job, description, former, source, start)


def _first_rows(source: StreamSource, stop: Event, say: Say) -> Batch:
    """Rows of the stream's oldest chunk. Raises KeyboardInterrupt when `stop` is set before there is any."""
    waits = False
    while source.stream.first() is None:
        if not waits:
            say(f"waiting for the first rows of {source.stream.url}")
            waits = True
        if stop.wait(_LOOK_S):
            raise KeyboardInterrupt
    return source.sample(_FIRST_ROWS)


@dataclass(slots=True)
class Quality:
    """Progressive validation over a while, from what workers report of all that they have done."""

    max_loss_rise: float
    max_miscalibration: float
    examples: float = 0.0
    logloss: float = float("nan")
    calibration: float = float("nan")
    usual_logloss: float | None = None
    """A moving average over intervals within bounds."""
    _seen: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def look(self, totals: Mapping[str, Mapping[str, float]]) -> str | None:
        """Note the totals of each worker (`Metrics.totals`); what is wrong with those since the last look.

        None also while they are too few to say.
        """
        new = dict.fromkeys(("weight", "loss", "predicted", "clicked"), 0.0)
        for worker, now in totals.items():
            before = self._seen.get(worker, {})
            for name in new:
                new[name] += now[name] - before.get(name, 0.0)
        self.examples = new["weight"]
        if self.examples < _LEAST_WATCHED or not new["clicked"]:
            return None
        self._seen.update(totals)
        self.logloss, self.calibration = new["loss"] / new["weight"], new["predicted"] / new["clicked"]
        usual = self.usual_logloss
        if usual is not None and self.logloss > usual * (1 + self.max_loss_rise):
            return f"log loss {self.logloss:.5f} is more than {self.max_loss_rise:.0%} above {usual:.5f}"
        within = 1 + self.max_miscalibration
        if not 1 / within <= self.calibration <= within:
            return f"calibration {self.calibration:.3f} is not between {1 / within:.3f} and {within:.3f}"
        self.usual_logloss = self.logloss if usual is None else usual + _REMEMBERED * (self.logloss - usual)
        return None


class _Publisher:
    """Publishes versions, watches their quality, and lets the stream go; on a thread of its own."""

    def __init__(self, setup: _Setup, say: Say, stop: Event) -> None:
        """It sets `stop` when it fails for a reason that will not pass."""
        self.published = 0
        self.failure: Exception | None = None
        self._setup, self._say, self._stop = setup, say, stop
        self._url = parse_redis_url(setup.job.store)
        self._closing = Event()
        self._thread = Thread(target=self._run, name="publisher", daemon=True)
        self._quality = Quality(setup.job.max_loss_rise, setup.job.max_miscalibration)
        self._is_held = False
        """Whether nothing is published because of its quality."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Wait until what is being published is published."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def let_go(self) -> None:
        """Let the stream go up to where nobody needs it any more."""
        with closing(JobBoard(self._url)) as board:
            self._let_go(board)

    def _run(self) -> None:
        try:
            self._publish_on()
        except Exception as error:  # noqa: BLE001  (raised at the end of the job, which ends now)
            self.failure = error
            self._stop.set()

    def _publish_on(self) -> None:
        job = self._setup.job
        next_version = monotonic() + job.publish_every
        with ExitStack() as opened:
            board = store = None
            while not self._closing.wait(_LOOK_S):
                try:
                    if board is None or store is None:
                        board = opened.enter_context(closing(JobBoard(self._url)))
                        store = opened.enter_context(closing(self._setup.description.join_store(self._url)))
                    self._let_go(board)
                    if monotonic() >= next_version:
                        next_version = monotonic() + job.publish_every
                        self._look(board, store)
                except CtrError as error:  # such as Redis that fails over, or a disk that is full
                    self._say(f"{_clock()} nothing is published: {error}")

    def _let_go(self, board: JobBoard) -> None:
        positions = {lane: each.progress for lane, each in board.look().unfinished.items()}
        if self._setup.job.checkpoint is not None:
            try:
                saved = read_position(self._setup.job.checkpoint)["progress"]
            except ModelError:  # there is none yet
                return
            positions = {int(lane): progress for lane, progress in saved.items()}
        for lane, position in positions.items():
            # Of a lane that this job has had nothing of yet, the board has no position.
            first = self._setup.description.stream_from[lane]
            self._setup.source.stream.trained(lane, max(position, first))

    def _look(self, board: JobBoard, store: RedisStore) -> None:
        """Publish a version, or say why not."""
        view = board.look(shards=False)
        blobs = board.reports([f"life:{worker.id}" for worker in view.workers])
        totals = {name: orjson.loads(blob)["totals"] for name, blob in blobs.items()}
        problem, quality = self._quality.look(totals), self._quality
        if problem is not None:
            self._hold(problem)
            return
        if quality.examples < _LEAST_WATCHED:
            return
        report = WorkerReport()
        for blob in collect(board, view, store.bits).values():
            report.add(WorkerReport.from_bytes(blob))
        state = read_out(store, self._setup.job.model.parent)
        model = self._setup.model(state, report.progressive.summary())
        save_model(model, self._setup.job.model, state)
        where = self._published()
        self.published += 1
        self._is_held = False
        self._say(
            f"{_clock()} {quality.examples:,.0f} examples, log loss {quality.logloss:.5f}, calibration "
            f"{quality.calibration:.3f}; version {model.id}{where}"
        )

    def _published(self) -> str:
        place = self._setup.job.publish
        if place is None:
            return ""
        registry, labels = parse_place(place)
        Registry(registry).publish(self._setup.job.model, labels)
        return f" is in {place}"

    def _hold(self, problem: str) -> None:
        """Publish nothing, and let labels go back to the version before, once."""
        back = ""
        if not self._is_held and self._setup.job.publish is not None:
            registry, labels = parse_place(self._setup.job.publish)
            back = "".join(f"; {each} is {Registry(registry).rollback(each)} again" for each in labels)
        self._is_held = True
        self._say(f"{_clock()} nothing is published: {problem}{back}")


def _clock() -> str:
    return datetime.now().strftime("%H:%M:%S")
