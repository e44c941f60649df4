"""`ctr train`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import typer

from ctr.cli.options import Consistency, seconds_of, taking
from ctr.cli.reporting import STOPPED, peak_memory_mb, report, stopping
from ctr.cli.train.auto import check_auto, share_of_tuning, tune_first
from ctr.cli.train.options import TrainOptions
from ctr.cli.train.settings import scales_of, spec_with_settings
from ctr.errors import ModelError, SpecError
from ctr.outputs import printable, require_apart, require_no_part

if TYPE_CHECKING:
    from ctr.jobs import TrainJob

T = TypeVar("T")


@taking(TrainOptions)
def train(told: TrainOptions) -> None:
    """Train a model on raw files or on a hashed data set.

    In the first pass every example is predicted before the model learns from it (progressive validation), so
    the log loss shown while training is an honest one.

    Examples:

    - `ctr train --spec criteo clicks.tsv --model model --holdout-fraction 0.1`
    - `ctr train --spec criteo clicks.tsv --model model --auto`
    - `ctr train clicks.hashed --model model --workers 2 --epochs 2`
    - `ctr train --spec my.yaml day2.csv --warm-start model --model model`
    """
    job = _job(told)
    _check(job)
    if told.auto:
        check_auto(job, told)
    for place in (told.json, told.report):
        require_apart(place, [*job.inputs, told.spec, *job.holdout])
        require_no_part(place, job.model, job.checkpoint)
    if told.progressive_days:
        from ctr.cli.train.days import train_by_days

        train_by_days(job, told)
    elif told.report is not None:
        raise typer.BadParameter("--report plots what --progressive-days finds; give both, or neither.")
    else:
        if job.forget and job.warm_start is None:
            raise typer.BadParameter("--forget is for what --warm-start has learnt; give both, or neither.")
        _run(job, told)


def _job(told: TrainOptions) -> TrainJob:
    from ctr.jobs import TrainJob

    spec = spec_with_settings(told.settings, told.spec, told.inputs)
    return TrainJob(
        inputs=told.inputs,
        spec=spec,
        spec_name=None if spec is None else printable(spec),
        scales=scales_of(told.scale or ()),
        model=told.model,
        optimizer=_chosen(
            name=told.optimizer,
            alpha=told.alpha,
            beta=told.beta,
            l1=told.l1,
            l2=told.l2,
            iterations=told.iterations,
            tolerance=told.tolerance,
        ),
        workers=told.workers,
        chunk=told.chunk,
        epochs=told.epochs,
        early_stopping=told.early_stopping,
        safe_adding=told.safe_adding,
        admit=told.admit,
        negative_rate=told.negative_rate,
        pos_weight=told.pos_weight,
        store=told.store,
        consistency=None if told.consistency is None else told.consistency.value,
        staleness=told.staleness,
        filters=_chosen(cache=told.cache, presence=told.presence, defer=told.defer, kkt=told.kkt),
        checkpoint=told.checkpoint,
        checkpoint_every_s=seconds_of(told.checkpoint_every, "--checkpoint-every"),
        resume=told.resume,
        lease_s=told.lease,
        stall_s=told.stall_timeout,
        holdout=told.holdout or [],
        holdout_fraction=told.holdout_fraction,
        holdout_where=told.holdout_where,
        calibrate=None if told.calibrate is None else told.calibrate.value,
        warm_start=told.warm_start,
        forget=told.forget,
        base_rate=told.base_rate,
        on_bad_rows=told.on_bad_rows.value,
        max_bad_fraction=told.max_bad_fraction,
    )


def _chosen(**settings: T | None) -> dict[str, T]:
    """The settings that were given, by name; the others are left to their defaults."""
    return {name: value for name, value in settings.items() if value is not None}


def _check(job: TrainJob) -> None:
    """Raise BadParameter for options that do not go together."""
    from ctr.jobs import require_batch
    from ctr.optimizers import choose_optimizer

    if bool(job.holdout) + (job.holdout_fraction is not None) + (job.holdout_where is not None) > 1:
        raise typer.BadParameter("give one of --holdout, --holdout-fraction and --holdout-where.")
    held_out = job.holdout or job.holdout_fraction is not None or job.holdout_where is not None
    if job.early_stopping and (job.epochs == 1 or not held_out):
        raise typer.BadParameter(
            "--early-stopping compares passes on a hold-out: give --epochs above 1, and one of --holdout, "
            "--holdout-fraction and --holdout-where."
        )
    if job.calibrate is not None and not held_out:
        raise typer.BadParameter(
            "--calibrate is fitted on a hold-out: give one of --holdout, --holdout-fraction and "
            "--holdout-where."
        )
    _check_condition(job)
    _check_pipe(job)
    try:
        # Of a warm start, its model says what the settings are for.
        if job.warm_start is None and not choose_optimizer(job.optimizer).online:
            require_batch(job)
    except ModelError as error:
        raise typer.BadParameter(str(error)) from None
    only_in_redis = (
        job.checkpoint or job.resume or job.filters or job.consistency not in (None, Consistency.BSP)
    )
    if job.in_memory and only_in_redis:
        raise typer.BadParameter(
            "--checkpoint, --resume, filters and --consistency ssp and asp need the parameters in Redis; add "
            "--store, such as --store embedded://?shards=1."
        )
    if job.resume and job.checkpoint is None:
        raise typer.BadParameter("--resume goes on from --checkpoint DIR; name it.")
    if job.resume and job.warm_start is not None:
        raise typer.BadParameter("--resume has a state already; leave out --warm-start.")
    if job.base_rate in (0, 1):
        raise typer.BadParameter(
            f"--base-rate {job.base_rate:g} is a certainty; give a number between 0 and 1."
        )
    if job.base_rate is not None and (job.resume or job.warm_start is not None):
        raise typer.BadParameter(
            "--base-rate is for a new model; leave it out with --warm-start and --resume."
        )


def _check_condition(job: TrainJob) -> None:
    try:
        job.rows(held_out=True)
    except SpecError as error:
        raise typer.BadParameter(f"--holdout-where: {error}") from None


def _check_pipe(job: TrainJob) -> None:
    """Raise BadParameter if standard input were to be read more than once."""
    if "-" not in [*job.inputs, *job.holdout]:
        return
    again = job.epochs > 1 or job.holdout_fraction is not None or job.holdout_where is not None
    again = again or not job.in_memory or (job.calibrate is not None and "-" in job.holdout)
    if again or ("-" in job.inputs and "-" in job.holdout):
        raise typer.BadParameter(
            "- (standard input) can be read only once: not for several epochs, for a part of it as hold-out, "
            "for calibration, or by workers through Redis; write it to a file, and give that."
        )


def _run(job: TrainJob, told: TrainOptions) -> None:
    """Run the job and report its outcome."""
    from ctr.cli.train.outcome import outcome_lines, tracked
    from ctr.jobs import run_train_job
    from ctr.tracking import open_trackers

    trackers = open_trackers(told.track or [])
    with stopping("Nothing was written."):
        if told.auto:
            job, found = tune_first(job, told)
        outcome = run_train_job(job)
    summary = outcome.to_json() | {"peak_memory_mb": peak_memory_mb()}
    lines = outcome_lines(outcome, summary)
    if told.auto:
        lines.append(share_of_tuning(found, outcome))
        summary["auto"] = found.to_json()
    report(lines, summary, told.json)
    tracked(summary, trackers)
    if outcome.stopped:
        raise typer.Exit(STOPPED)
