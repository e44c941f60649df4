"""`predict_rows`: writes the click probability of each row of an input to a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from ctr.features import BadRows, ExampleSource, open_source
from ctr.model import load_model, predict_file, require_predictable
from ctr.outputs import require_apart, require_no_part
from ctr.settings import PredictJob


@dataclass(frozen=True, slots=True)
class Predicted:
    """The outcome of predictions."""

    model: str
    """The id of the model that predicted."""
    rows: int
    bad_rows: BadRows
    """The skipped rows, without a prediction."""
    seconds: float
    """Time since the first row."""


def predict_rows(
    job: PredictJob,
    on_source: Callable[[ExampleSource], None] = lambda _: None,
    on_rows: Callable[[int, float], None] = lambda rows, fraction: None,
) -> Predicted:
    """Score every row of the job in order: see `ctr.model.predict_file`.

    `on_source` is called with the source before reading, `on_rows` with the number and share of rows read.
    """
    require_apart(job.out, job.inputs)
    require_no_part(job.out)
    require_predictable(job.out)
    model = load_model(job.model)
    source = open_source(
        job.inputs,
        model.spec,
        labels="absent" if job.unlabelled else "ignored",
        on_bad_rows=job.bad_row_policy,
        also=job.named_columns,
        windows=model.windows_after(),
    )
    on_source(source)
    started = perf_counter()
    rows = predict_file(
        model,
        source,
        job.out,
        columns=job.named_columns,
        margins=job.margins,
        on_rows=lambda rows: on_rows(rows, source.fraction_read),
    )
    return Predicted(model.id, rows, source.bad_rows, perf_counter() - started)
