"""A training job from its inputs to a saved model: what `ctr train` runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from threading import Event
from typing import Any

from ctr.distributed import DistributedFacts, Trained
from ctr.errors import CtrError, DataError, ModelError, StoreError
from ctr.interrupts import stop_requests
from ctr.jobs.pass_evaluations import PassEvaluations
from ctr.jobs.remains import Remains
from ctr.jobs.train_job import TrainJob
from ctr.learn import (
    Float32,
    Optimizer,
    TrainResult,
    TrainSettings,
    base_rate,
    choose_optimizer,
    default_chunk,
    read_out,
    starting_state,
    train,
)
from ctr.metrics import MetricSummary
from ctr.model import (
    LinearModel,
    Model,
    SavedState,
    evaluate,
    load_state,
    require_model_or_nothing,
    save_model,
    update_manifest,
)
from ctr.outputs import printable, require_writable
from ctr.progress import Report, progress
from features import (
    BadRows,
    ExampleSource,
    FeatureSpec,
    RawSource,
    Slots,
    load_spec,
    open_source,
    remove_drafts,
)
from ps import Store, Token, open_store, require_store_url, without_password

# What a job through Redis needs is imported where it is needed: training in memory does without.

_LARGE_CHUNK = 1 << 18  # the largest default; counting rows takes time, so only above it


@dataclass(frozen=True, slots=True)
class TrainOutcome:
    """What came of a job."""

    job: TrainJob
    optimizer: Optimizer
    settings: TrainSettings
    result: TrainResult
    progressive: MetricSummary
    holdout: MetricSummary | None
    """None also when evaluation was stopped."""
    holdout_by_pass: Mapping[int, MetricSummary]
    """The same after each pass of this run but the last; none of those that were not evaluated."""
    model: Model
    saved_to: Path
    bad_rows: BadRows
    """Of training."""
    holdout_bad_rows: BadRows | None
    warnings: Sequence[str]
    """What the first rows show that the user should know, see `RawSource.warnings`."""
    stopped: bool
    """Whether SIGINT or SIGTERM ended training or evaluation."""
    distributed: DistributedFacts | None = None
    left_in_store: str | None = None
    """Why Redis still holds the parameters, if it does."""

    @property
    def progressive_lag_chunks(self) -> int | None:
        """How many chunks of other workers a progressive prediction may not know of; None: no bound."""
        others = self.settings.workers - 1
        if self.distributed is None or self.job.consistency == "bsp" or not others:
            return others
        return None if self.job.consistency == "asp" else others * (self.job.staleness + 1)

    def _moved(self, did: DistributedFacts) -> dict[str, Any]:
        """What went between workers and store."""
        report, examples = did.report, max(self.result.examples, 1)
        return {
            "bytes_sent": report.bytes_sent,
            "bytes_received": report.bytes_received,
            "bytes_per_example": (report.bytes_sent + report.bytes_received) / examples,
            "keys_per_example": (report.counts.pulled + report.counts.pushed) / examples,
            "filters": report.counts.to_json(),
            "repeated_requests": report.troubles,
            "sent_again": report.sent_again,
            "saturations": {"z": report.saturated_z, "n": report.saturated_n},
            "workers_seen": did.workers_seen,
            "dead_workers": did.dead_workers,
            "checkpoints": did.checkpoints,
            "failed_checkpoints": did.failed_checkpoints,
            "resumed_from": self.result.resumed_from,
        }

    def to_json(self) -> dict[str, Any]:
        """The summary that `--json` writes."""
        settings, timings = self.settings, self.result.timings
        progressive = self.progressive.to_json()
        return {
            "examples": self.result.examples,
            "rows": self.result.rows,
            "seconds": self.result.seconds,
            "examples_per_second": self.result.examples / max(self.result.seconds, 1e-9),
            "logloss": progressive["logloss"],
            "auc": progressive["auc"],
            "workers": settings.workers,
            "store": without_password(self.job.store),
            "settings": {
                **self.optimizer.to_json(),
                "chunk": settings.chunk,
                "epochs": settings.epochs,
                "safe_adding": settings.safe_adding,
                "base_rate": self.model.manifest["training"]["base_rate"],
                "bits": self.model.spec.bits,
            },
            "worker_seconds": timings.to_json(),
            "moved": None if self.distributed is None else self._moved(self.distributed),
            "holdout": None if self.holdout is None else self.holdout.to_json(),
            "holdout_by_pass": [
                {"pass": number, **summary.to_json()} for number, summary in self.holdout_by_pass.items()
            ],
            "progressive_lag_chunks": self.progressive_lag_chunks,
            "bad_rows": self.bad_rows.count,
            "warnings": list(self.warnings),
            "holdout_bad_rows": self.holdout_bad_rows.count if self.holdout_bad_rows else 0,
            "interrupted": self.stopped,
            "model": self.model.id,
            "saved_to": printable(self.saved_to),
            "left_in_store": self.left_in_store,
        }


def run_train_job(
    job: TrainJob, show: Callable[[str], AbstractContextManager[Report]] = progress
) -> TrainOutcome:
    """Train, save the model, and evaluate it on the hold-out; `show` is asked for a progress per phase.

    SIGINT or SIGTERM ends training after the running round; what was learnt so far is then saved beside
    `job.model` (suffix `.interrupted`), and a model that was there stays. The model is on disk before it is
    evaluated, and its metrics are added to it; a store in Redis is emptied at the very end.

    When nothing was learnt yet, or at a second signal, KeyboardInterrupt is raised, whose text says what is
    left of the job. Raises the errors of the parts; what can be checked is checked before training.
    """
    remains = Remains(job.store, job.model, job.checkpoint, job.resume)
    try:
        with stop_requests() as stop:
            return _run(job, show, stop, remains)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(str(remains)) from None
    except CtrError as error:
        if remains.saved_to is None and remains.in_store:
            raise type(error)(f"{error} {remains}") from error
        raise


def _run(
    job: TrainJob, show: Callable[[str], AbstractContextManager[Report]], stop: Event, remains: Remains
) -> TrainOutcome:
    require_store_url(job.store)
    _check_places(job)
    spec = None if job.spec is None else load_spec(job.spec)
    source = open_source(
        job.inputs,
        spec,
        on_bad_rows=job.on_bad_rows,
        quarantine=job.quarantine,
        max_bad_fraction=job.max_bad_fraction,
    )
    optimizer, start = _start(job, source.spec)
    judged_on = _holdout(job, source)
    rate = _base_rate(job, source, judged_on)
    settings = _settings(job, source, judged_on)
    # New data goes on with the last pass over the old.
    passes_before = 0 if start is None else start.passes - 1
    later = PassEvaluations(
        lambda number, state: _evaluated(state, optimizer.in_pass(passes_before + number), judged_on, stop)
    )
    trained = _learn(
        job, settings, source, optimizer, rate, start, passes_before, judged_on, later, show, stop, remains
    )
    result, state, store, distributed = trained.result, trained.state, trained.store, trained.distributed
    with nullcontext() if store is None else closing(store):
        if result.examples == 0:
            _empty(store, remains)
            remains.began = False
            raise KeyboardInterrupt
        weights = optimizer.in_pass(result.passes).weights(state[1])
        linear = LinearModel.of_weights(state[0], weights)
        model = Model.of(source.spec, linear, _facts(job, settings, optimizer, rate, result))
        saved_to = job.interrupted if result.interrupted else job.model
        _save(model, saved_to, state, remains)
        holdout, by_pass, failure = None, {}, None
        if judged_on is not None:
            later.wait()  # the rows are read for one evaluation at a time
            try:
                if not stop.is_set():
                    holdout = _judge(model, saved_to, judged_on, show, stop)
                by_pass = later.summaries()
            except CtrError as error:
                failure = error
        left = _empty(store, remains)
    if failure is not None:
        raise type(failure)(
            f"{failure} The model was trained and is in {saved_to}; only evaluation it failed."
            + (f" {left}" if left else "")
        ) from failure
    return TrainOutcome(
        job=job,
        optimizer=optimizer,
        settings=settings,
        result=result,
        progressive=result.progressive.summary(),
        holdout=holdout,
        holdout_by_pass=by_pass,
        model=model,
        saved_to=saved_to,
        bad_rows=source.bad_rows if distributed is None else distributed.report.bad_rows,
        warnings=source.warnings() if isinstance(source, RawSource) else [],
        holdout_bad_rows=None if judged_on is None else judged_on.source.bad_rows,
        stopped=result.interrupted or (judged_on is not None and holdout is None),
        distributed=distributed,
        left_in_store=left,
    )


def _check_places(job: TrainJob) -> None:
    """Raise unless model and checkpoint can be written."""
    for place in (job.model, job.interrupted):
        require_model_or_nothing(place)
        require_writable(place)
        remove_drafts(place)
    if job.checkpoint is not None:
        from ctr.checkpoint import require_checkpoint_or_nothing

        require_checkpoint_or_nothing(job.checkpoint)
        if job.checkpoint.resolve() in (job.model.resolve(), job.interrupted.resolve()):
            raise ModelError(f"{job.checkpoint}: is for the model; give another folder for the checkpoint.")


def _save(model: Model, place: Path, state: tuple[Slots, Float32], remains: Remains) -> None:
    """Save the model at `place`; what no store holds any more is put elsewhere rather than lost."""
    try:
        save_model(model, place, state)
    except ModelError as error:
        if remains.in_store:
            raise
        rescued = Path(tempfile.gettempdir()) / f"ctr-{model.id}-{token_hex(4)}"
        try:
            save_model(model, rescued, state)
        except ModelError as other:
            raise ModelError(
                f"{error} There was no room for it in {rescued.parent} either: it is lost."
            ) from other
        raise ModelError(f"{error} It was saved to {rescued} instead: move it from there.") from error
    remains.saved_to = place


def _empty(store: Store | None, remains: Remains) -> str | None:
    """Drop what is in the store, as it is not needed any more; what to tell if that fails."""
    if store is None or not remains.in_store:
        return None  # servers of our own end with the job
    try:
        store.drop()
    except StoreError as error:
        return f"{error} {remains}"
    remains.in_store = False
    return None


@dataclass(frozen=True, slots=True)
class _Holdout:
    """Rows to judge on: those of `source` from `start` on."""

    source: ExampleSource
    start: int
    training_stops: int | None
    """The row of the training inputs at which the hold-out starts, if it is part of them."""


def _start(job: TrainJob, spec: FeatureSpec) -> tuple[Optimizer, SavedState | None]:
    """The optimizer, and the state to go on from."""
    if job.warm_start is None:
        return choose_optimizer(job.optimizer), None
    saved = load_state(job.warm_start, spec)
    return choose_optimizer(job.optimizer, saved.optimizer), saved


def _base_rate(job: TrainJob, source: ExampleSource, judged_on: _Holdout | None) -> float | None:
    """Where the bias starts; None where there is none, and where the job goes on from a state."""
    if not source.spec.bias:
        if job.base_rate is not None:
            raise ModelError(
                "a base rate needs a bias: remove `bias: false` from the spec, or leave out --base-rate."
            )
        return None
    if job.warm_start is not None or job.resume:
        return None
    if job.base_rate is not None:
        return job.base_rate
    return base_rate(source, None if judged_on is None else judged_on.training_stops)


def _holdout(job: TrainJob, source: ExampleSource) -> _Holdout | None:
    def opened(inputs: Sequence[Path]) -> ExampleSource:
        # a source of its own: its bad rows are not training's
        quarantine = job.holdout_quarantine
        return open_source(
            inputs,
            source.spec,
            on_bad_rows=job.on_bad_rows,
            quarantine=quarantine,
            max_bad_fraction=job.max_bad_fraction,
        )

    if job.holdout:
        other = opened(job.holdout)
        if len(other.sample(1)) == 0:
            raise DataError(f"{job.holdout[0]}: the hold-out has no row to judge on.")
        return _Holdout(other, 0, None)
    if job.holdout_fraction:
        rows = source.count_rows()
        kept = round(rows * job.holdout_fraction)
        if not 0 < kept < rows:
            raise DataError(
                f"a hold-out of {job.holdout_fraction} of {rows:,} rows is {kept:,}; choose a fraction that "
                "leaves rows for training and for evaluation."
            )
        return _Holdout(opened(job.inputs), rows - kept, rows - kept)
    return None


def _settings(job: TrainJob, source: ExampleSource, judged_on: _Holdout | None) -> TrainSettings:
    def rows() -> int:
        stop = None if judged_on is None else judged_on.training_stops
        return source.count_rows() if stop is None else stop

    chunk = job.chunk
    if chunk is None and job.resume and job.checkpoint is not None:
        from ctr.checkpoint import read_job

        chunk = int(read_job(job.checkpoint)["chunk"])  # that of as many workers as it had then
    if chunk is None:
        chunk = default_chunk(job.workers, rows, in_memory=job.in_memory)
    if chunk > _LARGE_CHUNK:
        chunk = min(chunk, max(rows(), 1))  # there is memory for what is there, not for what is not
    return TrainSettings(job.workers, chunk, job.epochs, job.safe_adding)


def _learn(
    job: TrainJob,
    settings: TrainSettings,
    source: ExampleSource,
    optimizer: Optimizer,
    rate: float | None,
    start: SavedState | None,
    passes_before: int,
    judged_on: _Holdout | None,
    later: PassEvaluations,
    show: Callable[[str], AbstractContextManager[Report]],
    stop: Event,
    remains: Remains,
) -> Trained:
    """Train, in memory or through Redis."""
    adopted = None if rate is None else starting_state(optimizer, rate, source.spec.bits)
    if start is not None:
        former = start.optimizer.in_pass(start.passes)
        adopted = start.slots, optimizer.in_pass(start.passes).adopt(start.state, former)
    chunks_before = 0 if start is None else start.chunks
    stop_row = None if judged_on is None else judged_on.training_stops
    if not job.in_memory:
        from ctr.jobs.train_distributed import describe_job, learn_distributed

        description = describe_job(job, settings, source, optimizer, passes_before, stop_row)
        on_pass = None if judged_on is None or settings.epochs == 1 else later.add
        return learn_distributed(
            job, description, source, adopted, chunks_before, show, stop, remains, on_pass
        )
    store = open_store(job.store, bits=source.spec.bits, width=optimizer.width)

    def validate(number: int) -> None:
        if judged_on is not None:
            later.add(number, read_out(store))
            later.wait()

    try:
        if adopted is not None:
            store.push(*adopted, Token("start", 0, 0))
        remains.begin()
        with show("training") as report:
            result = train(
                source,
                store,
                optimizer,
                settings,
                passes_before=passes_before,
                chunks_before=chunks_before,
                stop_row=stop_row,
                on_progress=lambda p: report(p.examples, p.fraction, p.logloss, p.later_pass),
                stop=stop,
                validate=validate,
            )
        state = read_out(store)
        store.drop()
        return Trained(result, state)
    finally:
        store.close()


def _facts(
    job: TrainJob, settings: TrainSettings, optimizer: Optimizer, rate: float | None, result: TrainResult
) -> dict[str, Any]:
    """What the manifest says about training."""
    progressive = result.progressive.summary()
    return {
        "optimizer": {**optimizer.to_json(), "passes": result.passes},
        "training": {
            "inputs": [printable(path) for path in job.inputs],
            "rows": result.rows,
            "examples": result.examples,
            "epochs": settings.epochs,
            "workers": settings.workers,
            "chunk": settings.chunk,
            "chunks": result.chunks,
            "base_rate": rate,
            "warm_start": None if job.warm_start is None else printable(job.warm_start),
            "interrupted": result.interrupted,
        },
        "metrics": {"progressive": progressive.to_json()},
        "calibration": progressive.to_json()["calibration"],
    }


def _evaluated(
    state: tuple[Slots, Float32],
    optimizer: Optimizer,
    judged_on: _Holdout | None,
    stop: Event,
) -> MetricSummary | None:
    """The metrics on the hold-out of a state between two passes; None without one, or when stopped."""
    if judged_on is None or stop.is_set():
        return None
    model = LinearModel.of_weights(state[0], optimizer.weights(state[1]))
    metrics = evaluate(model, judged_on.source, start=judged_on.start, stop=stop)
    return None if stop.is_set() else metrics.summary()


def _judge(
    model: Model,
    saved_to: Path,
    judged_on: _Holdout,
    show: Callable[[str], AbstractContextManager[Report]],
    stop: Event,
) -> MetricSummary | None:
    """The metrics on the hold-out, also into the manifest of the saved model; None when stopped."""
    source = judged_on.source
    with show("evaluation") as report:
        metrics = evaluate(
            model,
            source,
            start=judged_on.start,
            on_rows=lambda rows: report(rows, source.fraction_read),
            stop=stop,
        )
    if stop.is_set():
        return None
    summary = metrics.summary()
    model.manifest["metrics"]["holdout"] = summary.to_json()
    model.manifest["calibration"] = summary.to_json()["calibration"]
    update_manifest(model, saved_to)
    return summary
