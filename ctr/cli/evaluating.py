"""`ctr evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.options import BadRowsOption, Inputs, JsonOption, MaxBadFraction, OnBadRows
from ctr.cli.reporting import bad_rows_lines, peak_memory_mb, report, stopping, warn_of_layout
from ctr.defaults import MOST_BAD
from ctr.outputs import beside_input, printable, require_apart, require_no_part, require_writable

if TYPE_CHECKING:
    import pyarrow as pa

    from ctr.features import ExampleSource, FeatureSpec
    from ctr.model import Compared, Model, Slices

WORSE = 3
"""Exit code of `--fail-if-worse`."""
_SLICES_SHOWN = 10
_ROWS_NAMED = 50_000  # of which a report takes the texts of features: some 2 s for 39 fields


ModelsOption = Annotated[
    list[Path],
    typer.Option(
        "--model",
        metavar="DIR",
        help="Folder of a trained model; several models are compared on the same rows.",
        show_default=False,
    ),
]


ByOption = Annotated[
    list[str],
    typer.Option(
        "--by",
        metavar="COLUMN",
        help="Metrics for each value of this column of the raw rows, too; may be given several times.",
    ),
]


ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write metrics, curves, slices, settings and lineage as a page, one .html file.",
        dir_okay=False,
    ),
]


UnweightedOption = Annotated[
    bool,
    typer.Option(
        "--unweighted",
        help="Let all rows count alike, also where the spec has a column of weights; data may lack it.",
    ),
]


FailIfWorseOption = Annotated[
    bool,
    typer.Option(
        "--fail-if-worse",
        help="Exit with code 3 if a model's log loss is higher than that of the first one, and the 95% "
        "confidence interval of the difference is above 0.",
    ),
]


def evaluate(
    inputs: Inputs,
    models: ModelsOption,
    by: ByOption = [],  # noqa: B006  (Typer's way of a list)
    page: ReportOption = None,
    unweighted: UnweightedOption = False,
    fail_if_worse: FailIfWorseOption = False,
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

    With `--by`, the 10 most frequent values of a column are shown, and all others in one line. `--json`
    has up to 64 values: those that come first. It also has the points of ROC and precision-recall curves,
    lift by decile, reliability, and a histogram of the predictions.

    Examples:

    - `ctr evaluate --model model tomorrow.tsv --by C9`
    - `ctr evaluate --model old --model new tomorrow.tsv --fail-if-worse`
    """
    from ctr.model import compare, input_digests, load_model
    from ctr.progress import progress

    require_apart(json, inputs)
    require_no_part(json)
    _require_each_once(inputs, models, by)
    if fail_if_worse and len(models) < 2:
        raise typer.BadParameter(
            "--fail-if-worse compares models: give the one to beat as the first --model."
        )
    if page is not None:
        _require_page(page, inputs)
    loaded = [load_model(model) for model in models]
    quarantine = beside_input(inputs[0], ".bad-rows") if on_bad_rows is OnBadRows.QUARANTINE else None
    sources = _sources(inputs, loaded, by, unweighted, on_bad_rows, quarantine, max_bad_fraction)
    first = sources[0]
    warn_of_layout(first)
    digests = [digest for source in sources for digest in input_digests(source.inputs)]
    started = perf_counter()
    with stopping("Nothing was written."), progress("evaluating") as show:
        compared = compare(
            loaded,
            sources,
            by=by,
            weighted=not unweighted,
            on_rows=lambda rows: show(rows, first.fraction_read),
        )
    warnings = _warnings(inputs, digests, dict(zip(models, loaded, strict=True)), sources, compared)
    lines, facts = _evaluation(dict(zip(map(str, models), loaded, strict=True)), compared, sources)
    facts |= {
        "warnings": warnings,
        "seconds": perf_counter() - started,
        "peak_memory_mb": peak_memory_mb(),
    }
    if page is not None:
        _write_page(page, inputs, dict(zip(models, loaded, strict=True)), facts)
        lines += ["", f"the report is in {page}"]
    lines += _skipped(models, sources, compared, quarantine)
    if warnings:
        lines += ["", *(f"warning: {text}" for text in warnings)]
    report(lines, facts, json)
    if fail_if_worse and any(each.against_first.difference().worse for each in compared[1:]):
        raise typer.Exit(WORSE)


def _require_each_once(inputs: Sequence[str], models: Sequence[Path], by: Sequence[str]) -> None:
    """Raise BadParameter for models or columns that are named twice, and for a pipe to be read twice."""
    if len(set(models)) < len(models):
        raise typer.BadParameter("one --model is there twice; name each model once.")
    if len(set(by)) < len(by):
        raise typer.BadParameter("one --by is there twice; name each column once.")
    if len(models) > 1 and "-" in inputs:
        raise typer.BadParameter(
            "standard input can be read once, for one --model; give a file to compare on."
        )


def _sources(
    inputs: list[str],
    models: Sequence[Model],
    by: Sequence[str],
    unweighted: bool,
    on_bad_rows: OnBadRows,
    quarantine: Path | None,
    max_bad_fraction: float,
) -> list[ExampleSource]:
    """The rows as each model wants them. The first source keeps the bad ones, and has the columns `by`.

    Raw files are opened once for all models; those of a data set are known by what it says of them.
    """
    from ctr.features import inputs_for, is_dataset, open_source
    from ctr.model import naming

    first_only = on_bad_rows, quarantine, tuple(by)
    others = (OnBadRows.FAIL if on_bad_rows is OnBadRows.FAIL else OnBadRows.SKIP), None, ()
    sources: list[ExampleSource] = []
    for model, (do, file, also) in zip(models, chain([first_only], repeat(others)), strict=False):
        with naming(model, others=len(models) > 1):
            spec = _unweighted(model.spec) if unweighted else model.spec
            source = open_source(
                sources[0].inputs
                if sources and not any(map(is_dataset, inputs))
                else inputs_for(inputs, spec),
                spec,
                on_bad_rows=do.value,
                quarantine=file,
                max_bad_fraction=max_bad_fraction,
                also=also,
                windows=model.windows_after(),
            )
        sources.append(source)
    return sources


