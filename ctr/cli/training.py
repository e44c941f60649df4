"""`ctr train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ctr.cli.jobs import STOPPED, bad_rows_lines, peak_memory_mb, report, stopping
from ctr.cli.options import (
    MOST_SECONDS,
    BadRowsOption,
    Consistency,
    Inputs,
    JsonOption,
    MaxBadFraction,
    OnBadRows,
    SpecOption,
    finite,
    seconds_of,
)
from ctr.outputs import require_apart, require_no_part

if TYPE_CHECKING:
    from ctr.jobs import TrainOutcome

IN_REDIS = "Parameters in Redis"

T = TypeVar("T")


def train(
    inputs: Inputs,
    model: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="The trained model goes here, in place of a model that is there.",
            show_default=False,
        ),
    ],
    spec: SpecOption = None,
    workers: Annotated[
        int,
        typer.Option(min=1, help="Workers that train at the same time: threads in memory, else processes."),
    ] = 1,
    chunk: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Examples that a worker trains on between reading the shared weights and adding its change "
            "to them. Default in memory: 65,536 for one worker; for several at most 16,384, and a 25th of "
            "their rows. Through Redis: an 8th of a worker's rows, at most 262,144, for several 131,072.",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 1,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Optimizer, whose settings follow. Default: ftrl (FTRL-Proximal).",
            show_default=False,
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(min=0, callback=finite, help="Learning rate. Default: 0.1.", show_default=False),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(min=0, callback=finite, help="Damps the first steps. Default: 1.", show_default=False),
    ] = None,
    l1: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="L1 penalty: above 0, rare features get weight 0. Counts once per pass. Default: 0.",
            show_default=False,
        ),
    ] = None,
    l2: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="L2 penalty: pulls weights towards 0. Default: 0.",
            show_default=False,
        ),
    ] = None,
    safe_adding: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=finite,
            help="How far several workers allow for each other's moves; 0 simply adds them.",
        ),
    ] = 0.75,
    holdout: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            metavar="FILE",
            help="Judge the model on this input; may be repeated.",
            show_default=False,
        ),
    ] = None,
    holdout_fraction: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=0.99,
            callback=finite,
            help="Keep the last part of the input out of training and judge the model on it.",
            show_default=False,
        ),
    ] = None,
    warm_start: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Train on from the state of this model, with its settings where no others are given.",
            show_default=False,
        ),
    ] = None,
    base_rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="RATE",
            help="Click rate at which the bias starts. Default: that of the first 16,384 rows.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where the parameters live while training: memory://, embedded://?shards=2 (redis-server "
            "processes started here), redis://host:port/0 or redis+cluster://host:port,host:port.",
        ),
    ] = "memory://",
    consistency: Annotated[
        Consistency | None,
        typer.Option(
            help="bsp: rounds, the same result to the bit every time; ssp: nobody is more than --staleness "
            "chunks ahead of the slowest; asp: nobody waits. Default: bsp in memory, else "
            "ssp.",
            show_default=False,
            rich_help_panel=IN_REDIS,
        ),
    ] = None,
    staleness: Annotated[
        int,
        typer.Option(min=0, help="With ssp: chunks that a worker may be ahead.", rich_help_panel=IN_REDIS),
    ] = 2,
    cache: Annotated[
        bool | None,
        typer.Option(
            "--cache/--no-cache",
            help="Do not pull again what was pulled within the staleness bound. Default: on; off with bsp.",
            show_default=False,
            rich_help_panel=IN_REDIS,
        ),
    ] = None,
    presence: Annotated[
        bool | None,
        typer.Option(
            "--presence/--no-presence",
            help="Do not pull what nobody has pushed yet. Default: on; off with bsp.",
            show_default=False,
            rich_help_panel=IN_REDIS,
        ),
    ] = None,
    residuals: Annotated[
        float | None,
        typer.Option(
            "--residuals",
            "--hold-back",
            min=0,
            callback=finite,
            metavar="NATS",
            help="Keep a slot's change with its worker, as a residual, while the others would gain less than "
            "this by it, per chunk. Default: 0, never.",
            show_default=False,
            rich_help_panel=IN_REDIS,
        ),
    ] = None,
    kkt: Annotated[
        bool | None,
        typer.Option(
            "--kkt/--no-kkt",
            help="Keep changes with their worker that leave a weight at zero; with --l1. Default: off.",
            show_default=False,
            rich_help_panel=IN_REDIS,
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write checkpoints here.", show_default=False, rich_help_panel=IN_REDIS
        ),
    ] = None,
    checkpoint_every: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Time between checkpoints, such as 30s or 5m.", rich_help_panel=IN_REDIS
        ),
    ] = "60s",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the checkpoint in --checkpoint.", rich_help_panel=IN_REDIS),
    ] = False,
    lease: Annotated[
        float,
        typer.Option(
            min=0.5,
            max=MOST_SECONDS,
            callback=finite,
            help="Seconds of silence after which a worker counts as dead.",
            rich_help_panel=IN_REDIS,
        ),
    ] = 10.0,
    stall_timeout: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="A worker that lives but makes no progress for so long, its disk hanging, counts as dead.",
            rich_help_panel=IN_REDIS,
        ),
    ] = 600.0,
    on_bad_rows: BadRowsOption = OnBadRows.FAIL,
    max_bad_fraction: MaxBadFraction = 0.01,
    json: JsonOption = None,
) -> None:
    """Train a model on raw files or on a hashed data set.

    In the first pass every example is predicted before it is learnt (progressive validation), so the log
    loss shown meanwhile is already an honest one.

    Examples:

    - `ctr train --spec criteo clicks.tsv --model model --holdout-fraction 0.1`
    - `ctr train clicks.hashed --model model --workers 2 --epochs 2`
    - `ctr train --spec my.yaml day2.csv --warm-start model --model model`
    """
    from ctr.errors import ModelError
    from ctr.jobs import TrainJob, run_train_job
    from ctr.learn import choose_optimizer

    if holdout and holdout_fraction is not None:
        raise typer.BadParameter("give either --holdout or --holdout-fraction, not both.")
    settings: dict[str, str | float] = _chosen(name=optimizer, alpha=alpha, beta=beta, l1=l1, l2=l2)
    try:
        choose_optimizer(settings)
    except ModelError as error:
        raise typer.BadParameter(str(error)) from None
    every_s = seconds_of(checkpoint_every, "--checkpoint-every")
    filters = _chosen(cache=cache, presence=presence, residuals=residuals, kkt=kkt)
    in_redis = not store.startswith("memory:")
    if not in_redis and (checkpoint or resume or filters or consistency not in (None, Consistency.BSP)):
        raise typer.BadParameter(
            "--checkpoint, --resume, filters and --consistency ssp and asp need the parameters in Redis; add "
            "--store, such as --store embedded://?shards=1."
        )
    if resume and checkpoint is None:
        raise typer.BadParameter("--resume goes on from --checkpoint DIR; name it.")
    if resume and warm_start is not None:
        raise typer.BadParameter("--resume has a state already; leave out --warm-start.")
    if base_rate in (0, 1):
        raise typer.BadParameter(f"--base-rate {base_rate:g} is a certainty; give a number between 0 and 1.")
    if base_rate is not None and (resume or warm_start is not None):
        raise typer.BadParameter(
            "--base-rate is for a new model; leave it out with --warm-start and --resume."
        )
    require_apart(json, [*inputs, spec, *(holdout or [])])
    require_no_part(json, model, checkpoint)
    job = TrainJob(
        inputs=inputs,
        spec=spec,
        model=model,
        optimizer=settings,
        workers=workers,
        chunk=chunk,
        epochs=epochs,
        safe_adding=safe_adding,
        store=store,
        consistency=None if consistency is None else consistency.value,
        staleness=staleness,
        filters=filters,
        checkpoint=checkpoint,
        checkpoint_every_s=every_s,
        resume=resume,
        lease_s=lease,
        stall_s=stall_timeout,
        holdout=holdout or [],
        holdout_fraction=holdout_fraction or 0.0,
        warm_start=warm_start,
        base_rate=base_rate,
        on_bad_rows=on_bad_rows.value,
        max_bad_fraction=max_bad_fraction,
    )
    with stopping("Nothing was written."):
        outcome = run_train_job(job)
    summary = outcome.to_json() | {"peak_memory_mb": peak_memory_mb()}
    bad = bad_rows_lines(outcome.bad_rows.count, outcome.bad_rows.examples, job.quarantine)
    lines = [*_lines(outcome, summary), *bad, *(f"warning: {text}" for text in outcome.warnings)]
    if summary["holdout_bad_rows"]:
        lines.append(f"skipped {summary['holdout_bad_rows']:,} bad rows of the hold-out")
    if outcome.left_in_store is not None:
        lines.append(f"warning: {outcome.left_in_store}")
    report(lines, summary, json)
    if outcome.stopped:
        raise typer.Exit(STOPPED)


def _chosen(**settings: T | None) -> dict[str, T]:
    """The settings that were given, by name; the others are left to their defaults."""
    return {name: value for name, value in settings.items() if value is not None}


def _lines(outcome: TrainOutcome, summary: dict[str, Any]) -> list[str]:
    from ctr.cli.advice import advice
    from ctr.cli.tables import metric_lines, store_lines

    workers = "1 worker" if summary["workers"] == 1 else f"{summary['workers']} workers"
    lines = [
        f"trained on {summary['examples']:,} examples in {summary['seconds']:.2f} s "
        f"({summary['examples_per_second']:,.0f} examples/s, {workers}, {summary['store']})"
    ]
    evaluated = {"first pass, as it went": outcome.progressive}
    for number, validated in outcome.holdout_by_pass.items():
        evaluated[f"hold-out after pass {number}"] = validated
    if outcome.holdout is not None:
        evaluated["hold-out"] = outcome.holdout
    lines += metric_lines(evaluated)
    lag = outcome.progressive_lag_chunks
    if lag != 0:
        unknown = "some chunks" if lag is None else f"up to {lag} chunks"
        lines.append(f"(as it went, predictions did not know {unknown} that other workers had in hand)")
    if outcome.holdout_by_pass and outcome.distributed is not None and outcome.job.consistency != "bsp":
        lines.append("(after a pass, some workers had begun the next one)")
    if outcome.holdout is not None and (text := advice(outcome.progressive, outcome.holdout)):
        lines.append(f"worse than the base rate: {text}")
    lines += store_lines(summary)
    if outcome.result.interrupted and outcome.distributed is not None and outcome.distributed.checkpoints:
        lines.append(
            f"stopped early, with a checkpoint: go on with --resume; what was learnt so far is also in "
            f"{outcome.saved_to}; {outcome.job.model} was not touched"
        )
    elif outcome.result.interrupted:
        lines.append(
            f"stopped early: what was learnt so far is in {outcome.saved_to} "
            f"(train on with --warm-start {outcome.saved_to}); {outcome.job.model} was not touched"
        )
    else:
        weights = outcome.model.linear.weights.size
        lines.append(f"model {outcome.model.id} is in {outcome.saved_to}: {weights:,} non-zero weights")
        if outcome.stopped:
            lines.append("stopped before it was evaluated on the hold-out; the model itself is complete")
    return lines
