"""`ctr train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.reporting import STOPPED, Report, peak_memory_mb, stopping
from ctr.cli.tables import some
from ctr.outputs import printable, require_apart, require_no_part

if TYPE_CHECKING:
    from ctr.search import Tuned
    from ctr.settings import TrainJob

_DAYS = "From a model, and day after day"


def train(
    job: TrainJob,
    summary: Report,
    progressive_days: Annotated[
        bool,
        typer.Option(
            "--progressive-days",
            rich_help_panel=_DAYS,
            help="Each INPUT is a day: train on one after the other, evaluating each model on the next day.",
        ),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            rich_help_panel=_DAYS,
            metavar="FILE",
            help="With --progressive-days: plot the days here (.png, .svg or .pdf).",
        ),
    ] = None,
) -> None:
    """Train a model on raw files or on a hashed data set.

    In the first pass, every example is predicted before the model learns from it (progressive validation), so
    the log loss shown during training is unbiased.

    Examples:

    - `ctr train --spec criteo clicks.tsv --model model --holdout-fraction 0.1`
    - `ctr train --spec criteo clicks.tsv --model model --auto`
    - `ctr train clicks.hashed --model model --workers 2 --epochs 2`
    - `ctr train --spec my.yaml day2.csv --warm-start model --model model`
    - `ctr train --stream redis://host/0?stream=rows --store redis://host/0 --spec my.yaml --model model`
    """
    spec = None if job.spec is None else str(job.spec)
    job = job.with_values(spec_name=None if spec is None else printable(spec))
    require_apart(report, [*job.inputs, spec, *job.holdout])
    require_no_part(report, job.model, job.checkpoint)
    if progressive_days:
        from ctr.cli.train.days import train_by_days

        if job.auto:
            raise typer.BadParameter(
                "--auto chooses the settings of a new model for all rows; leave out --progressive-days."
            )
        train_by_days(job, report, summary)
    elif report is not None:
        raise typer.BadParameter("--report plots the results of --progressive-days; give both, or neither.")
    else:
        _run(job, summary)


def _run(job: TrainJob, report: Report) -> None:
    """Run the job and report its outcome."""
    from ctr.cli.train.outcome import outcome_lines, tracked
    from ctr.jobs import run_train_job
    from ctr.tracking import open_trackers

    if job.stream is not None:
        _run_on_stream(job, report)
        return
    trackers, search = open_trackers(job.track), None
    with stopping("Nothing was written."):
        if job.auto:
            job, search = _tune_first(job, report)
        outcome = run_train_job(job)
    summary = outcome.to_json() | {"peak_memory_mb": peak_memory_mb()}
    lines = outcome_lines(outcome, summary)
    if search is not None:
        seconds = search.hashing_s + search.seconds
        share = seconds / (seconds + outcome.result.seconds)
        lines.append(f"auto took {seconds:.1f} s, {share:.0%} of the time")
        summary["auto"] = search.to_json()
    report(lines, summary)
    tracked(summary, trackers)
    if outcome.stopped:
        raise typer.Exit(STOPPED)


def _run_on_stream(job: TrainJob, report: Report) -> None:
    """Train on a stream until the command is stopped."""
    from ctr.jobs import run_stream_job

    with stopping("Nothing was written."):
        outcome = run_stream_job(job, lambda line: typer.echo(line, err=True))
    progressive = outcome.progressive
    lines = [
        f"trained on {outcome.examples:,} examples: log loss {progressive.logloss:.5f}, calibration "
        f"{progressive.calibration:.5f}; {some(outcome.published, 'version')} published",
        f"model {outcome.model.id} is in {outcome.saved_to}",
    ]
    report(lines, {"examples": outcome.examples, "model": outcome.model.id, **progressive.to_json()})


def _tune_first(job: TrainJob, report: Report) -> tuple[TrainJob, Tuned]:
    """Find settings, print them, and return the job with them. Raises KeyboardInterrupt if stopped."""
    from ctr.cli.tuning import showing_search
    from ctr.interrupts import stop_requests
    from ctr.jobs import require_places, tuned
    from ctr.search import described, require_optuna

    require_optuna()
    require_places(job)
    with stop_requests() as stop, showing_search() as shown:
        job, search = tuned(job, job.model.parent, stop, shown.on_rows, shown.on_progress)
    if search.stopped:
        raise KeyboardInterrupt
    seconds = search.hashing_s + search.seconds
    trials = some(len(search.tried), "trial")
    lines = (
        *(f"auto: {line}" for line in described(search)),
        f"auto: {trials} in {seconds:.1f} s, scored on {search.scored_on}:",
        f"auto: {search.gain}",
        *([f"auto: ended after {search.cut}"] if search.cut else []),
        *(f"warning: {text}" for text in search.warnings),
    )
    for line in lines:
        typer.echo(line, err=report.to_stdout)
    return job, search
