"""`ctr predict` and `ctr explain`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.reporting import Report, bad_rows_lines, peak_memory_mb, stopping, warn_of_layout
from ctr.cli.tables import table
from ctr.defaults import MOST_BAD
from ctr.outputs import beside, require_apart, require_no_part

if TYPE_CHECKING:
    from ctr.model import Explanation, Model
    from ctr.settings import BadRows, Inputs, MaxBadFraction, ModelFolder, Setting, Values


def predict(
    report: Report,
    inputs: Inputs,
    model: ModelFolder,
    out: Annotated[
        Path,
        Setting(
            "Predictions go here: .parquet, .csv or .tsv; - is standard output, as CSV.",
            metavar="FILE",
        ),
    ],
    columns: Annotated[
        str,
        Setting(
            "Columns of the raw rows to write before the prediction, as text, such as an id.",
            metavar="A,B,…",
        ),
    ] = "",
    margins: Annotated[bool, Setting("Write the log-odds, too, to the column `log_odds`.")] = False,
    unlabelled: Annotated[
        bool,
        Setting("Files without a header lack the label column; needed where that cannot be detected."),
    ] = False,
    on_bad_rows: BadRows = "fail",
    max_bad_fraction: MaxBadFraction = MOST_BAD,
) -> None:
    """Write the click probability of every input row, in input order, to the column `prediction`.

    Labels are not needed. A row skipped as bad has the prediction null (`nan` in CSV), so rows stay
    aligned. A file that is there is replaced when all predictions are written.

    Example: `ctr predict --model model tomorrow.tsv --out predictions.parquet`
    """
    from ctr.features import BadRowPolicy, open_source
    from ctr.model import load_model, predict_file, require_predictable
    from ctr.progress import progress

    names = _names(columns)
    to_stdout = str(out) == "-"
    if to_stdout and report.to_stdout:
        raise typer.BadParameter("--out - and --json - do not go together; name a file for one of them.")
    if to_stdout and on_bad_rows == "quarantine":
        raise typer.BadParameter("--out - has no place beside it for bad rows; write predictions to a file.")
    require_apart(out, inputs)
    require_no_part(out)
    require_predictable(out)
    loaded = load_model(model)
    policy = BadRowPolicy.of(on_bad_rows, max_bad_fraction, beside(out, ".bad-rows"))
    source = open_source(
        inputs,
        loaded.spec,
        labels="absent" if unlabelled else "ignored",
        on_bad_rows=policy,
        also=names,
        windows=loaded.windows_after(),
    )
    warn_of_layout(source)
    started = perf_counter()
    kept = "Not all predictions were written." if to_stdout else f"{out} was not written."
    with stopping(kept), progress("predicting") as show:
        rows = predict_file(
            loaded,
            source,
            out,
            columns=names,
            margins=margins,
            on_rows=lambda rows: show(rows, source.fraction_read),
        )
    facts = {"model": loaded.id, "examples": rows, "bad_rows": source.bad_rows.count}
    facts |= {"seconds": (seconds := perf_counter() - started), "examples_per_second": rows / seconds}
    facts["peak_memory_mb"] = peak_memory_mb()
    lines = [f"wrote {rows:,} predictions of model {loaded.id} to {'standard output' if to_stdout else out}"]
    report(lines + bad_rows_lines(source.bad_rows, policy.quarantine), facts, to_stderr=to_stdout)


def _names(columns: str) -> list[str]:
    """The names of columns between commas."""
    names = [name.strip() for name in columns.split(",")] if columns else []
    if "" in names or len({*names, "prediction", "log_odds"}) < len(names) + 2:
        raise typer.BadParameter(
            f"--columns is {columns!r}: name each column once, with commas between them, and none that is"
            " called prediction or log_odds."
        )
    return names


def explain(
    report: Report,
    inputs: Inputs,
    model: ModelFolder,
    rows: Annotated[int, typer.Option(min=1, max=1_000, help="How many of the first rows.")] = 3,
    values: Values = None,
) -> None:
    """Show what each feature of a row adds to its prediction, the most telling first.

    Contributions (weight times value) add up to the log-odds of a click; those of a calibrated model are
    before calibration. A feature that no training row had is *unseen*, and adds nothing; if the model was
    trained with --admit or --negative-rate, training may have skipped it: it is *not in the model*. Rows of
    a hashed data set have the texts of the model's dictionary, of the data set's, and of the values in FILE.

    Example: `ctr explain --model model tomorrow.tsv --rows 1`
    """
    from ctr.features import is_dataset
    from ctr.model import explain as run
    from ctr.model import load_model

    hashed = is_dataset(inputs[0])
    if values is not None and not hashed:
        raise typer.BadParameter("--values is for a hashed data set: raw rows have their own values.")
    loaded = load_model(model)
    found = run(loaded, [str(each) for each in inputs], rows, values)
    absent = _absent(loaded, found)
    unseen = not _skipped_features(loaded)
    notes = ", before calibration" if loaded.calibration is not None else ""
    notes += ", windows left out" if loaded.spec.windows and not hashed else ""
    lines = [
        line
        for each in found
        for line in _explanation_lines(each, notes, absent, "unseen" if unseen else "not in the model")
    ]
    facts = [_explanation_facts(each, absent, False if unseen else None) for each in found]
    report(lines, {"model": loaded.id, "rows": facts})


def _skipped_features(model: Model) -> bool:
    """Whether features of training rows may have been left out of the model."""
    training = model.manifest.get("training", {})
    return any(training.get(name, 1) < 1 for name in ("admit", "negative_rate"))


def _absent(model: Model, found: Sequence[Explanation]) -> set[int]:
    """The slots that are not in the model; not those whose weight a penalty keeps at 0."""
    import numpy as np

    from ctr.features import slot_dtype
    from ctr.model import state_of

    zero = {part.slot for each in found for part in each.contributions if part.weight == 0}
    slots = np.array(sorted(zero), slot_dtype(model.spec.bits))
    return set(slots[~np.isin(slots, state_of(model)[0])].tolist()) if zero else set()


def _explanation_facts(found: Explanation, absent: set[int], seen: bool | None) -> dict[str, Any]:
    """As JSON, in which each feature says whether training has met it; `seen`: of those that are absent."""
    facts = found.to_json()
    facts["contributions"] = [
        {**part, "seen": seen if part["slot"] in absent else True} for part in facts["contributions"]
    ]
    return facts


def _explanation_lines(found: Explanation, notes: str, absent: set[int], word: str) -> list[str]:
    if not found.contributions:
        return [found.place]
    cells = [("field", "text", "feature", "weight", "contribution")]
    for each in found.contributions:
        value = "" if each.value == 1 else f" x {each.value:g}"
        weight, adds = f"{each.weight:+.4f}{value}", f"{each.contribution:+.4f}"
        if each.slot in absent:
            weight, adds = word, "-"
        cells.append((each.field, each.text, each.feature, weight, adds))
    said = f"prediction {found.prediction:.5f}, log-odds {found.log_odds:+.4f}"
    return [
        f"{found.place}: {said}{notes}",
        *(f"  {line}" for line in table(cells, "<<<>>")),
    ]
