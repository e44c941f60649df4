"""A training job from its inputs to a saved model: what `ctr train` and `ctr.train` run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from ctr.errors import CtrError, DataError, ModelError
from ctr.features import BadRows, DatasetSource, ExampleSource, input_files, is_dataset, open_source
from ctr.features.batches import sorted_by_label
from ctr.interrupts import stop_requests
from ctr.jobs.training.outcome import Remains, TrainOutcome, empty_store, require_places, save_or_rescue
from ctr.jobs.training.passes import PassEvaluations
from ctr.jobs.training.setup import TrainSetup, set_up
from ctr.jobs.training.staging import staged
from ctr.learn import Trained, TrainProgress
from ctr.metrics import MetricSummary
from ctr.model import (
    SEEN,
    Model,
    input_digests,
    load_optimizer,
    note_holdout,
    note_passes,
    note_unseen,
    seen_rows,
    update_manifest,
)
from ctr.optimizers import choose_optimizer
from ctr.outputs import printable
from ctr.progress import Report, progress, silent
from ctr.settings import TrainJob

Show = Callable[[str], AbstractContextManager[Report]]
"""Shows the progress of a phase of this name until the `with` block ends."""

_MIXES = "`ctr features build --shuffle 0` mixes them"
_EXPECTED = 20  # rows of a label: with fewer expected, a hold-out may lack them by chance

if TYPE_CHECKING:
    from ctr.distributed import ClusterSummary  # loads modules that training in memory does not need
    from ctr.engines import Engine
    from ctr.features.windows import Windows


def run_train_job(job: TrainJob) -> TrainOutcome:
    """`run` for a command: SIGINT and SIGTERM stop the job, and each phase shows its progress."""
    with stop_requests() as stop:
        return run(job, stop, progress)


def run(
    job: TrainJob,
    stop: Event | None = None,
    show: Show = silent,
    on_progress: Callable[[TrainProgress], None] = lambda _: None,
) -> TrainOutcome:
    """Train, save the model, and evaluate it on the hold-out.

    Setting `stop` ends training after the current round. The unfinished model is then saved beside
    `job.model` (suffix `.interrupted`), and an earlier model stays. The model is saved after calibration, but
    before evaluation, whose metrics are added later. Last of all, it is removed from a store in Redis.

    If nothing was learnt before the stop, and at a second signal, KeyboardInterrupt is raised; its text says
    what remains of the job. Raises the errors of all steps; as much as possible is checked before training.
    """
    remains, stop = Remains(job), stop or Event()
    with _saying_what_remains(remains), ExitStack() as opened:
        require_places(job)
        engine = None if job.engine is None else opened.enter_context(_opened(job))
        stage = opened.enter_context(staged(job, engine))
        setup = set_up(stage.job)
        setup.source.bad_rows.merge(stage.bad_rows)
        if setup.holdout is not None:
            setup.holdout.source.bad_rows.merge(stage.holdout_bad_rows)
        passes = PassEvaluations(setup, stop)
        trained, cluster = _learn(setup, passes, stop, remains, show, on_progress, engine)
        trained = passes.best_of(trained)
        with nullcontext() if trained.store is None else closing(trained.store):
            model = _model(setup, trained, cluster, remains)
            calibration = _calibrate(setup, trained, model, passes, stop, show)
            model = calibration.model
            saved_to = job.model if calibration.whole else job.interrupted
            if job.saved:
                save_or_rescue(model, saved_to, trained.state, remains)
            evaluation = _evaluate(setup, calibration, saved_to, passes, stop, show)
            left_in_store = empty_store(trained.store, remains)
        _raise_failure(calibration, evaluation, saved_to if job.saved else None, left_in_store)
        warnings = _warnings(setup, trained, model, evaluation)
        stopped = trained.result.interrupted or (setup.holdout is not None and evaluation.holdout is None)
        published = job.publish is not None and not stopped
        if published:
            _publish(str(job.publish), saved_to)
        if job.checkpoint is not None and job.saved and not stopped:
            from ctr.checkpoint import remove_checkpoint  # loads what training in memory does not need

            try:
                remove_checkpoint(job.checkpoint)
            except ModelError as error:
                warnings.append(str(error))
    return TrainOutcome(
        job=job,
        result=trained.result,
        progressive=trained.result.progressive.summary(),
        holdout=evaluation.holdout,
        holdout_uncalibrated=calibration.uncalibrated,
        holdout_by_pass=evaluation.by_pass,
        model=model,
        saved_to=saved_to,
        bad_rows=_bad_rows(setup, cluster),
        warnings=warnings,
        holdout_bad_rows=None if setup.holdout is None else setup.holdout.source.bad_rows,
        stopped=stopped,
        published=published,
        distributed=cluster,
        left_in_store=left_in_store,
        best_pass=passes.best_pass,
    )


def require_days(job: TrainJob) -> None:
    """Before training, check that inputs are days of one log, and that the optimizer can learn day after day.

    Raises DataError, or ModelError for the optimizer.
    """
    if len(job.inputs) < 2:
        raise DataError("one input is one day, with none after it to evaluate on; give two or more.")
    optimizer = choose_optimizer(
        job.optimizer_settings, None if job.warm_start is None else load_optimizer(job.warm_start)
    )
    if not optimizer.online:
        raise ModelError(
            f"{optimizer.name} fits the weights to the rows of one day, keeping nothing of the days before: "
            "choose ftrl or adagrad, or train on all days at once."
        )
    first_fingerprint = None
    for day in job.inputs:
        if not is_dataset(day):
            input_files([day])
            continue
        spec = open_source([day], None).spec
        if first_fingerprint is not None and spec.fingerprint != first_fingerprint:
            raise DataError(
                f"{day}: hashed with the transform {spec.fingerprint[:12]}, {job.inputs[0]} with "
                f"{first_fingerprint[:12]}; build all days with the spec of the first (its features.yaml)."
            )
        first_fingerprint = spec.fingerprint


def train_by_days(job: TrainJob) -> Iterator[TrainOutcome]:
    """Train on each of the job's inputs in turn, from the model of the earlier ones; evaluate on the next.

    After each day, its model is in `job.model`; it stays there if a later day fails or is stopped. After a
    stopped day, no more outcomes follow. Raises the errors of `run_train_job`.
    """
    for number, day in enumerate(job.inputs):
        of_day = job.with_values(inputs=[day], holdout=job.inputs[number + 1 : number + 2])
        if number:
            of_day = of_day.with_optimizer(None, {}).with_values(warm_start=job.model, base_rate=None)
        elif job.warm_start is None:
            of_day = of_day.with_values(forget=0.0)
        outcome = run_train_job(of_day)
        yield outcome
        if outcome.stopped:
            return


@contextmanager
def _saying_what_remains(remains: Remains) -> Iterator[None]:
    """Add advice to an interrupt, and to an error after which parameters remain in the store."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(str(remains)) from None
    except CtrError as error:
        if remains.saved_to is None and remains.in_store:
            raise type(error)(f"{error} {remains}") from error
        raise


