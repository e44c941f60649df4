"""`ctr calibrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.cli.reporting import Report, bad_rows_lines, peak_memory_mb, stopping, warn_of_layout
from ctr.cli.tables import CROSS_FITTED, metric_lines
from ctr.outputs import printable

if TYPE_CHECKING:
    from ctr.settings import CalibrateJob


def calibrate(job: CalibrateJob, report: Report) -> None:
    """Fit the probabilities of a trained model to labelled rows.

    Give rows that the model was not trained on. The calibrated model is a new model with the same weights;
    its manifest names the original model and these inputs. This is `ctr train --calibrate` for an existing
    model.

    Example: `ctr calibrate --model model tomorrow.tsv --method platt --out calibrated`
    """
    from ctr.jobs import calibrate_model
    from ctr.progress import progress

    with stopping(f"{job.out} was not written."), progress("calibrating") as show:
        outcome = calibrate_model(job, warn_of_layout, show)
    after = outcome.after
    lines = [
        *metric_lines({"not calibrated": outcome.before, "calibrated": after}),
        CROSS_FITTED,
        f"model {outcome.model.id} is in {job.out}: model {outcome.of_model}, calibrated on "
        f"{after.examples:,} rows",
        *bad_rows_lines(outcome.bad_rows, job.bad_row_policy.quarantine),
        *(f"warning: {text}" for text in outcome.warnings),
    ]
    facts = {"saved_to": printable(job.out), "peak_memory_mb": peak_memory_mb()}
    report(lines, outcome.to_json() | facts)
