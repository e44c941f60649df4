"""`ctr evaluate`, `ctr predict` and `ctr explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

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
from ctr.outputs import beside, beside_input, require_apart, require_no_part, require_writable
from ctr.table import table

if TYPE_CHECKING:
    from ctr.model import Compared, Explanation, Model


ModelsOption = Annotated[
    list[Path],
    typer.Option(
        "--model",
        metavar="DIR",
        help="Folder of a trained model; several models are compared on the same rows.",
        show_default=False,
    ),
]


def evaluate(
    inputs: Inputs,
    models: ModelsOption,
    on_bad_rows: BadRowsOption = OnBadRows.FAIL,
    max_bad_fraction: MaxBadFraction = MOST_BAD,
    json: JsonOption = None,
) -> None:
    """Evaluate a model on labelled examples, or compare several.

    *Log loss* is the mean negative log likelihood; *normalized entropy* divides it by that of always
    predicting the base rate (below 1 is better than that); *AUC* is how often a click is ranked above a
    non-click; *calibration* is mean prediction divided by click rate (1 is right).

    Of several models, each is set against the first: how much lower or higher its log loss is, and between
    which bounds that is with 95% confidence, from the differences on each row.

    Example: `ctr evaluate --model model tomorrow.tsv`
    """
    from ctr.model import compare, load_model
    from ctr.progress import progress
    from features import open_source

    require_apart(json, inputs)
    require_no_part(json)
    if len(set(models)) < len(models):
        raise typer.BadParameter("one --model is there twice; name each model once.")
    if len(models) > 1 and "-" in inputs:
        raise typer.BadParameter(
            "standard input can be read once, for one --model; give a file to compare on."
        )
    loaded = [load_model(model) for model in models]
    quarantine = beside_input(inputs[0], ".bad-rows") if on_bad_rows is OnBadRows.QUARANTINE else None
    first_only = on_bad_rows, quarantine
    others = (OnBadRows.FAIL if on_bad_rows is OnBadRows.FAIL else OnBadRows.SKIP), None
    sources = [
        open_source(inputs, m.spec, on_bad_rows=do.value, quarantine=file, max_bad_fraction=max_bad_fraction)
        for m, (do, file) in zip(loaded, chain([first_only], repeat(others)), strict=False)
    ]
    first = sources[0]
    started = perf_counter()
    with stopping("Nothing was written."), progress("evaluating") as show:
        compared = compare(loaded, sources, on_rows=lambda rows: show(rows, first.fraction_read))
    lines, facts = _evaluation(dict(zip(map(str, models), loaded, strict=True)), compared)
    facts |= {
        "bad_rows": first.bad_rows.count,
        "seconds": perf_counter() - started,
        "peak_memory_mb": peak_memory_mb(),
    }
    report(lines + bad_rows_lines(first.bad_rows, quarantine), facts, json)


def _evaluation(
    models: Mapping[str, Model], compared: Sequence[Compared]
) -> tuple[list[str], dict[str, Any]]:
    """What is told of models by their folders, for a person and as JSON."""
    from ctr.cli.tables import metric_lines, reliability_lines

    summaries = [each.metrics.summary() for each in compared]
    first, *others = models
    lines = metric_lines(dict(zip(models, summaries, strict=True)))
    differences = [each.against_first.difference() for each in compared[1:]]
    for name, found in zip(others, differences, strict=True):
        surely = "better" if found.high < 0 else "worse" if found.low > 0 else "no sure difference"
        lines.append(
            f"{name} against {first}: log loss {found.logloss:+.5f} "
            f"(95%: {found.low:+.5f} to {found.high:+.5f}), {surely}"
        )
    if not others:
        lines += ["", *reliability_lines(summaries[0])]
    facts: dict[str, Any] = {"model": models[first].id, **summaries[0].to_json()}
    facts["others"] = [
        {"model": models[name].id, **summary.to_json(), "against_first": found.to_json()}
        for name, summary, found in zip(others, summaries[1:], differences, strict=True)
    ]
    return lines, facts


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