def _opened(job: TrainJob) -> AbstractContextManager[Engine]:
    """The engine of a job."""
    from ctr.engines import open_engine  # loads modules that training in memory does not need

    return closing(open_engine(job.engine, job.master))


def _learn(
    setup: TrainSetup,
    passes: PassEvaluations,
    stop: Event,
    remains: Remains,
    show: Show,
    on_progress: Callable[[TrainProgress], None],
    engine: Engine | None,
) -> tuple[Trained, ClusterSummary | None]:
    """Train; jobs through Redis also have a summary. Raises KeyboardInterrupt if nothing was learnt."""
    with show("training") as report:

        def shown(p: TrainProgress) -> None:
            report(p.examples, p.fraction, p.logloss, p.later_pass, p.iteration, p.objective)
            on_progress(p)

        cluster = None
        if setup.job.in_memory:
            from ctr.jobs.training.memory import learn_in_memory

            trained = learn_in_memory(setup, passes, stop, remains, shown)
        else:
            from ctr.jobs.training.distributed import learn_distributed  # loads what memory does not need

            trained, cluster = learn_distributed(setup, passes, stop, remains, shown, engine)
    if trained.result.examples == 0:
        empty_store(trained.store, remains)
        if trained.store is not None:
            trained.store.close()
        remains.began = False
        raise KeyboardInterrupt
    return trained, cluster


