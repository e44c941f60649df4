"""`run_stream_job`: trains on a stream of examples without end, and publishes versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import orjson

from ctr.checkpoint import read_position
from ctr.distributed import JobPosition, train_distributed
from ctr.errors import CtrError, ModelError, StoreError
from ctr.features import Batch
from ctr.interrupts import stop_requests
from ctr.jobs.training.distributed import store_settings
from ctr.jobs.training.outcome import require_places
from ctr.jobs.training.setup import (
    require_evidence_to_forget,
    require_finite,
    starting_point,
    wanted_spec,
)
from ctr.learn import (
    TrainSettings,
    click_rate,
    converted,
    expected_n,
    read_out,
    starting_state,
    weights_of,
)
from ctr.metrics import Metrics, MetricSummary
from ctr.model import DIGESTS, LinearModel, Model, load_optimizer, load_state, read_manifest, save_model
from ctr.optimizers import Float32, Optimizer, choose_optimizer
from ctr.ps import JobBoard, RedisStore, Slots, n_fraction_bits, parse_redis_url
from ctr.registry import Registry, parse_place
from ctr.settings import TrainJob
from ctr.stream import ExampleStream, StreamSource
from ctr.workers import EARLIER, JobDescription, WorkerReport, filters_for, is_of_work, learnt_text

Print = Callable[[str], object]
"""Prints a line."""

_POLL_S = 1.0
_REPORTS_WAIT_S = 5.0
_FIRST_ROWS = 16_384
_LEAST_WATCHED = 1_000
"""The fewest examples for a check of quality: with fewer, log loss and calibration are too uncertain."""
_LEAST_PREDICTED = 10
"""The fewest predicted clicks of which none came for a problem: fewer may be missing by chance."""
_WATCH = "watch"
"""The entry of a version's manifest for the job, should it be resumed."""
_NEW_SHARE = 0.3
"""The weight of the newest interval in the moving average of the log loss."""


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """The outcome of a job that was stopped."""

    model: Model
    saved_to: Path
    examples: int
    progressive: MetricSummary
    published: int
    """Number of versions."""


@dataclass(frozen=True, slots=True)
class _Setup:
    """A job with its stream open and its settings chosen."""

    job: TrainJob
    description: JobDescription
    source: StreamSource
    start: tuple[Slots, Float32] | None

    @property
    def optimizer(self) -> Optimizer:
        return self.description.optimizer_in(0)

    def model(
        self, state: tuple[Slots, Float32], progressive: MetricSummary, **more: Mapping[str, object]
    ) -> Model:
        """The model of a state; `progressive`: metrics of predictions before learning from their rows.

        `more`: further entries of its manifest.
        """
        linear = LinearModel(*weights_of(state, self.optimizer, self.job.model.parent))
        require_finite(linear)
        facts = {
            "optimizer": {**self.description.optimizer.to_json(), "passes": self.description.passes_after(1)},
            "training": {
                "inputs": [self.description.stream],
                DIGESTS: [],
                "rows": progressive.examples,
                "examples": progressive.examples,
                "bad_rows": self.source.bad_rows.count,
                **self.job.manifest(chunk=None, **self.description.origin),
                "chunks": 0,
                "lineage": list(self.description.lineage),
                "interrupted": False,
                "learning_curve": [],
            },
            "metrics": {"progressive": progressive.to_json()},
            "calibration": progressive.to_json()["calibration"],
            **more,
        }
        return Model.of(self.source.spec, linear, facts, state=state)


