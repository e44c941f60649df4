"""`ctr predict` and `ctr explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.reporting import Report, bad_rows_lines, peak_memory_mb, stopping, warn_of_layout
from ctr.cli.tables import table

if TYPE_CHECKING:
    from ctr.model import Explanation, Model
    from ctr.settings import Inputs, ModelFolder, PredictJob, Values


def predict(job: PredictJob, report: Report) -> None:
    """Write the click probability of every input row, in input order, to the column `prediction`.

    Labels are not needed. A row that is skipped as bad has the prediction null (`nan` in CSV), so rows stay
    aligned. An existing file is replaced when all predictions are written.

    Example: `ctr predict --model model tomorrow.tsv --out predictions.parquet`
    """
    from ctr.jobs import predict_rows
    from ctr.progress import progress

    if job.to_stdout and report.to_stdout:
        raise typer.BadParameter("--out - and --json - do not go together; name a file for one of them.")
    kept = "Not all predictions were written." if job.to_stdout else f"{job.out} was not written."
    with stopping(kept), progress("predicting") as show:
        predicted = predict_rows(job, warn_of_layout, show)
    place = "standard output" if job.to_stdout else job.out
    lines = [
        f"wrote {predicted.rows:,} predictions of model {predicted.model} to {place}",
        *bad_rows_lines(predicted.bad_rows, job.bad_row_policy.quarantine),
    ]
    facts = {
        "model": predicted.model,
        "examples": predicted.rows,
        "bad_rows": predicted.bad_rows.count,
        "seconds": predicted.seconds,
        "examples_per_second": predicted.rows / predicted.seconds,
        "peak_memory_mb": peak_memory_mb(),
    }
    report(lines, facts, to_stderr=job.to_stdout)


def explain(
    report: Report,
    inputs: Inputs,
    model: ModelFolder,
    rows: Annotated[int, typer.Option(min=1, max=1_000, help="How many of the first rows.")] = 3,
    values: Values = None,
) -> None:
    """Show what each feature of a row adds to its prediction, the largest contributions first.

    Contributions (weight times value) add up to the log-odds of a click, before calibration. A feature that
    occurs in no training row is *unseen*, and adds nothing; if the model was trained with --admit or
    --negative-rate, training may have skipped it: it is *not in the model*. For rows of a hashed data set,
    texts come from the dictionaries of the model and the data set, and from the values in FILE.

    Example: `ctr explain --model model tomorrow.tsv --rows 1`
    """
    from ctr.features import is_dataset
    from ctr.model import explain as run
    from ctr.model import load_model

    hashed = is_dataset(inputs[0])
    if values is not None and not hashed:
        raise typer.BadParameter("--values is for a hashed data set: raw rows have their own values.")
    loaded = load_model(model)
    explanations = run(loaded, [str(each) for each in inputs], rows, values)
    absent = _absent(loaded, explanations)
    training = loaded.manifest.get("training", {})
    # Otherwise, training may have skipped features.
    unseen = all(training.get(name, 1) == 1 for name in ("admit", "negative_rate"))
    notes = ", before calibration" if loaded.calibration is not None else ""
    notes += ", windows left out" if loaded.spec.windows and not hashed else ""
    lines = [
        line
        for each in explanations
        for line in _explanation_lines(each, notes, absent, "unseen" if unseen else "not in the model")
    ]
    facts = [_explanation_facts(each, absent, False if unseen else None) for each in explanations]
    report(lines, {"model": loaded.id, "rows": facts})


def _absent(model: Model, explanations: Sequence[Explanation]) -> set[int]:
    """The slots that are not in the model, without those whose weight a penalty keeps at 0."""
    import numpy as np

    from ctr.features import slot_dtype
    from ctr.model import state_of

    zero = {part.slot for each in explanations for part in each.contributions if part.weight == 0}
    slots = np.array(sorted(zero), slot_dtype(model.spec.bits))
    return set(slots[~np.isin(slots, state_of(model)[0])].tolist()) if zero else set()


def _explanation_facts(explanation: Explanation, absent: set[int], seen: bool | None) -> dict[str, Any]:
    """The explanation as JSON, with `seen` for each feature; `seen`: its value for absent slots."""
    facts = explanation.to_json()
    facts["contributions"] = [
        {**part, "seen": seen if part["slot"] in absent else True} for part in facts["contributions"]
    ]
    return facts


def _explanation_lines(explanation: Explanation, notes: str, absent: set[int], word: str) -> list[str]:
    if not explanation.contributions:
        return [explanation.place]
    cells = [("field", "text", "feature", "weight", "contribution")]
    for each in explanation.contributions:
        value = "" if each.value == 1 else f" x {each.value:g}"
        weight, adds = f"{each.weight:+.4f}{value}", f"{each.contribution:+.4f}"
        if each.slot in absent:
            weight, adds = word, "-"
        cells.append((each.field, each.text, each.feature, weight, adds))
    result = f"prediction {explanation.prediction:.5f}, log-odds {explanation.log_odds:+.4f}"
    return [
        f"{explanation.place}: {result}{notes}",
        *(f"  {line}" for line in table(cells, "<<<>>")),
    ]
