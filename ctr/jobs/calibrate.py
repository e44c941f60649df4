"""`calibrate_model`: fits the probabilities of a trained model to labelled rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ctr.errors import named
from ctr.features import BadRows, ExampleSource, open_source
from ctr.metrics import MetricSummary
from ctr.model import (
    DIGESTS,
    Model,
    calibrate,
    load_model,
    require_model_or_nothing,
    require_uncalibrated,
    seen_rows,
)
from ctr.outputs import printable, require_writable
from ctr.settings import CalibrateJob


@dataclass(frozen=True, slots=True)
class CalibrationOutcome:
    """A saved calibrated model, and its fit."""

    model: Model
    of_model: str
    """The id of the model that was calibrated."""
    before: MetricSummary
    after: MetricSummary
    """Cross-fitted: see `ctr.model.Calibrated`."""
    bad_rows: BadRows
    """The skipped rows."""
    warnings: list[str]
    """Reasons why the fit may be worse than its metrics."""
    seconds: float
    """Time since the first row."""

    def to_json(self) -> dict[str, Any]:
        """The summary of `ctr calibrate --json`."""
        return {
            "model": self.model.id,
            "calibrated": self.model.manifest["calibrated"],
            "holdout": self.after.to_json(),
            "holdout_uncalibrated": self.before.to_json(),
            "bad_rows": self.bad_rows.count,
            "warnings": self.warnings,
            "seconds": self.seconds,
        }


def calibrate_model(
    job: CalibrateJob,
    on_source: Callable[[ExampleSource], None] = lambda _: None,
    on_rows: Callable[[int, float], None] = lambda rows, fraction: None,
) -> CalibrationOutcome:
    """Calibrate the model of the job, and save the result.

    `on_source` is called with the source before reading, `on_rows` with the number and share of rows read.
    Raises ModelError for a model that is already calibrated, and DataError if a half of the rows has one
    label only.
    """
    require_model_or_nothing(job.out)
    require_writable(job.out)
    model = load_model(job.model)
    if not job.replace:
        require_uncalibrated(model, named("replace"))
    source = open_source(
        job.inputs,
        model.spec,
        on_bad_rows=job.bad_row_policy,
        windows=model.windows_after(),
    )
    on_source(source)
    started = perf_counter()
    fitted = calibrate(
        model.linear, source, job.method, on_rows=lambda rows: on_rows(rows, source.fraction_read)
    )
    assert fitted is not None  # only an interrupt stops it
    inputs = [printable(each) for each in job.inputs]
    calibrated = fitted.of_saved(model, inputs)
    calibrated.save(job.out)
    warnings = []
    if seen_rows(model.manifest, calibrated.manifest["calibrated"][DIGESTS]) == "trained":
        warnings.append(
            f"the model was trained on rows of {', '.join(inputs)}, so it is overconfident there; calibrate "
            "on other rows"
        )
    return CalibrationOutcome(
        calibrated,
        model.id,
        fitted.before.summary(),
        fitted.after.summary(),
        source.bad_rows,
        warnings,
        perf_counter() - started,
    )
