"""`ctr predict` and `ctr explain`."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.options import (
    MOST_BAD,
    BadRowsOption,
    Inputs,
    JsonOption,
    MaxBadFraction,
    ModelOption,
    OnBadRows,
)
from ctr.cli.reporting import bad_rows_lines, peak_memory_mb, report, stopping
from ctr.outputs import beside, require_apart, require_no_part, require_writable
from ctr.table import table

if TYPE_CHECKING:
    from ctr.model import Explanation


def predict(
    inputs: Inputs,
    model: ModelOption,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Predictions go here: .parquet or .csv.", show_default=False)
    ],
    unlabelled: Annotated[
        bool,
        typer.Option(
            "--unlabelled",
            help="Files without a header lack the label column; needed where that cannot be detected.",
        ),
    ] = False,
    on_bad_rows: BadRowsOption = OnBadRows.FAIL,
    max_bad_fraction: MaxBadFraction = MOST_BAD,
    json: JsonOption = None,
) -> None:
    """Write the click probability of every input row, in input order, to the column `prediction`.

    Labels are not needed. A row skipped as bad has the prediction null (`nan` in CSV), so rows stay
    aligned.

    Example: `ctr predict --model model tomorrow.tsv --out predictions.parquet`
    """
    from ctr.model import load_model, predict_file
    from ctr.progress import progress
    from features import open_source

    require_apart(out, inputs)
    require_apart(json, inputs)
    for place in (out, json):
        require_no_part(place)
    require_writable(out, make_folders=False)
    loaded = load_model(model)
    quarantine = beside(out, ".bad-rows") if on_bad_rows is OnBadRows.QUARANTINE else None
    source = open_source(
        inputs,
        loaded.spec,
        labels="absent" if unlabelled else "ignored",
        on_bad_rows=on_bad_rows.value,
        quarantine=quarantine,
        max_bad_fraction=max_bad_fraction,
    )
    started = perf_counter()
    with stopping(f"{out} was not written."), progress("predicting") as show:
        rows = predict_file(loaded, source, out, on_rows=lambda rows: show(rows, source.fraction_read))
    seconds = perf_counter() - started
    facts = {
        "model": loaded.id,
        "examples": rows,
        "bad_rows": source.bad_rows.count,
        "seconds": seconds,
        "examples_per_second": rows / seconds,
        "peak_memory_mb": peak_memory_mb(),
    }
    lines = [f"wrote {rows:,} predictions of model {loaded.id} to {out}"]
    report(lines + bad_rows_lines(source.bad_rows, quarantine), facts, json)


def explain(
    inputs: Inputs,
    model: ModelOption,
    rows: Annotated[int, typer.Option(min=1, max=1_000, help="How many of the first rows.")] = 3,
    json: JsonOption = None,
) -> None:
    """Show what each feature of a row adds to its prediction, the most telling first.

    Contributions (weight times value) add up to the log-odds of a click; those of a calibrated model are
    before calibration. A feature that the model has not learnt has the weight 0.

    Example: `ctr explain --model model tomorrow.tsv --rows 1`
    """
    from ctr.model import explain as run
    from ctr.model import load_model

    require_apart(json, inputs)
    require_no_part(json)
    loaded = load_model(model)
    found = run(loaded, inputs, rows)
    notes = ", before calibration" if loaded.calibration is not None else ""
    notes += ", windows left out" if loaded.spec.windows else ""
    lines = [line for each in found for line in _explanation_lines(each, notes)]
    report(lines, {"model": loaded.id, "rows": [each.to_json() for each in found]}, json)


def _explanation_lines(found: Explanation, notes: str) -> list[str]:
    if not found.contributions:
        return [found.place]
    cells = [("field", "text", "feature", "weight", "contribution")]
    for each in found.contributions:
        weight = f"{each.weight:+.4f}" + ("" if each.value == 1 else f" x {each.value:g}")
        cells.append((each.field, each.text, each.feature, weight, f"{each.contribution:+.4f}"))
    said = f"prediction {found.prediction:.5f}, log-odds {found.log_odds:+.4f}"
    return [
        f"{found.place}: {said}{notes}",
        *(f"  {line}" for line in table(cells, "<<<>>")),
    ]
