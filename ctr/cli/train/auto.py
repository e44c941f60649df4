"""`ctr train --auto`: a short search for settings before the training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ctr.cli.tables import some

if TYPE_CHECKING:
    from pathlib import Path

    from ctr.jobs import TrainOutcome
    from ctr.search import Tuned
    from ctr.settings import TrainJob


def tune_first(job: TrainJob, json: Path | None) -> tuple[TrainJob, Tuned]:
    """Find settings, and say which and why; the job with them. Raises KeyboardInterrupt when told to stop."""
    from ctr.cli.search_progress import showing_search
    from ctr.interrupts import stop_requests
    from ctr.jobs import require_places, tuned
    from ctr.search import described, require_optuna

    require_optuna()
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
        typer.echo(line, err=str(json) == "-")
    return job, found


def share_of_tuning(found: Tuned, outcome: TrainOutcome) -> str:
    """How much of the time the search took."""
    seconds = found.hashing_s + found.seconds
    return f"auto took {seconds:.1f} s, {seconds / (seconds + outcome.result.seconds):.0%} of the time"
