"""`ctr tune`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.reporting import STOPPED, Report, bad_rows_lines, peak_memory_mb, stopping
from ctr.cli.tables import some, table
from ctr.outputs import require_apart, require_no_part
from ctr.progress import Report as ProgressReport
from ctr.progress import progress

if TYPE_CHECKING:
    from ctr.crosses import Suggestion
    from ctr.search import Progress, Tried, Tuned
    from ctr.settings import TuneJob

_SHOWN = 5


def tune(
    job: TuneJob,
    report: Report,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Plot the log loss of all trials, in their order and by learning rate: PNG or SVG.",
        ),
    ] = None,
) -> None:
    """Find good settings of `ctr train` for some data.

    Each trial trains with other settings (alpha, beta, l1, l2) on part of the rows, and is scored on the rest
    after every pass, which also determines the number of passes. Trials also scale fields, as some learn best
    with larger steps than others. Ctrl-C keeps the best settings so far. The search uses Optuna, which comes
    with `make install` and `ctr[all]`.

    Examples:

    - `ctr tune --spec criteo clicks.tsv --out settings.yaml`
    - `ctr train clicks.tsv --settings settings.yaml --model model`
    - `ctr tune --spec criteo clicks.tsv --crosses 20 --out settings.yaml`
    """
    from ctr.interrupts import stop_requests
    from ctr.jobs import run_tune_job
    from ctr.search import require_optuna, require_plot, write_plot

    require_optuna()
    if plot is not None:
        require_apart(plot, [*job.inputs, None if job.spec is None else str(job.spec)])
        require_no_part(plot)
        require_plot(plot)
    with stopping(f"{job.out} was not written."), stop_requests() as stop, showing_search() as shown:
        outcome = run_tune_job(job, stop, progress, shown.on_rows, shown.on_progress)
    tuned = outcome.tuned
    if plot is not None:
        write_plot(tuned, plot)
    summary = tuned.to_json() | {
        "spec": asdict(outcome.spec),
        "workers": outcome.workers,
        "peak_memory_mb": peak_memory_mb(),
    }
    lines = [
        *_lines(tuned, job.out),
        *_crosses_lines(outcome.suggestion, tuned, job.crossed_spec),
        *bad_rows_lines(outcome.bad_rows, job.bad_row_policy.quarantine),
    ]
    report(lines, summary)
    if tuned.stopped:
        raise typer.Exit(STOPPED)


class SearchShown:
    """Shows the progress of hashing, then that of the trials, so that the remaining time is right."""

    def __init__(self, shown: ExitStack) -> None:
        self._shown = shown
        self._report: ProgressReport = shown.enter_context(progress("hashing"))
        self._tuning = False

    def on_rows(self, rows: int, fraction: float) -> None:
        """Show the number of hashed rows."""
        self._report(rows, fraction)

    def on_progress(self, so_far: Progress) -> None:
        """Show the progress of the trials."""
        if not self._tuning:
            self._tuning = True
            self._shown.close()
            self._report = self._shown.enter_context(progress("tuning"))
        best = min((trial.judged.loss for trial in so_far.tried), default=None)
        self._report(so_far.rows, so_far.fraction, best)


@contextmanager
def showing_search() -> Iterator[SearchShown]:
    """Show the progress of a search until the `with` block ends."""
    with ExitStack() as shown:
        yield SearchShown(shown)


def _lines(tuned: Tuned, out: Path) -> list[str]:
    from ctr.search import scales_in_words

    heads = (
        "trial",
        "log loss",
        "with passes",
        "calibration",
        "epochs",
        "alpha",
        "beta",
        "l1",
        "l2",
        "scaled",
        "crosses",
    )
    shown = [each for each in tuned.ranked[:_SHOWN] if each.judged.best_pass]
    rows = [heads, *(_row(each) for each in shown)]
    has_column = {
        "scaled": any(each.scales for each in tuned.tried),
        "crosses": any(each.crosses for each in tuned.tried),
    }
    rows = [
        tuple(cell for head, cell in zip(heads, row, strict=True) if has_column.get(head, True))
        for row in rows
    ]
    lines = [
        f"tried {some(len(tuned.tried), 'setting')} in {tuned.seconds:.1f} s, scored on {tuned.scored_on}",
        *([f"best {len(shown)} (an extra pass must improve log loss by 0.01%)"] if len(shown) > 1 else []),
        *table(rows, ">" * len(rows[0])),
        tuned.gain,
        *scales_in_words(tuned.best.scales),
        *(f"warning: {text}" for text in tuned.warnings),
        f"{out}: the settings of trial {tuned.best.number}, for `ctr train --settings {out}`, which uses the "
        "same spec",
    ]
    return ["stopped early: the best so far", *lines] if tuned.stopped else lines


def _crosses_lines(suggestion: Suggestion | None, tuned: Tuned, new_spec: Path) -> list[str]:
    """Where the spec with crosses is, if crosses were searched."""
    if suggestion is None:
        return []
    if not tuned.best.crosses:
        return ["no cross improved the log loss; the spec stays as it is"]
    crosses = some(tuned.best.crosses, "cross")
    return [f"{new_spec}: the spec with {crosses} more, which the settings name; give no other --spec"]


def _row(tried: Tried) -> tuple[str, ...]:
    judged = tried.judged
    settings = (f"{tried.settings[name]:g}" for name in ("alpha", "beta", "l1", "l2"))
    return (
        str(tried.number),
        f"{judged.loss:.5f}",
        f"{judged.cost:.5f}",
        f"{judged.calibration:.3f}",
        str(judged.best_pass),
        *settings,
        "yes" if tried.scales else "no",
        str(tried.crosses),
    )