def _model(setup: TrainSetup, trained: Trained, cluster: ClusterSummary | None, remains: Remains) -> Model:
    """The trained model. If it is unusable, empty the store and raise ModelError."""
    try:
        return setup.model(trained.state, trained.result, _bad_rows(setup, cluster).count)
    except ModelError as error:
        left_in_store = empty_store(trained.store, remains)
        advice = "" if cluster is None else cluster.report.saturations.advice
        saved = "Nothing was saved." if setup.job.saved else ""
        words = [str(error), saved, advice and f"Besides, {advice}.", left_in_store]
        raise ModelError(" ".join(word for word in words if word)) from None


@dataclass(frozen=True, slots=True)
class _CalibratedModel:
    """The model to save, and its metrics before and after calibration."""

    model: Model
    whole: bool = True
    """False if training or calibration was interrupted, or calibration failed."""
    calibrated: MetricSummary | None = None
    uncalibrated: MetricSummary | None = None
    failure: CtrError | None = None


def _calibrate(
    setup: TrainSetup, trained: Trained, model: Model, passes: PassEvaluations, stop: Event, show: Show
) -> _CalibratedModel:
    """Calibrate the model on the hold-out if the job says so; on failure or a stop, it is unchanged."""
    method, holdout = setup.job.calibrate, setup.holdout
    if method is None or holdout is None or trained.result.interrupted:
        return _CalibratedModel(model, whole=not trained.result.interrupted)
    passes.wait()
    try:
        with show("calibration") as report:
            fitted = None if stop.is_set() else holdout.calibrate(model.linear, method, stop, report)
    except CtrError as error:
        return _CalibratedModel(model, whole=False, failure=error)
    if fitted is None:
        return _CalibratedModel(model, whole=False)
    return _CalibratedModel(
        fitted.of(model), calibrated=fitted.after.summary(), uncalibrated=fitted.before.summary()
    )


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """The model's metrics on the hold-out, after the last pass and after earlier ones."""

    holdout: MetricSummary | None
    by_pass: Mapping[int, MetricSummary]
    failure: CtrError | None = None


def _evaluate(
    setup: TrainSetup,
    calibration: _CalibratedModel,
    saved_to: Path,
    passes: PassEvaluations,
    stop: Event,
    show: Show,
) -> _Evaluation:
    """Evaluate the model unless calibration has done so, and write the metrics to its manifest."""
    summary = calibration.calibrated
    if setup.holdout is None or calibration.failure is not None:
        return _Evaluation(summary, {})
    passes.wait()  # rows are read for one evaluation at a time
    try:
        if summary is None and not stop.is_set():
            with show("evaluation") as report:
                summary = setup.holdout.evaluate(calibration.model, stop, report)
        by_pass = passes.summaries()
        history = dict(by_pass)
        if summary is not None and not setup.job.early_stopping:  # it has evaluated the last pass, too
            history[setup.job.epochs] = calibration.uncalibrated or summary
        if history:
            note_passes(calibration.model, history)
        if summary is not None and calibration.calibrated is None:
            note_holdout(calibration.model, summary)
        note_unseen(calibration.model, setup.holdout.count_unseen(calibration.model.linear))
        if setup.job.saved:
            update_manifest(calibration.model, saved_to)
        return _Evaluation(summary, by_pass)
    except CtrError as error:
        return _Evaluation(None, {}, error)


def _raise_failure(
    calibration: _CalibratedModel, evaluation: _Evaluation, saved_to: Path | None, left_in_store: str | None
) -> None:
    """Raise the error of calibration or evaluation; it says where the trained model is."""
    failure = calibration.failure or evaluation.failure
    if failure is None:
        return
    if saved_to is None:
        raise failure
    failed = "calibration" if calibration.failure else "evaluation"
    raise type(failure)(
        f"{failure} The model was trained and is in {saved_to}; only its {failed} failed."
        + (f" {left_in_store}" if left_in_store else "")
    ) from failure