def run_stream_job(job: TrainJob, print_line: Print) -> StreamOutcome:
    """Train until SIGINT or SIGTERM; then save the model and empty the store.

    Meanwhile, versions are saved and published at intervals while their quality is within bounds. Raises the
    errors of the parts.
    """
    with stop_requests() as stop, ExitStack() as opened:
        require_places(job)
        assert job.stream is not None
        stream = opened.enter_context(closing(ExampleStream(job.stream)))
        opened.callback(_release, stream, job)
        setup = _set_up(job, stream, stop, print_line)
        publisher = _Publisher(setup, print_line, stop)
        opened.callback(publisher.close)
        trained, cluster = train_distributed(
            setup.description,
            setup.source,
            store_settings(job, job.model.parent),
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
            publisher.trim()  # chunks that the model includes, so that the next job starts behind them
            trained.store.drop()
        if publisher.failure is not None:
            raise publisher.failure
    return StreamOutcome(model, job.model, progressive.examples, progressive, publisher.published)


def _set_up(job: TrainJob, stream: ExampleStream, stop: Event, print_line: Print) -> _Setup:
    """Set up a job; for a new model, wait for the first rows of the stream."""
    assert job.stream is not None
    require_evidence_to_forget(job)
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
            return now.forget(adopted, job.forget) if job.forget else adopted

        start = former.slots, converted(former.state, convert, job.model.parent)
    elif not job.resume:
        first = _first_rows(source, stop, print_line)
        needed = max(needed, expected_n(first, TrainSettings().sampling(spec.seed)))
        if spec.bias:
            assert first.labels is not None
            rate = click_rate(first.labels, first.weights) if job.base_rate is None else job.base_rate
            start = starting_state(optimizer, rate, spec.bits)
    stream.claim(_trainer(job))
    first_chunks = stream.positions()
    positions: Mapping[int, int] = dict(enumerate(first_chunks))
    if job.resume and job.checkpoint is not None:
        positions = JobPosition.from_json(read_position(job.checkpoint)).progress
    stream.require(positions)
    n_bits = n_fraction_bits(needed)
    passes, lineage, origin = starting_point(job, former, None)
    # Clicked rows are in the stream twice, so no update may be deferred: each click counts.
    filters = filters_for("asp", {"defer": 0.0, **job.filters})
    description = JobDescription(
        inputs=(),
        stream=stream.url.public,
        stream_from=tuple(first_chunks),
        hashed=False,
        spec=spec.to_yaml(),
        learnt=learnt_text(spec),
        on_bad_rows=job.on_bad_rows,
        rows=1,
        chunk=1,
        shard_chunks=1,
        passes=1,
        passes_before=passes.mean,
        rows_before=passes.rows,
        lineage=tuple(dict(each) for each in lineage),
        origin=dict(origin),
        workers=job.workers,
        safe_adding=job.safe_adding,
        admit=job.admit,
        max_evidence=job.max_evidence,
        consistency="asp",
        staleness=job.staleness,
        stall_s=job.stall_timeout,
        optimizer=optimizer,
        z_bits=optimizer.in_pass(max(passes.mean, 1.0)).z_bits(n_bits),
        n_bits=n_bits,
        filters=filters,
    )
    return _Setup(job, description, source, start)


def _trainer(job: TrainJob) -> str:
    """The name under which a job claims its stream: the same when it is resumed."""
    return parse_redis_url(job.store).public


def _release(stream: ExampleStream, job: TrainJob) -> None:
    with suppress(StoreError):  # then the claim ends by itself
        stream.release(_trainer(job))


def _first_rows(source: StreamSource, stop: Event, print_line: Print) -> Batch:
    """Rows of the stream's oldest chunk. Raises KeyboardInterrupt if `stop` is set before there is one."""
    is_waiting = False
    while not source.stream.first():
        if not is_waiting:
            print_line(f"waiting for the first rows of {source.stream.url.public}")
            is_waiting = True
        if stop.wait(_POLL_S):
            raise KeyboardInterrupt
    return source.sample(_FIRST_ROWS)


@dataclass(slots=True)
class Quality:
    """Progressive validation by intervals, from the totals that workers report."""

    max_loss_rise: float
    max_miscalibration: float
    examples: float = 0.0
    logloss: float = float("nan")
    calibration: float = float("nan")
    usual_logloss: float | None = None
    """A moving average over intervals within bounds."""
    _totals: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def look(self, totals: Mapping[str, Mapping[str, float]]) -> str | None:
        """Take in the totals of each worker (`Metrics.totals`); returns a problem of the latest interval.

        None if there is no problem, or there are too few examples.
        """
        new = dict.fromkeys(("weight", "loss", "predicted", "clicked"), 0.0)
        for worker, total in totals.items():
            earlier = self._totals.get(worker, {})
            for name in new:
                new[name] += total[name] - earlier.get(name, 0.0)
        self.examples = new["weight"]
        if self.examples < _LEAST_WATCHED or (not new["clicked"] and new["predicted"] < _LEAST_PREDICTED):
            return None
        self._totals.update(totals)
        if not new["clicked"]:
            return f"no rows are clicked, and {new['predicted']:,.0f} clicks were predicted"
        self.logloss, self.calibration = new["loss"] / new["weight"], new["predicted"] / new["clicked"]
        usual = self.usual_logloss
        if usual is not None and self.logloss > usual * (1 + self.max_loss_rise):
            return f"log loss {self.logloss:.5f} is more than {self.max_loss_rise:.0%} above {usual:.5f}"
        bound = 1 + self.max_miscalibration
        if not 1 / bound <= self.calibration <= bound:
            return f"calibration {self.calibration:.3f} is not between {1 / bound:.3f} and {bound:.3f}"
        self.usual_logloss = self.logloss if usual is None else usual + _NEW_SHARE * (self.logloss - usual)
        return None


class _Publisher:
    """Publishes versions, checks their quality, and trims the stream, on its own thread."""

    def __init__(self, setup: _Setup, print_line: Print, stop: Event) -> None:
        """It sets `stop` after a permanent failure."""
        self.published = 0
        self.failure: Exception | None = None
        self._setup, self._print, self._stop = setup, print_line, stop
        self._url = parse_redis_url(setup.job.store)
        self._closing = Event()
        self._thread = Thread(target=self._run, name="publisher", daemon=True)
        self._quality = Quality(setup.job.max_loss_rise, setup.job.max_miscalibration)
        self._versions: list[str] = []
        """The versions that this job published and that are still there, the latest last."""
        self._job_id = ""
        self._has_warned = False

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, after finishing the version that is being published."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def trim(self) -> None:
        """Trim the chunks of the stream that nobody needs any more."""
        with closing(JobBoard(self._url)) as board:
            self._trim(board)

    def _run(self) -> None:
        try:
            self._publish_repeatedly()
        except Exception as error:  # noqa: BLE001  (raised at the end of the job, which ends now)
            self.failure = error
            self._stop.set()

    def _publish_repeatedly(self) -> None:
        job = self._setup.job
        next_version = monotonic() + job.publish_every
        with ExitStack() as opened:
            board = store = None
            while not self._closing.wait(_POLL_S):
                try:
                    if board is None or store is None:
                        board = opened.enter_context(closing(JobBoard(self._url)))
                        on_board = board.job()
                        assert on_board is not None
                        # A resumed job has the fraction bits of its checkpoint.
                        description = JobDescription.from_bytes(on_board.description)
                        self._job_id = on_board.id
                        if job.resume:
                            self._continue()
                        store = opened.enter_context(closing(description.join_store(self._url)))
                    self._trim(board)
                    if monotonic() >= next_version:
                        next_version = monotonic() + job.publish_every
                        self._publish_next(board, store)
                except CtrError as error:  # such as a failover of Redis, or a full disk
                    self._print(f"{_clock()} nothing is published: {error}")

    def _continue(self) -> None:
        """Adopt the versions, and their log loss, that the job published before it was resumed."""
        place = self._setup.job.publish
        with suppress(ModelError):  # no version was saved
            watched = read_manifest(self._setup.job.model).get(_WATCH, {})
            if watched.get("job") == self._job_id:
                self._quality.usual_logloss = watched["usual_logloss"]
        versions = [] if place is None else Registry(parse_place(place)[0]).versions()
        own = [each for each in versions if each.manifest.get(_WATCH, {}).get("job") == self._job_id]
        own.sort(key=lambda each: (each.created, each.manifest["training"]["rows"]))
        self._versions = [each.id for each in own]

    def _trim(self, board: JobBoard) -> None:
        self._setup.source.stream.claim(_trainer(self._setup.job))
        position = JobPosition.of(board.look())
        if self._setup.job.checkpoint is not None:
            try:
                saved = read_position(self._setup.job.checkpoint)
            except ModelError:  # there is no checkpoint yet
                return
            if (own := board.job()) is None or saved["job"] != own.id:  # it is of an earlier job
                return
            position = JobPosition.from_json(saved)
        for lane, chunk in position.progress.items():
            # The board has no position for lanes that this job has not trained yet.
            first = self._setup.description.stream_from[lane]
            self._setup.source.stream.trained(lane, max(chunk, first))

    def _publish_next(self, board: JobBoard, store: RedisStore) -> None:
        """Publish a version, or print why not."""
        view = board.look(shards=False)
        blobs = board.reports([f"life:{worker.id}" for worker in view.workers])
        totals = {name: orjson.loads(blob)["totals"] for name, blob in blobs.items()}
        problem, quality = self._quality.look(totals), self._quality
        if not self._has_warned and quality.examples >= _LEAST_WATCHED:
            self._has_warned = True
            for warning in self._setup.source.warnings():
                self._print(f"{_clock()} warning: {warning}")
        if problem is not None:
            self._hold(problem)
            return
        if quality.examples < _LEAST_WATCHED:
            return
        trained = sum(orjson.loads(blob)["evaluated"] for blob in blobs.values())
        progressive = self._progressive(board, trained)
        state = read_out(store, self._setup.job.model.parent)
        watch = {"job": self._job_id, "usual_logloss": quality.usual_logloss}
        model = self._setup.model(state, progressive.summary(), **{_WATCH: watch})
        save_model(model, self._setup.job.model, state)
        place = self._setup.job.publish
        if place is not None:
            where, labels = parse_place(place)
            registry = Registry(where)
            registry.publish(self._setup.job.model, labels)
            self._versions.append(model.id)
            self._remove_older(registry)
        self.published += 1
        self._print(
            f"{_clock()} {quality.examples:,.0f} new examples, log loss {quality.logloss:.5f}, calibration "
            f"{quality.calibration:.3f}; version {model.id}{'' if place is None else f' is in {place}'}"
        )

    def _remove_older(self, registry: Registry) -> None:
        """Remove versions of this job, except the latest ones and those with a label."""
        kept = self._versions[-self._setup.job.keep_versions :]
        for version in set(self._versions).difference(kept):
            with suppress(CtrError):  # it has a label, so it is tried again after the next version
                registry.remove(version)
                self._versions.remove(version)

    def _progressive(self, board: JobBoard, trained: int) -> Metrics:
        """The metrics of the whole job, from reports on at least `trained` examples since its last start.

        Workers report every second; the report of one that has died may never come.
        """
        deadline = monotonic() + _REPORTS_WAIT_S
        while True:
            reports = {name: blob for name, blob in board.reports().items() if is_of_work(name)}
            metrics = {name: WorkerReport.from_bytes(blob).progressive for name, blob in reports.items()}
            reported = sum(each.examples for name, each in metrics.items() if name != EARLIER)
            if reported >= trained or monotonic() > deadline or self._closing.wait(_POLL_S / 4):
                break
        progressive = Metrics()
        for each in metrics.values():
            progressive.merge(each)
        return progressive

    def _hold(self, problem: str) -> None:
        """Print why nothing is published, and roll labels of the latest version back to the previous one."""
        place, outcomes = self._setup.job.publish, [problem]
        if place is not None and self._versions:
            where, labels = parse_place(place)
            registry = Registry(where)
            for label in labels:
                try:
                    if registry.version_of(label) == self._versions[-1]:
                        outcomes.append(
                            f"{label} is {registry.rollback(label)} again (not for servers on --store)"
                        )
                except CtrError as error:
                    outcomes.append(str(error))
        self._print(f"{_clock()} nothing is published: {'; '.join(outcomes)}")


def _clock() -> str:
    return datetime.now().strftime("%H:%M:%S")
