"""`ctr tune`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.options import (
    BadRowsOption,
    Inputs,
    JsonOption,
    MaxBadFraction,
    OnBadRows,
    SpecOption,
    finite,
)
from ctr.cli.reporting import STOPPED, bad_rows_lines, peak_memory_mb, report, stopping
from ctr.cli.tables import some
from ctr.defaults import MOST_BAD
from ctr.errors import SpecError
from ctr.outputs import beside, replace_file, require_apart, require_no_part, require_writable
from ctr.table import table

if TYPE_CHECKING:
    from ctr.crosses import Suggestion
    from ctr.features import ExampleSource, FeatureSpec
    from ctr.features.readers import RowChoice
    from ctr.search import RawRows, Tried, Tuned

_SHOWN = 5
_HELD_OUT = 0.2
"""Of the rows, at the end, if crosses are to be found without them."""


def tune(
    inputs: Inputs,
    out: Annotated[
        Path,
        typer.Option(
            metavar="SETTINGS.yaml",
            help="The best settings are written to this file, for `ctr train --settings`.",
            show_default=False,
        ),
    ],
    spec: SpecOption = None,
    trials: Annotated[int, typer.Option(min=1, max=100_000, help="Settings to try.")] = 40,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000,
            help="Trials that run at the same time.  \\[default: one per core]",
            show_default=False,
        ),
    ] = None,
    holdout_fraction: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=0.99,
            callback=finite,
            help="Judge by the last part of the rows, and learn from those before.  \\[default: the last "
            "fifth; of fewer than 250,000 rows, each fifth by all the others]",
            show_default=False,
        ),
    ] = None,
    holdout_where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Score on the rows that meet this, and learn from the others, such as "
            "'click_time >= 2017-11-09': as with `ctr train`.",
        ),
    ] = None,
    max_epochs: Annotated[
        int, typer.Option(min=1, help="The most passes to try; a trial ends when one more gains nothing.")
    ] = 30,
    crosses: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Also try up to so many crosses, found as by `ctr features suggest`, without the rows that "
            "judge them; a spec with those that are worth it is written beside the settings.",
        ),
    ] = 0,
    rows: Annotated[
        int | None,
        typer.Option(
            min=10,
            metavar="N",
            help="Use at most this many rows, from the start, and at most 3 passes; with --holdout-where, "
            "all rows that meet it are scored on.  \\[default: all]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="The same seed finds the same settings.")
    ] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Plot the log loss of all trials, in their order and by learning rate: PNG or SVG.",
            show_default=False,
        ),
    ] = None,
    on_bad_rows: BadRowsOption = OnBadRows.FAIL,
    max_bad_fraction: MaxBadFraction = MOST_BAD,
    json: JsonOption = None,
) -> None:
    """Find the settings of `ctr train` that suit some data.

    Each trial trains with other settings (alpha, beta, l1, l2) on a part of the rows, and is scored on
    the others after every pass, which also finds the number of passes. Trials also scale the fields, as some
    learn best with larger steps than others. Ctrl-C keeps the best settings so far. The search is Optuna's,
    which comes with `make install` and `ctr[all]`.

    Examples:

    - `ctr tune --spec criteo clicks.tsv --out settings.yaml`
    - `ctr train clicks.tsv --settings settings.yaml --model model`
    - `ctr tune --spec criteo clicks.tsv --crosses 20 --out settings.yaml`
    """
    from ctr.cli.search_progress import showing_search
    from ctr.features import open_source
    from ctr.features.spec import load_spec
    from ctr.interrupts import stop_requests
    from ctr.search import require_optuna, require_plot, write_plot
    from ctr.search import tune as find
    from ctr.settings import NamedSpec, write_settings

    require_optuna()
    if "-" in inputs:
        raise typer.BadParameter("- (standard input) can be read only once; write its rows to a file.")
    _check_crosses(crosses, inputs, spec, on_bad_rows)
    learnt, validation = _choices(holdout_where, holdout_fraction, crosses)
    new_spec = beside(out, ".spec.yaml")
    for place in (out, json, plot, new_spec if crosses else None):
        require_apart(place, [*inputs, spec])
        require_no_part(place)
    require_writable(out)
    if plot is not None:
        require_plot(plot)
    count = workers or os.cpu_count() or 1
    quarantine = beside(out, ".bad-rows") if on_bad_rows is OnBadRows.QUARANTINE else None
    with stopping(f"{out} was not written."):
        source = open_source(
            inputs,
            None if spec is None else load_spec(spec),
            on_bad_rows=on_bad_rows.value,
            quarantine=quarantine,
            max_bad_fraction=max_bad_fraction,
            threads=count,
            learns=True,
            choice=learnt,
        )
        raw = _raw_rows(source, spec, on_bad_rows, max_bad_fraction, count)
        if raw is not None and learnt is not None and validation is not None:
            raw = replace(raw, choice=learnt, validation=validation)
        crossed, suggestion = None, None
        if crosses and spec is not None:
            holdout_fraction = _HELD_OUT if holdout_fraction is None else holdout_fraction
            suggestion = _suggested(spec, inputs, source, rows, holdout_fraction, crosses, count)
            crossed = _with_crosses(suggestion)
        with stop_requests() as stop, showing_search() as shown:
            found = find(
                source,
                out.parent,
                raw=raw,
                crossed=crossed,
                trials=trials,
                most_epochs=max_epochs,
                most_rows=rows,
                fraction=holdout_fraction,
                workers=count,
                seed=seed,
                stop=stop,
                on_rows=shown.on_rows,
                on_progress=shown.on_progress,
            )
        used, of_best = inputs[0] if spec is None else spec, source.spec
        if suggestion is not None and crossed is not None and found.best.crosses:
            _write_spec(new_spec, suggestion, found.best.crosses)
            used, of_best = str(new_spec), crossed[found.best.crosses]
        named = NamedSpec.of(used, of_best.with_scales(found.best.scales), out)
        write_settings(out, found.options, named, found.measured)
        if plot is not None:
            write_plot(found, plot)
    summary = found.to_json() | {
        "spec": asdict(named),
        "workers": count,
        "peak_memory_mb": peak_memory_mb(),
    }
    report(
        [
            *_lines(found, out),
            *_crosses_lines(suggestion, found, new_spec),
            *bad_rows_lines(source.bad_rows, quarantine),
        ],
        summary,
        json,
    )
    if found.stopped:
        raise typer.Exit(STOPPED)


def _raw_rows(
    source: ExampleSource,
    spec: str | None,
    on_bad_rows: OnBadRows,
    max_bad_fraction: float,
    workers: int,
) -> RawRows | None:
    """How raw rows are read through other specs; bad ones are counted elsewhere."""
    from ctr.features import load_spec
    from ctr.search import RawRows

    return RawRows.of(
        source,
        None if spec is None else load_spec(spec),
        on_bad_rows=on_bad_rows.value,
        max_bad_fraction=max_bad_fraction,
        threads=workers,
    )


def _choices(
    where: str | None, fraction: float | None, crosses: int
) -> tuple[RowChoice, RowChoice] | tuple[None, None]:
    """The rows to learn from and to score on by a condition; raises BadParameter for what is against one."""
    if where is None:
        return None, None
    from ctr.features.readers import Condition, RowChoice

    if fraction is not None or crosses:
        raise typer.BadParameter("--holdout-where goes without --holdout-fraction and --crosses.")
    try:
        condition = Condition.parse(where)
    except SpecError as error:
        raise typer.BadParameter(f"--holdout-where: {error}") from None
    return RowChoice(condition, False), RowChoice(condition, True)


def _check_crosses(
    crosses: int, inputs: Sequence[str], spec: str | Path | None, on_bad_rows: OnBadRows
) -> None:
    """Raise BadParameter where crosses cannot be tried."""
    from ctr.features import is_dataset

    if crosses and (spec is None or any(map(is_dataset, inputs))):
        raise typer.BadParameter(
            "--crosses needs raw files and --spec: in a hashed data set, fields can no longer be crossed."
        )
    if crosses and on_bad_rows is not OnBadRows.FAIL:
        raise typer.BadParameter("--crosses reads the rows several times, and takes none that are bad.")


def _suggested(
    spec: str | Path,
    inputs: Sequence[str],
    source: ExampleSource,
    rows: int | None,
    fraction: float,
    crosses: int,
    workers: int,
) -> Suggestion:
    """Crosses found in the rows that trials learn from."""
    from ctr.crosses import suggest_crosses
    from ctr.features import load_spec
    from ctr.progress import progress

    total = source.count_rows() if rows is None else min(rows, source.count_rows())
    with progress("trying crosses") as show:
        return suggest_crosses(
            load_spec(spec),
            inputs,
            most=crosses,
            stop=total - round(total * fraction),
            workers=workers,
            on_progress=show,
        )


def _with_crosses(suggestion: Suggestion) -> dict[int, FeatureSpec]:
    """The spec with a quarter, half and all of the crosses suggested."""
    from ctr.features import spec_of

    most = len(suggestion.chosen)
    counts = {max(most * quarters // 4, 1) for quarters in (1, 2, 4)} if most else set()
    return {count: spec_of(suggestion.yaml(count)) for count in sorted(counts)}


def _write_spec(file: Path, suggestion: Suggestion, crosses: int) -> None:
    """The spec with so many of the crosses."""
    with replace_file(file) as partial:
        partial.write_text(suggestion.yaml(crosses), "utf-8")


def _lines(found: Tuned, out: Path) -> list[str]:
    from ctr.search import scales_in_words

    heads = (
        "trial",
        "log loss",
        "with passes",
        "calibration",
        "epochs",
        "alpha",
        "beta",
        "l1",
        "l2",
        "scaled",
        "crosses",
    )
    shown = [each for each in found.ranked[:_SHOWN] if each.judged.best_pass]
    rows = [heads, *(_row(each) for each in shown)]
    told = {
        "scaled": any(each.scales for each in found.tried),
        "crosses": any(each.crosses for each in found.tried),
    }
    rows = [
        tuple(cell for head, cell in zip(heads, row, strict=True) if told.get(head, True)) for row in rows
    ]
    lines = [
        f"tried {some(len(found.tried), 'setting')} in {found.seconds:.1f} s, scored on {found.scored_on}",
        *([f"best {len(shown)} (an extra pass must improve log loss by 0.01%)"] if len(shown) > 1 else []),
        *table(rows, ">" * len(rows[0])),
        found.gain,
        *scales_in_words(found.best.scales),
        *(f"warning: {text}" for text in found.warnings),
        f"{out}: the settings of trial {found.best.number}, for `ctr train --settings {out}`, which uses the "
        "same spec",
    ]
    return ["stopped early: the best so far", *lines] if found.stopped else lines


def _crosses_lines(suggestion: Suggestion | None, found: Tuned, new_spec: Path) -> list[str]:
    """Where the spec with crosses is, if any were wanted."""
    if suggestion is None:
        return []
    if not found.best.crosses:
        return ["no cross improved the log loss; the spec stays as it is"]
    crosses = some(found.best.crosses, "cross")
    return [f"{new_spec}: the spec with {crosses} more, which the settings name; give no other --spec"]


def _row(tried: Tried) -> tuple[str, ...]:
    judged = tried.judged
    settings = (f"{tried.settings[name]:g}" for name in ("alpha", "beta", "l1", "l2"))
    return (
        str(tried.number),
        f"{judged.loss:.5f}",
        f"{judged.cost:.5f}",
        f"{judged.calibration:.3f}",
        str(judged.best_pass),
        *settings,
        "yes" if tried.scales else "no",
        str(tried.crosses),
    )
