"""`ctr features init`, `fit`, `check` and `show`: write, fit and check a spec for raw data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.reporting import Report
from ctr.cli.tables import duration, some, table
from ctr.outputs import replace_file, require_new

if TYPE_CHECKING:
    from ctr.features.inspect import Check, ShownFeature
    from ctr.settings import EngineName, Master, RawInputs, RawSpec

_CHECK_ROWS, _SHOW_ROWS = 200_000, 3


def init(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Raw data: a path, folder, pattern or URI."),
    ],
    out: Annotated[Path, typer.Option(metavar="SPEC.yaml", help="The spec is written to this file.")],
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of the label, if it is not clear from the names."),
    ] = None,
) -> None:
    """Write a first feature spec for raw data, with comments, based on its first rows.

    It works as it is; edit as needed. An existing file is not replaced.

    Example: `ctr features init clicks.csv --out ads.yaml`
    """
    from ctr.features import parse_spec
    from ctr.features.inspect import draft_spec

    require_new(out)
    text = draft_spec(file, label=label)
    spec = parse_spec(text, str(out))
    with replace_file(out) as draft:
        draft.write_text(text, "utf-8")
    typer.echo(f"wrote {out}: {some(len(spec.fields), 'field')}, label {spec.label!r}")
    typer.echo(f"next: ctr features check --spec {out} {file}")


def fit(
    inputs: RawInputs,
    spec: RawSpec,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="The fitted spec is written to this folder, which --spec takes like a file.",
        ),
    ],
    engine: EngineName = None,
    master: Master = None,
) -> None:
    """Let a spec learn what its transforms need (quantiles, counts of values) in one pass over raw data.

    `ctr features build` does this itself for the data that it hashes. Fit a spec to reuse what it learnt from
    one period for another.

    Example: `ctr features fit --spec ads.yaml january/ --out january.spec`
    """
    from ctr.features import absent_columns, input_files, load_spec
    from ctr.features.readers import RawFiles
    from ctr.features.spec import columns_of, learnt_of, require_place_for_spec, write_fitted_spec
    from ctr.jobs import fit_files
    from ctr.settings import require_engine

    require_engine(engine, master)
    require_place_for_spec(out)
    wanted = load_spec(spec)
    read = [column for field in wanted.fields for column in columns_of(field)]
    files = input_files(inputs)
    for warning in absent_columns(RawFiles(files, wanted), read):
        typer.echo(f"warning: {warning}", err=True)
    fitted = fit_files(wanted, files, engine=engine, master=master)
    write_fitted_spec(fitted, out)
    learnt = learnt_of(fitted) or {}
    if not learnt:
        typer.echo(f"{spec} has nothing to learn; {out} is a copy", err=True)
    typer.echo(f"wrote {out}: {some(len(learnt), 'learnt array')}, fingerprint {fitted.fingerprint[:12]}")


def check(
    report: Report,
    inputs: RawInputs,
    spec: RawSpec,
    rows: Annotated[
        int, typer.Option(min=2, help="How many of the first rows to look at.", show_default=True)
    ] = _CHECK_ROWS,
) -> None:
    """Check raw data against a spec: missing values, distinct values, and likely problems.

    Warns of fields without information, of fields that contain the label (leaks), of values that never recur,
    and of rows out of time order if windows or hold-outs need it. *AUC alone* shows how well a field's click
    rates in the first half of the rows rank the second half: 0.5 is chance.

    Example: `ctr features check --spec ads.yaml clicks.csv`
    """
    from ctr.features import load_spec
    from ctr.features.inspect import check as look

    findings = look(load_spec(spec), inputs, rows)
    report(_check_lines(findings), findings.to_json())


def _check_lines(findings: Check) -> list[str]:
    rate = findings.positives / findings.rows
    lines = [f"{findings.rows:,} rows, {findings.positives:,} with a click ({rate:.2%})"]
    if findings.bad_rows:
        lines += [f"{some(findings.bad_rows, 'bad row')}:", *(f"  {text}" for text in findings.bad_examples)]
    rows: list[tuple[str, ...]] = [
        ("field", "type", "missing", "features", "most frequent", "new in 2nd half", "AUC alone")
    ]
    for each in findings.fields:
        auc = "-" if each.auc != each.auc else f"{each.auc:.3f}"
        shares = (f"{each.most_frequent:.1%}", f"{each.unseen:.1%}")
        rows.append((each.name, each.type, f"{each.missing:.1%}", f"{each.distinct:,}", *shares, auc))
    lines += table(rows, "<<>>>>>")
    if findings.times:
        lines += _time_lines(findings)
    if findings.unused:
        lines.append(
            "not in the spec: " + ", ".join(name or "(a column without a name)" for name in findings.unused)
        )
    return lines + [f"warning: {warning}" for warning in findings.warnings]


def _time_lines(findings: Check) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("time", "in order", "rows back", "at most by", "first (UTC)", "last (UTC)")
    ]
    for each in findings.times:
        order = ("yes", "", "") if each.in_order else ("no", f"{each.back:,}", duration(each.furthest_back_s))
        if not each.rows:
            order = ("-", "", "")
        rows.append((each.column, *order, each.first or "-", each.last or "-"))
    return table(rows, "<<>><<")


def show(
    report: Report,
    inputs: RawInputs,
    spec: RawSpec,
    rows: Annotated[int, typer.Option(min=1, max=1_000, help="How many of the first rows.")] = _SHOW_ROWS,
) -> None:
    """Show how a few rows are transformed: text, feature, slot, and value if not all values are 1.

    Window features are omitted, as they depend on earlier rows.

    Example: `ctr features show --spec ads.yaml clicks.csv --rows 2`
    """
    from ctr.features import load_spec
    from ctr.features.inspect import show as look

    explained = look(load_spec(spec), inputs, rows)
    lines: list[str] = []
    for row in explained:
        shown = [("field", "text", "feature", "slot"), *map(_shown, row.features)]
        if any(each.value != 1 for each in row.features):
            values = ["value", *("" if each.slot is None else f"{each.value:.6g}" for each in row.features)]
            shown = [(*line, value) for line, value in zip(shown, values, strict=True)]
        lines += [row.place, *(f"  {line}" for line in table(shown, "<<<>>"))]
    report(lines, {"rows": [row.to_json() for row in explained]})


def _shown(feature: ShownFeature) -> tuple[str, ...]:
    slot = "" if feature.slot is None else f"{feature.slot:,}"
    return feature.field, feature.text, feature.feature, slot
