"""The report of `ctr train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from ctr.cli.reporting import bad_rows_lines
from ctr.cli.tables import CROSS_FITTED, metric_lines, saturation_lines, some
from ctr.jobs import TrainOutcome

if TYPE_CHECKING:
    from ctr.metrics import MetricSummary
    from ctr.tracking import Tracker

_PASSES_SHOWN = 4
_WORKERS_SHOWN = 16
_RANKS_FROM = 0.6  # AUC
_OFF_BY = 1.25


def outcome_lines(outcome: TrainOutcome, summary: dict[str, Any]) -> list[str]:
    """The outcome as lines; `summary`: as `--json` writes it."""
    workers = some(summary["workers"], "worker")
    lines = [
        f"trained on {summary['examples']:,} examples in {summary['seconds']:.2f} s "
        f"({summary['examples_per_second']:,.0f} examples/s, {workers}, {summary['store']})",
        *_convergence_lines(outcome),
        *_evaluation_lines(outcome),
        *_admission_lines(summary),
        *_store_lines(summary, outcome.job.engine == "spark"),
        *_saved_lines(outcome),
        *bad_rows_lines(outcome.bad_rows, outcome.job.bad_row_policy.quarantine),
        *(f"warning: {text}" for text in outcome.warnings),
    ]
    if summary["holdout_bad_rows"]:
        lines.append(f"skipped {some(summary['holdout_bad_rows'], 'bad row')} of the hold-out")
    if outcome.left_in_store is not None:
        lines.append(f"warning: {outcome.left_in_store}")
    return lines


def tracked(summary: dict[str, Any], trackers: Sequence[Tracker]) -> None:
    """Store the summary with each tracker, and print where."""
    for tracker in trackers:
        typer.echo(f"tracked in {tracker.keep(summary)}", err=True)


def _evaluation_lines(outcome: TrainOutcome) -> list[str]:
    """The metrics, and notes on their interpretation."""
    names = {"progressive": "progressive validation", "training": "training rows"}
    evaluated = {names[outcome.result.measured]: outcome.progressive}
    if outcome.holdout_uncalibrated is not None:
        evaluated["hold-out, not calibrated"] = outcome.holdout_uncalibrated
    if outcome.holdout is not None:
        calibrated = outcome.model.calibration is not None
        evaluated["hold-out, calibrated" if calibrated else "hold-out"] = outcome.holdout
    lines = [*metric_lines(evaluated), *_pass_lines(outcome.holdout_by_pass)]
    if outcome.holdout_uncalibrated is not None:
        lines.append(CROSS_FITTED)
    if outcome.holdout is not None and outcome.best_pass is not None and not outcome.stopped:
        lines.append("(hold-out: the pass was chosen on these rows, so its metrics are slightly optimistic)")
    lag = outcome.progressive_lag_chunks
    if lag != 0:
        unknown = "some chunks" if lag is None else f"up to {some(lag, 'chunk')}"
        lines.append(
            f"(progressive validation: {unknown} of other workers were not yet in the weights when an "
            "example was predicted)"
        )
    if outcome.holdout_by_pass and outcome.distributed is not None and outcome.job.consistency != "bsp":
        lines.append("(hold-out after a pass: some workers had already started the next one)")
    if outcome.holdout is not None and (
        text := advice(outcome.progressive, outcome.holdout, outcome.job.pos_weight)
    ):
        lines.append(f"worse than the base rate: {text}")
    return lines


def _pass_lines(by_pass: Mapping[int, MetricSummary]) -> list[str]:
    """The log loss of the hold-out after each pass except the last; a selection of many."""
    if not by_pass:
        return []
    losses = {number: summary.logloss for number, summary in by_pass.items()}
    best = min(losses, key=lambda number: losses[number])
    chosen = list(losses) if len(losses) <= _PASSES_SHOWN else sorted({min(losses), best, max(losses)})
    shown = ", ".join(f"{losses[number]:.5f} after pass {number}" for number in chosen)
    return [f"hold-out log loss {shown}" + ("" if len(chosen) == len(losses) else " (--json has all)")]


def _convergence_lines(outcome: TrainOutcome) -> list[str]:
    """The convergence of a batch optimizer."""
    convergence = outcome.result.convergence
    if convergence is None:
        return []
    text = f"{some(convergence.iterations, 'iteration')}, objective {convergence.objective:,.2f}: "
    if convergence.converged:
        return [text + "converged"]
    if outcome.result.interrupted:
        return [text + "not yet converged"]
    return [text + "not yet converged; raise --iterations, or train on with --warm-start"]


def _saved_lines(outcome: TrainOutcome) -> list[str]:
    """Where the model was saved."""
    if outcome.result.interrupted and outcome.distributed is not None and outcome.distributed.checkpoints:
        return [
            f"stopped early, with a checkpoint: continue with --resume; the model so far is also in "
            f"{outcome.saved_to}; {outcome.job.model} was not touched"
        ]
    if outcome.result.interrupted:
        return [
            f"stopped early: the model so far is in {outcome.saved_to} "
            f"(train on with --warm-start {outcome.saved_to}); {outcome.job.model} was not touched"
        ]
    if outcome.saved_to != outcome.job.model:
        return [
            f"stopped before calibration: the uncalibrated model is in {outcome.saved_to}; "
            f"{outcome.job.model} was not touched"
        ]
    lines = [
        f"model {outcome.model.id} is in {outcome.saved_to}: "
        f"{outcome.model.linear.weights.size:,} non-zero weights"
    ]
    if outcome.published:
        lines.append(f"published in {outcome.job.publish}")
    if outcome.best_pass is not None:
        lines.append(f"early stopping: the model is from pass {outcome.best_pass}, the best on the hold-out")
    if outcome.stopped:
        lines.append("stopped before evaluation on the hold-out; the model itself is complete")
    return lines


def _admission_lines(summary: dict[str, Any]) -> list[str]:
    """The slots that `--admit` has left out."""
    admission, admit = summary["admission"], summary["settings"]["admit"]
    if admission is None:
        return []
    share = admission["left_out"] / max(admission["asked"], 1)
    return [f"left out {share:.0%} of {some(admission['asked'], 'new slot')} seen once (--admit {admit:g})"]


def _store_lines(summary: dict[str, Any], by_worker: bool) -> list[str]:
    """Time and network traffic of a job through Redis; empty for a job in memory."""
    moved = summary["moved"]
    if moved is None:
        return []
    seconds = ", ".join(f"{part} {spent:.2f}" for part, spent in summary["worker_seconds"].items())
    lines = [
        f"seconds over all workers: {seconds} (all but train and wait run beside training)",
        *(_worker_lines(moved["by_worker"]) if by_worker else ()),
        f"moved per example: {moved['bytes_per_example']:,.0f} bytes, {moved['keys_per_example']:.2f} slots",
    ]
    saved = [
        f"{name} {of['keys']:,} slots, {of['bytes'] / 1e6:,.1f} MB"
        for name, of in moved["filters"]["saved"].items()
        if of["keys"]
    ]
    if saved:
        lines.append(f"filters saved: {'; '.join(saved)}")
    if moved["resumed_from"]:
        lines.append(f"resumed from the checkpoint of {moved['resumed_from']}")
    if moved["checkpoints"]:
        lines.append(f"wrote {some(moved['checkpoints'], 'checkpoint')}")
    lines += [f"no checkpoint was written: {reason}" for reason in moved["failed_checkpoints"]]
    if moved["repeated_requests"] or moved["sent_again"]:
        lines.append(
            f"repeated {some(moved['repeated_requests'], 'request')} after trouble with the store; "
            f"sent {some(moved['sent_again'], 'update')} again after failovers had lost them"
        )
    lines += [f"a worker died: {reason}" for reason in moved["dead_workers"]]
    from ctr.ps import Saturations  # brings the Redis client with it

    return lines + saturation_lines(Saturations(**moved["saturations"]))


def _worker_lines(by_worker: Mapping[str, dict[str, Any]]) -> list[str]:
    """Where each worker ran, and where its time went."""
    lines = []
    for worker, work in list(by_worker.items())[:_WORKERS_SHOWN]:
        spent = work["seconds"]
        total = max(spent["train"] + spent["wait"], 1e-9)
        shares = ", ".join(f"{part} {seconds / total:.0%}" for part, seconds in spent.items())
        lines.append(f"worker {worker}: {work['examples']:,} examples; of its time: {shares}")
    if len(by_worker) > _WORKERS_SHOWN:
        lines.append(f"({len(by_worker) - _WORKERS_SHOWN:,} more workers; --json has all)")
    return lines


def advice(training: MetricSummary, holdout: MetricSummary, pos_weight: float = 1.0) -> str | None:
    """A diagnosis and remedy from ranking and calibration; None if the model beats the base rate."""
    if not holdout.normalized_entropy > 1:
        return None
    rates = (
        f"{training.base_rate:.2%} of the training rows are clicks, {holdout.base_rate:.2%} of the hold-out"
    )
    rates_differ = _differ(training.base_rate, holdout.base_rate)
    if not holdout.auc >= _RANKS_FROM:  # including NaN
        text = (
            "the model ranks no better than chance on the hold-out: are the rows sorted, so that the training"
        )
        text += f" part differs from it ({rates})? " if rates_differ else " part differs from it? "
        return text + "`ctr features build --shuffle 0` mixes them"
    if not _differ(holdout.calibration, 1):
        return (
            f"the model ranks well on the hold-out (AUC {holdout.auc:.3f}), but its predictions are too "
            "extreme: train with fewer --epochs, a lower --alpha, or a higher --l2"
        )
    text = (
        f"the model ranks well on the hold-out (AUC {holdout.auc:.3f}), but predicts "
        f"{holdout.calibration:.2f} times its click rate: "
    )
    if _differ(pos_weight, 1):
        return text + (
            f"--pos-weight {pos_weight:g} multiplies its odds by about that factor; --calibrate corrects the "
            "probabilities"
        )
    if rates_differ:
        return text + (
            f"{rates}. If negatives were down-sampled, give the remaining ones a larger weight (`weight` in "
            "the spec); if the click rate has changed, train on newer rows"
        )
    return text + "its weights have not converged; train with a higher --alpha, or more --epochs"


def _differ(one: float, other: float) -> bool:
    return max(one, other) > _OFF_BY * min(one, other)
