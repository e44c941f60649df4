"""`ctr evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.reporting import Report, bad_rows_lines, peak_memory_mb, stopping, warn_of_layout
from ctr.outputs import require_apart, require_no_part, require_writable

if TYPE_CHECKING:
    from ctr.jobs import Evaluation
    from ctr.model import Slices
    from ctr.settings import EvaluateJob

WORSE = 3
"""Exit code of `--fail-if-worse`."""
_SLICES_SHOWN = 10
_ROWS_NAMED = 50_000  # from which a report takes the texts of features: about 2 s for 39 fields


def evaluate(
    job: EvaluateJob,
    report: Report,
    page: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Write metrics, curves, slices, settings and lineage as a page, one .html file.",
            dir_okay=False,
        ),
    ] = None,
    fail_if_worse: Annotated[
        bool,
        typer.Option(
            "--fail-if-worse",
            help="Exit with code 3 if a model's log loss is higher than that of the first one, and the 95% "
            "confidence interval of the difference is above 0.",
        ),
    ] = False,
) -> None:
    """Evaluate a model on labelled examples, or compare several.

    *Log loss* is the mean negative log likelihood; *normalized entropy* divides it by the log loss of always
    predicting the base rate (below 1 is better than that); *AUC* is how often a click is ranked above a
    non-click; *calibration* is the mean prediction divided by the click rate (1 is ideal).

    Several models are each compared with the first: the difference in log loss, with its 95% confidence
    interval from the differences on each row.

    `--by` shows the 10 most frequent values of a column, and all others in one line. `--json` has up to 64
    values, in order of appearance. It also has ROC and precision-recall curves, lift by decile, reliability,
    and a histogram of the predictions.

    Examples:

    - `ctr evaluate --model model tomorrow.tsv --by C9`
    - `ctr evaluate --model old --model new tomorrow.tsv --fail-if-worse`
    """
    from ctr.jobs import evaluate_models
    from ctr.model import load_model
    from ctr.progress import progress

    if fail_if_worse and len(job.model) < 2:
        raise typer.BadParameter(
            "--fail-if-worse compares models: give the one to beat as the first --model."
        )
    if page is not None:
        _require_page(page, job.inputs)
    models = [load_model(model) for model in job.model]
    started = perf_counter()
    with stopping("Nothing was written."), progress("evaluating") as show:
        evaluations = evaluate_models(models, job, warn_of_layout, show)
    names = [str(path) for path in job.model]
    first, *others = [each.to_json() for each in evaluations]
    warnings = [
        f"{name}: {text}" if len(names) > 1 else text
        for name, evaluation in zip(names, evaluations, strict=True)
        for text in evaluation.warnings
    ]
    facts = {"seconds": perf_counter() - started, "peak_memory_mb": peak_memory_mb()}
    lines = _lines(names, evaluations)
    if page is not None:
        _write_page(page, evaluations, job.inputs)
        lines += ["", f"the report is in {page}"]
    lines += _skipped(names, evaluations, job.bad_row_policy.quarantine)
    if warnings:
        lines += ["", *(f"warning: {text}" for text in warnings)]
    report(lines, first | {"others": others, "warnings": warnings} | facts)
    if fail_if_worse and any(each.against_first and each.against_first.worse for each in evaluations):
        raise typer.Exit(WORSE)


def _require_page(page: Path, inputs: Sequence[str | Path]) -> None:
    """Check the path of a report, and the packages for it, before any work."""
    from ctr.pages import require_report

    if page.suffix not in {".html", ".htm"}:
        raise typer.BadParameter(f"--report {page}: the report is a page; give a name that ends in .html.")
    require_report()
    require_apart(page, inputs)
    require_no_part(page)
    require_writable(page, make_folders=False)


def _write_page(page: Path, evaluations: Sequence[Evaluation], inputs: Sequence[str | Path]) -> None:
    """Write the report, with texts of features from raw rows if the inputs can be read again."""
    import ctr
    from ctr.features import is_dataset

    with_texts = all(each.model.spec.fields for each in evaluations)
    raw = "-" not in inputs and not any(map(is_dataset, inputs))
    ctr.report(evaluations, page, list(inputs) if with_texts and raw else None, rows=_ROWS_NAMED)


def _lines(names: Sequence[str], evaluations: Sequence[Evaluation]) -> list[str]:
    """Metrics, differences and slices of the models, named by their folders."""
    from ctr.cli.tables import metric_lines, reliability_lines

    lines = metric_lines({name: each.summary for name, each in zip(names, evaluations, strict=True)})
    for name, each in zip(names, evaluations, strict=True):
        if (difference := each.against_first) is not None:
            verdict = "worse" if difference.worse else "no significant difference"
            verdict = "better" if difference.better else verdict
            lines.append(
                f"{name} against {names[0]}: log loss {difference.logloss:+.5f} "
                f"(95%: {difference.low:+.5f} to {difference.high:+.5f}), {verdict}"
            )
    if len(names) == 1:
        lines += ["", *reliability_lines(evaluations[0].summary)]
    for name, each in zip(names, evaluations, strict=True):
        for column, slices in each.slices.items():
            lines += ["", f"by {column}" + (f", {name}" if len(names) > 1 else ""), *_slice_lines(slices)]
    return lines


def _skipped(names: Sequence[str], evaluations: Sequence[Evaluation], quarantine: Path | None) -> list[str]:
    """Lines about bad rows: once, if they are the same for all models."""
    first, *others = (bad_rows_lines(each.bad_rows, None) for each in evaluations)
    if all(lines == first for lines in others):
        return bad_rows_lines(evaluations[0].bad_rows, quarantine)
    skipped = []
    for name, each in zip(names, evaluations, strict=True):
        if lines := bad_rows_lines(each.bad_rows, quarantine if each is evaluations[0] else None):
            skipped += [f"{name}: {lines[0]}", *lines[1:]]
    return [*skipped, f"compared on the {evaluations[0].metrics.examples:,} rows valid for every model"]


def _slice_lines(slices: Slices) -> list[str]:
    from ctr.cli.tables import metric_lines

    kept, rest = slices.largest(_SLICES_SHOWN)
    named = {
        "(missing)" if value is None else value[:60]: metrics.summary() for value, metrics in kept.items()
    }
    if rest.examples:
        named["(all others)"] = rest.summary()
    return metric_lines(named)