def _publish(place: str, model: Path) -> None:
    """Add the model to a registry. Raises ModelError and DataError, which say where the model is."""
    from ctr.registry import Registry, parse_place

    registry, labels = parse_place(place)
    try:
        Registry(registry).publish(model, labels)
    except CtrError as error:
        raise type(error)(
            f"{error} The model was trained and is in {model}; `ctr models publish {model}` tries again."
        ) from error


def _bad_rows(setup: TrainSetup, cluster: ClusterSummary | None) -> BadRows:
    """The bad rows of training; a data set has none, as its build left them out."""
    if cluster is None or isinstance(setup.source, DatasetSource):
        return setup.source.bad_rows
    return cluster.report.bad_rows


def _warnings(setup: TrainSetup, trained: Trained, model: Model, evaluation: _Evaluation) -> list[str]:
    """Warnings about the data, from its first rows, and about metrics that overstate the model."""
    from ctr.jobs.evaluate import too_good  # training itself does not need it

    source, holdout = setup.source, setup.holdout
    warnings = [*source.warnings(), *_window_warnings(setup.job, source, model.windows)]
    warnings += _repeat_warnings(setup)
    digests = input_digests(holdout.source.inputs) if setup.job.holdout and holdout is not None else []
    if seen_rows(model.manifest, digests) == "trained":
        warnings.append(SEEN.format("trained", "the hold-out"))
    if misleading := _order_warnings(setup, trained, evaluation):
        return warnings + misleading
    if evaluation.holdout is not None:
        return warnings + too_good(evaluation.holdout, source.spec, source.inputs, "the hold-out")
    if trained.result.measured == "progressive":
        summary = trained.result.progressive.summary()
        return warnings + too_good(summary, source.spec, source.inputs, "the rows of training")
    return warnings


def _repeat_warnings(setup: TrainSetup) -> list[str]:
    """Warnings about rows that are trained on twice: inputs of this job, or of models that it continues."""
    times = Counter(map(str, setup.source.inputs))
    warnings = [
        f"{name} is given {count} times, so that its rows count {count} times; give it once"
        for name, count in times.items()
        if count > 1
    ]
    if setup.optimizer.online and seen_rows({"training": {"lineage": setup.lineage}}, setup.digests):
        warnings.append(
            f"the model {printable(setup.origin['warm_start'])} was trained on rows of "
            f"{', '.join(setup.job.named_inputs)} before, so that they count twice, and progressive metrics"
            " are optimistic; go on with new rows"
        )
    return warnings


def _order_warnings(setup: TrainSetup, trained: Trained, evaluation: _Evaluation) -> list[str]:
    """A warning if metrics mean nothing: rows are sorted by label, or the hold-out has one class."""
    rows, holdout = trained.result.progressive.summary(), evaluation.holdout
    others = (rows.examples - rows.positives) / setup.sampling.negative_rate
    rate = rows.positives / max(rows.positives + others, 1)
    labels = setup.first.labels
    if labels is not None and sorted_by_label(labels, rate):
        return [f"the rows look sorted by label, so neither model nor metrics mean anything; {_MIXES}"]
    if holdout is not None and holdout.positives in (0, holdout.examples):
        has, missing = ("no", rate) if holdout.positives == 0 else ("only", 1 - rate)
        if missing * holdout.examples > _EXPECTED:
            return [
                f"the hold-out has {has} clicks, so its metrics mean nothing; if rows are sorted, {_MIXES}"
            ]
    return []


def _window_warnings(job: TrainJob, source: ExampleSource, windows: Windows | None) -> list[str]:
    """A warning if the windows of a data set or a model start empty."""
    is_built = isinstance(source, DatasetSource)
    if windows is not None and not windows.keys:
        remedy = "Build the data set with --windows-from, " if is_built else "Train with --warm-start, "
        return [
            "the model's windows start empty: rows that carry the window features that they were served with"
            f" are not counted. {remedy}and a model that has counts, or serve with --windows"
        ]
    if not isinstance(source, DatasetSource) or source.manifest.windows_before != 0:
        return []
    began = f"{source.name}: its windows started empty"
    if job.warm_start is None:
        return [f"{began}, so its first rows have little history; build the next day with `--windows-from`"]
    return [
        f"{began}, though the model {printable(job.warm_start)} was trained on some: build it with"
        " `--windows-from` and the model or data set of the day before"
    ]