def _unweighted(spec: FeatureSpec) -> FeatureSpec:
    """The same features, for data that need have no weights."""
    return spec.model_copy(update={"weight": None})


def _require_page(page: Path, inputs: Sequence[str]) -> None:
    """Raise what is wrong with the place of a report, or with what makes it, before any work."""
    from ctr.report import require_report

    if page.suffix not in {".html", ".htm"}:
        raise typer.BadParameter(f"--report {page}: the report is a page; give a name that ends in .html.")
    require_report()
    require_apart(page, inputs)
    require_no_part(page)
    require_writable(page, make_folders=False)


def _write_page(
    page: Path, inputs: Sequence[str], models: Mapping[Path, Model], facts: dict[str, Any]
) -> None:
    from ctr.report import EvaluatedModel, write_report

    every = [facts, *facts["others"]]
    evaluated = [
        EvaluatedModel(printable(path), of_model, model.manifest, _weights(model, inputs), model.spec.scales)
        for (path, model), of_model in zip(models.items(), every, strict=True)
    ]
    write_report(page, evaluated, [printable(each) for each in inputs])


def _weights(model: Model, inputs: Sequence[str]) -> pa.Table:
    """Its weights, with the texts of features that it knows, and those of the first rows."""
    from ctr.features import is_dataset
    from ctr.weights import names_of_values, weight_table, with_names

    names = model.names()
    if model.spec.fields and "-" not in inputs and not any(map(is_dataset, inputs)):
        names = with_names(names, names_of_values(model.spec, inputs, _ROWS_NAMED))
    return weight_table(model.linear.slots, model.linear.weights, names, bias=model.spec.bias)


def _evaluation(
    models: Mapping[str, Model], compared: Sequence[Compared], sources: Sequence[ExampleSource]
) -> tuple[list[str], dict[str, Any]]:
    """What is told of models by their folders, for a person and as JSON."""
    from ctr.cli.tables import metric_lines, reliability_lines

    summaries = [each.metrics.summary() for each in compared]
    first, *others = models
    lines = metric_lines(dict(zip(models, summaries, strict=True)))
    differences = [each.against_first.difference() for each in compared[1:]]
    for name, found in zip(others, differences, strict=True):
        surely = "better" if found.better else "worse" if found.worse else "no significant difference"
        lines.append(
            f"{name} against {first}: log loss {found.logloss:+.5f} "
            f"(95%: {found.low:+.5f} to {found.high:+.5f}), {surely}"
        )
    if not others:
        lines += ["", *reliability_lines(summaries[0])]
    for name, each in zip(models, compared, strict=True):
        for column, slices in each.slices.items():
            lines += ["", f"by {column}" + (f", {name}" if others else ""), *_slice_lines(slices)]
    every = [
        _facts_of(model, each) | {"bad_rows": source.bad_rows.count}
        for model, each, source in zip(models.values(), compared, sources, strict=True)
    ]
    facts = every[0]
    facts["others"] = [
        {**facts, "against_first": found.to_json()}
        for facts, found in zip(every[1:], differences, strict=True)
    ]
    return lines, facts


def _warnings(
    inputs: Sequence[str],
    digests: Sequence[str],
    models: Mapping[Path, Model],
    sources: Sequence[ExampleSource],
    compared: Sequence[Compared],
) -> list[str]:
    """Why a model may be worse than its metrics say."""
    from ctr.model import SEEN, seen_rows, too_good

    named, found = ", ".join(map(printable, inputs)), []
    for (path, model), source, each in zip(models.items(), sources, compared, strict=True):
        texts = too_good(each.metrics.summary(), model.spec, source.inputs, named)
        if (how := seen_rows(model.manifest, digests)) is not None:
            texts.insert(0, SEEN.format(how, named))
        found += [f"{path}: {text}" if len(models) > 1 else text for text in texts]
    return found


def _skipped(
    models: Sequence[Path],
    sources: Sequence[ExampleSource],
    compared: Sequence[Compared],
    quarantine: Path | None,
) -> list[str]:
    """What to tell about bad rows: once, if they are the same for all models."""
    first, *others = (bad_rows_lines(source.bad_rows, None) for source in sources)
    if all(lines == first for lines in others):
        return bad_rows_lines(sources[0].bad_rows, quarantine)
    found = []
    for model, source, file in zip(models, sources, chain([quarantine], repeat(None)), strict=False):
        if lines := bad_rows_lines(source.bad_rows, file):
            found += [f"{model}: {lines[0]}", *lines[1:]]
    return [*found, f"compared on the {compared[0].metrics.examples:,} rows valid for every model"]


def _slice_lines(slices: Slices) -> list[str]:
    from ctr.cli.tables import metric_lines

    kept, rest = slices.largest(_SLICES_SHOWN)
    named = {
        "(missing)" if value is None else value[:60]: metrics.summary() for value, metrics in kept.items()
    }
    if rest.examples:
        named["(all others)"] = rest.summary()
    return metric_lines(named)


def _facts_of(model: Model, compared: Compared) -> dict[str, Any]:
    """A model's metrics as JSON."""
    metrics = compared.metrics
    return {
        "model": model.id,
        **metrics.summary().to_json(),
        "curves": metrics.curves().to_json(),
        "slices": {column: slices.to_json() for column, slices in compared.slices.items()},
    }
