"""`ctr train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from ctr.cli.options import (
    MOST_BAD,
    BadRowsOption,
    Consistency,
    Inputs,
    JsonOption,
    MaxBadFraction,
    OnBadRows,
    SpecOption,
    seconds_of,
)
from ctr.cli.reporting import STOPPED, peak_memory_mb, report, stopping
from ctr.cli.train import options
from ctr.errors import ModelError
from ctr.outputs import require_apart, require_no_part
from ctr.stall import STALL_S

if TYPE_CHECKING:
    from ctr.jobs import TrainJob

T = TypeVar("T")


def train(
    inputs: Inputs,
    model: options.OutOption,
    spec: SpecOption = None,
    workers: options.WorkersOption = 1,
    chunk: options.ChunkOption = None,
    epochs: options.EpochsOption = 1,
    optimizer: options.OptimizerOption = None,
    alpha: options.AlphaOption = None,
    beta: options.BetaOption = None,
    l1: options.L1Option = None,
    l2: options.L2Option = None,
    safe_adding: options.SafeAddingOption = 0.75,
    admit: options.AdmitOption = 1.0,
    holdout: options.HoldoutOption = None,
    holdout_fraction: options.HoldoutFractionOption = None,
    warm_start: options.WarmStartOption = None,
    base_rate: options.BaseRateOption = None,
    store: options.StoreOption = "memory://",
    consistency: options.ConsistencyOption = None,
    staleness: options.StalenessOption = 2,
    cache: options.CacheOption = None,
    presence: options.PresenceOption = None,
    defer: options.DeferOption = None,
    kkt: options.KktOption = None,
    checkpoint: options.CheckpointOption = None,
    checkpoint_every: options.CheckpointEveryOption = "60s",
    resume: options.ResumeOption = False,
    lease: options.LeaseOption = None,
    stall_timeout: options.StallTimeoutOption = STALL_S,
    on_bad_rows: BadRowsOption = OnBadRows.FAIL,
    max_bad_fraction: MaxBadFraction = MOST_BAD,
    json: JsonOption = None,
) -> None:
    """Train a model on raw files or on a hashed data set.

    In the first pass every example is predicted before the model learns from it (progressive validation), so
    the log loss shown while training is an honest one.

    Examples:

    - `ctr train --spec criteo clicks.tsv --model model --holdout-fraction 0.1`
    - `ctr train clicks.hashed --model model --workers 2 --epochs 2`
    - `ctr train --spec my.yaml day2.csv --warm-start model --model model`
    """
    from ctr.jobs import TrainJob

    job = TrainJob(
        inputs=inputs,
        spec=spec,
        model=model,
        optimizer=_chosen(name=optimizer, alpha=alpha, beta=beta, l1=l1, l2=l2),
        workers=workers,
        chunk=chunk,
        epochs=epochs,
        safe_adding=safe_adding,
        admit=admit,
        store=store,
        consistency=None if consistency is None else consistency.value,
        staleness=staleness,
        filters=_chosen(cache=cache, presence=presence, defer=defer, kkt=kkt),
        checkpoint=checkpoint,
        checkpoint_every_s=seconds_of(checkpoint_every, "--checkpoint-every"),
        resume=resume,
        lease_s=lease,
        stall_s=stall_timeout,
        holdout=holdout or [],
        holdout_fraction=holdout_fraction,
        warm_start=warm_start,
        base_rate=base_rate,
        on_bad_rows=on_bad_rows.value,
        max_bad_fraction=max_bad_fraction,
    )
    _check(job)
    require_apart(json, [*inputs, spec, *job.holdout])
    require_no_part(json, model, checkpoint)
    _run(job, json)


def _chosen(**settings: T | None) -> dict[str, T]:
    """The settings that were given, by name; the others are left to their defaults."""
    return {name: value for name, value in settings.items() if value is not None}


def _check(job: TrainJob) -> None:
    """Raise BadParameter for options that do not go together."""
    from ctr.learn import choose_optimizer

    if job.holdout and job.holdout_fraction is not None:
        raise typer.BadParameter("give either --holdout or --holdout-fraction, not both.")
    try:
        if job.warm_start is None:  # else its model says what the settings are for
            choose_optimizer(job.optimizer)
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


def _run(job: TrainJob, json: Path | None) -> None:
    """Run the job and report its outcome."""
    from ctr.cli.train.outcome import outcome_lines
    from ctr.jobs import run_train_job

    with stopping("Nothing was written."):
        outcome = run_train_job(job)
    summary = outcome.to_json() | {"peak_memory_mb": peak_memory_mb()}
    report(outcome_lines(outcome, summary), summary, json)
    if outcome.stopped:
        raise typer.Exit(STOPPED)
