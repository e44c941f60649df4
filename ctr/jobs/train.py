"""A training job from its inputs to a saved model: what `ctr train` runs."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event

from ctr.distributed import DistributedFacts
from ctr.errors import CtrError, ModelError
from ctr.interrupts import stop_requests
from ctr.jobs.early_stopping import EarlyStopping
from ctr.jobs.holdout import PassEvaluations
from ctr.jobs.outcome import TrainOutcome
from ctr.jobs.remains import Remains
from ctr.jobs.saving import empty_store, require_places, save_or_rescue
from ctr.jobs.setup import TrainSetup, set_up
from ctr.jobs.train_job import TrainJob
from ctr.jobs.windows import window_warnings
from ctr.learn import Trained
from ctr.metrics import MetricSummary
from ctr.model import SEEN, Model, input_digests, seen_rows, too_good
from ctr.progress import progress
from ctr.ps import require_store_url


def run_train_job(job: TrainJob) -> TrainOutcome:
    """Train, save the model, and evaluate it on the hold-out; each phase shows its progress.

    SIGINT or SIGTERM ends training after the running round; what was learnt so far is then saved beside
    `job.model` (suffix `.interrupted`), and a model that was there stays. The model is on disk before it is
    evaluated, and its metrics are added to it; one that is to be calibrated gets there when it is. A store in
    Redis is emptied at the very end.

    When nothing was learnt yet, or at a second signal, KeyboardInterrupt is raised, whose text says what is
    left of the job. Raises the errors of the parts; what can be checked is checked before training.
    """
    remains = Remains(job.store, job.model, job.checkpoint, job.resume)
    try:
        with stop_requests() as stop:
            return _run(job, stop, remains)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(str(remains)) from None
    except CtrError as error:
        if remains.saved_to is None and remains.in_store:
            raise type(error)(f"{error} {remains}") from error
        raise


def _run(job: TrainJob, stop: Event, remains: Remains) -> TrainOutcome:
    require_store_url(job.store)
    require_places(job)
    setup = set_up(job)
    evaluate = partial(setup.evaluate_pass, stop)
    early = EarlyStopping(evaluate, stop) if job.early_stopping else None
    after_passes = PassEvaluations(early or evaluate)
    trained, told = _learn(setup, after_passes, stop, remains)
    if early is not None:
        trained = early.best_of(setup, trained, after_passes)
    with nullcontext() if trained.store is None else closing(trained.store):
        if trained.result.examples == 0:
            empty_store(trained.store, remains)
            remains.began = False
            raise KeyboardInterrupt
        model = _model(setup, trained, told, remains)
        evaluation = _Evaluation()
        if job.calibrate is not None and not trained.result.interrupted:
            model = _calibrate(setup, model, evaluation, after_passes, stop)
        whole = not trained.result.interrupted and evaluation.calibrated is not False
        saved_to = job.model if whole else job.interrupted
        save_or_rescue(model, saved_to, trained.state, remains)
        _evaluate(setup, model, saved_to, evaluation, after_passes, stop)
        left = empty_store(trained.store, remains)
    if (failure := evaluation.failure) is not None:
        failed = "calibration" if evaluation.calibrated is False else "evaluation"
        raise type(failure)(
            f"{failure} The model was trained and is in {saved_to}; only its {failed} failed."
            + (f" {left}" if left else "")
        ) from failure
    return _outcome(setup, trained, told, model, saved_to, evaluation, left, early)


def _learn(
    setup: TrainSetup, after_passes: PassEvaluations, stop: Event, remains: Remains
) -> tuple[Trained, DistributedFacts | None]:
    if setup.job.in_memory:
        from ctr.jobs.train_memory import learn_in_memory

        with progress("training") as report:
            trained = learn_in_memory(
                setup,
                after_passes,
                stop,
                remains,
                lambda p: report(p.examples, p.fraction, p.logloss, p.later_pass, p.iteration, p.objective),
            )
        return trained, None
    from ctr.jobs.train_distributed import learn_distributed  # with what training in memory does without

    return learn_distributed(setup, after_passes, stop, remains)


def _model(setup: TrainSetup, trained: Trained, told: DistributedFacts | None, remains: Remains) -> Model:
    """The trained model; raises ModelError where it would be nonsense, which no store keeps either."""
    try:
        return setup.model(trained.state, trained.result)
    except ModelError as error:
        left = empty_store(trained.store, remains)
        advice = "" if told is None else told.report.saturations.advice
        words = [str(error), "Nothing was saved.", advice and f"Besides, {advice}.", left]
        raise ModelError(" ".join(word for word in words if word)) from None


@dataclass(slots=True)
class _Evaluation:
    """What the hold-out says; `failure` is why it says nothing, if something was wrong with it."""

    holdout: MetricSummary | None = None
    uncalibrated: MetricSummary | None = None
    by_pass: dict[int, MetricSummary] = field(default_factory=dict)
    failure: CtrError | None = None
    calibrated: bool | None = None
    """Whether the model is; None: nobody wants it to be."""


def _calibrate(
    setup: TrainSetup, model: Model, found: _Evaluation, after_passes: PassEvaluations, stop: Event
) -> Model:
    """The model calibrated on the hold-out; as it is when that fails, or is stopped."""
    assert setup.holdout is not None
    assert setup.job.calibrate is not None
    after_passes.wait()
    found.calibrated = False
    try:
        fitted = None if stop.is_set() else setup.holdout.calibrate(model.linear, setup.job.calibrate, stop)
    except CtrError as error:
        found.failure = error
        return model
    if fitted is None:
        return model
    found.calibrated = True
    found.holdout, found.uncalibrated = fitted.after.summary(), fitted.before.summary()
    return fitted.of(model)


def _evaluate(
    setup: TrainSetup,
    model: Model,
    saved_to: Path,
    found: _Evaluation,
    after_passes: PassEvaluations,
    stop: Event,
) -> None:
    """Add what the hold-out says of the saved model to `found`, unless calibration has told already."""
    if setup.holdout is None or found.failure is not None:
        return
    after_passes.wait()  # the rows are read for one evaluation at a time
    try:
        if found.holdout is None and not stop.is_set():
            found.holdout = setup.holdout.evaluate_saved(model, saved_to, stop)
        found.by_pass = after_passes.summaries()
    except CtrError as error:
        found.failure = error


def _outcome(
    setup: TrainSetup,
    trained: Trained,
    told: DistributedFacts | None,
    model: Model,
    saved_to: Path,
    evaluation: _Evaluation,
    left: str | None,
    early: EarlyStopping | None,
) -> TrainOutcome:
    source, holdout = setup.source, setup.holdout
    return TrainOutcome(
        job=setup.job,
        optimizer=setup.optimizer,
        settings=setup.settings,
        result=trained.result,
        progressive=trained.result.progressive.summary(),
        holdout=evaluation.holdout,
        holdout_uncalibrated=evaluation.uncalibrated,
        holdout_by_pass=evaluation.by_pass,
        model=model,
        saved_to=saved_to,
        bad_rows=source.bad_rows if told is None else told.report.bad_rows,
        warnings=[
            *source.warnings(),
            *window_warnings(setup.job, source),
            *_suspicious(setup, trained, model, evaluation),
        ],
        holdout_bad_rows=None if holdout is None else holdout.source.bad_rows,
        stopped=trained.result.interrupted or (holdout is not None and evaluation.holdout is None),
        distributed=told,
        left_in_store=left,
        best_pass=None if early is None else early.best_pass,
    )


def _suspicious(setup: TrainSetup, trained: Trained, model: Model, evaluation: _Evaluation) -> list[str]:
    """Warnings of metrics that are better than the model is."""
    warnings, holdout = [], setup.holdout
    digests = input_digests(holdout.source.inputs) if setup.job.holdout and holdout is not None else []
    if seen_rows(model.manifest, digests) == "trained":
        warnings.append(SEEN.format("trained", "the hold-out"))
    spec, inputs = setup.source.spec, setup.source.inputs
    if evaluation.holdout is not None:
        return warnings + too_good(evaluation.holdout, spec, inputs, "the hold-out")
    if trained.result.measured == "progressive":
        return too_good(trained.result.progressive.summary(), spec, inputs, "the rows of training")
    return warnings
