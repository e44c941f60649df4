"""`ctr train --progressive-days`: its checks, its report and its plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ctr.cli.reporting import STOPPED, Report, bad_rows_lines, peak_memory_mb, stopping
from ctr.cli.tables import metric_lines
from ctr.cli.train.outcome import tracked
from ctr.errors import CtrError
from ctr.outputs import printable, replace_file, require_writable
from ctr.packages import require_packages

if TYPE_CHECKING:
    from ctr.jobs import TrainOutcome
    from ctr.settings import TrainJob

_SUFFIXES = (".png", ".svg", ".pdf")


def train_by_days(job: TrainJob, plot: Path | None, report: Report) -> None:
    """Run the job day by day, and report on each day; `plot`: the file for a plot, if any."""
    from ctr.jobs import require_days
    from ctr.jobs import train_by_days as run
    from ctr.tracking import open_trackers, run_of_days

    _check(job, plot)
    require_days(job)
    trackers = open_trackers(job.track)
    outcomes: list[TrainOutcome] = []
    try:
        with stopping(f"{job.model} is the model of the previous days, if there were any."):
            for outcome in run(job):
                outcomes.append(outcome)  # noqa: PERF402  # outcomes before an error are reported, too
    except (CtrError, typer.Exit):
        if outcomes:
            Report(None)(_lines(outcomes, _summary(outcomes)), {})
        raise
    summary = _summary(outcomes)
    report(_lines(outcomes, summary), summary)
    run_as_one = run_of_days(summary["days"], job.forget)
    tracked({**run_as_one, "peak_memory_mb": summary["peak_memory_mb"]}, trackers)
    if plot is not None:
        _plot(outcomes, plot)
    if outcomes[-1].stopped:
        raise typer.Exit(STOPPED)


def _check(job: TrainJob, plot: Path | None) -> None:
    if job.held_out:
        raise typer.BadParameter("with --progressive-days, the next day is the hold-out; leave out others.")
    if job.checkpoint is not None or job.on_bad_rows == "quarantine" or "-" in job.inputs:
        raise typer.BadParameter(
            "--progressive-days runs several jobs: --checkpoint, --on-bad-rows quarantine and standard "
            "input (-) are for a single job."
        )
    if plot is None:
        return
    if plot.suffix not in _SUFFIXES:
        raise typer.BadParameter(f"--report {plot}: give a name that ends in {', '.join(_SUFFIXES)}.")
    require_writable(plot, make_folders=False)
    require_packages("--report", {"matplotlib.figure": "matplotlib"})


def _names(outcomes: Sequence[TrainOutcome]) -> list[str]:
    """Names of the evaluated days: file names, or paths if these are not unique."""
    paths = [printable(each.job.holdout[0]) for each in outcomes]
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(names) else paths


def _summary(outcomes: Sequence[TrainOutcome]) -> dict[str, Any]:
    evaluated = [each.holdout for each in outcomes if each.holdout is not None]
    examples = sum(each.examples for each in evaluated)
    weight = sum(each.weight for each in evaluated)
    mean = sum(each.logloss * each.weight for each in evaluated) / (weight or 1)
    return {
        "days": [each.to_json() for each in outcomes],
        "next_day": {"examples": examples, "logloss": mean if examples else None},
        "model": outcomes[-1].model.id,
        "saved_to": printable(outcomes[-1].saved_to),
        "interrupted": outcomes[-1].stopped,
        "peak_memory_mb": peak_memory_mb(),
    }


def _lines(outcomes: Sequence[TrainOutcome], summary: dict[str, Any]) -> list[str]:
    evaluated = [each for each in outcomes if each.holdout is not None]
    rows = {
        name: each.holdout for name, each in zip(_names(evaluated), evaluated, strict=True) if each.holdout
    }
    lines = ["each day, evaluated with the model of the previous days", *metric_lines(rows)] if rows else []
    if len(rows) > 1:
        total = summary["next_day"]
        lines.append(f"mean log loss over their {total['examples']:,} examples: {total['logloss']:.5f}")
    last = outcomes[-1]
    for each in outcomes:
        lines += [
            f"{printable(each.job.inputs[0])}: {line}" for line in bad_rows_lines(each.bad_rows, None)[:1]
        ]
    lines += [f"warning: {text}" for each in outcomes[:1] for text in each.warnings]
    if last.stopped:
        day = printable(last.job.inputs[0])
        return [*lines, f"stopped on {day}: the model so far is in {last.saved_to}"]
    seconds = sum(each.result.seconds for each in outcomes)
    rows_trained = sum(each.result.examples for each in outcomes)
    return [
        *lines,
        f"trained on {rows_trained:,} examples of {len(outcomes)} days in {seconds:.2f} s; "
        f"model {last.model.id} is in {last.saved_to}: {last.model.linear.weights.size:,} non-zero weights",
    ]


def _plot(outcomes: Sequence[TrainOutcome], file: Path) -> None:
    """Plot log loss, AUC and calibration of each day, with the model of the previous days."""
    from matplotlib.figure import Figure

    evaluated = [each for each in outcomes if each.holdout is not None]
    names = _names(evaluated)
    figure = Figure(figsize=(max(6.4, 0.5 * len(names)), 7.2), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    for axis, what, label in zip(
        axes,
        ("logloss", "auc", "calibration"),
        ("log loss (nats)", "AUC", "calibration\n(predicted / observed)"),
        strict=True,
    ):
        axis.plot(names, [getattr(each.holdout, what) for each in evaluated], marker="o")
        axis.set_ylabel(label)
        axis.grid(visible=True, alpha=0.3)
    axes[2].axhline(1, color="grey", linewidth=1)
    axes[0].set_title("Each day, with the model of the previous days")
    axes[2].set_xlabel("day")
    axes[2].tick_params(axis="x", rotation=45 if len(names) > 4 else 0)
    with replace_file(file, "the plot") as draft:
        figure.savefig(draft, dpi=150)
