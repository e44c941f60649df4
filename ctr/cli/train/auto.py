"""`ctr train --auto`: a short search for settings before the training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ctr.cli.tables import some

if TYPE_CHECKING:
    from ctr.cli.reporting import Report
    from ctr.jobs import TrainOutcome
    from ctr.search import Tuned
    from ctr.settings import TrainJob


def tune_first(job: TrainJob, report: Report) -> tuple[TrainJob, Tuned]:
    """Find settings, say which and why; return the job with them. Raises KeyboardInterrupt if stopped."""
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


def share_of_tuning(search: Tuned, outcome: TrainOutcome) -> str:
    """How much of the time the search took."""
    seconds = search.hashing_s + search.seconds
    return f"auto took {seconds:.1f} s, {seconds / (seconds + outcome.result.seconds):.0%} of the time"
