"""`ctr train --auto`: a short search for settings before the training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ctr.cli.tables import some

if TYPE_CHECKING:
    from ctr.cli.train.options import TrainOptions
    from ctr.jobs import TrainJob, TrainOutcome
    from ctr.tune import Tuned


def check_auto(job: TrainJob, told: TrainOptions) -> None:
    """Raise BadParameter for options that do not go with --auto, and CtrError where Optuna is missing."""
    from ctr.tune import require_optuna

    against = {
        "--settings": told.settings is not None,
        "--epochs": job.epochs != 1,
        "--early-stopping": job.early_stopping,
        "--warm-start": job.warm_start is not None,
        "--resume": job.resume,
        "--progressive-days": told.progressive_days,
        "--negative-rate": job.negative_rate != 1,
        "--pos-weight": job.pos_weight != 1,
    }
    if wrong := [name for name, given in against.items() if given]:
        raise typer.BadParameter(
            f"--auto is for a new model of all rows, whose settings it chooses: leave out {wrong[0]}."
        )
    if job.optimizer.get("name", "ftrl") != "ftrl":
        raise typer.BadParameter("--auto finds settings of the optimizer ftrl: leave out --optimizer.")
    if "-" in job.inputs:
        raise typer.BadParameter("--auto reads the rows twice, and - (standard input) can be read only once.")
    require_optuna()


def tune_first(job: TrainJob, told: TrainOptions) -> tuple[TrainJob, Tuned]:
    """Find settings, and say which and why; the job with them. Raises KeyboardInterrupt when told to stop."""
    from ctr.cli.search_progress import showing_search
    from ctr.interrupts import stop_requests
    from ctr.jobs import require_places, tuned
    from ctr.tune import described

    require_places(job)
    with stop_requests() as stop, showing_search() as shown:
        job, found = tuned(job, job.model.parent, stop, shown.on_rows, shown.on_progress)
    if found.stopped:
        raise KeyboardInterrupt
    seconds = found.hashing_s + found.seconds
    trials = some(len(found.tried), "trial")
    lines = (
        *(f"auto: {line}" for line in described(found)),
        f"auto: {trials} in {seconds:.1f} s, scored on {found.scored_on}:",
        f"auto: {found.gain}",
        *([f"auto: ended after {found.cut}"] if found.cut else []),
        *(f"warning: {text}" for text in found.warnings),
    )
    for line in lines:
        typer.echo(line, err=str(told.json) == "-")
    return job, found


def share_of_tuning(found: Tuned, outcome: TrainOutcome) -> str:
    """How much of the time the search took."""
    seconds = found.hashing_s + found.seconds
    return f"auto took {seconds:.1f} s, {seconds / (seconds + outcome.result.seconds):.0%} of the time"
