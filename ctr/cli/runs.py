"""`ctr runs`."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ctr.cli.reporting import Report
from ctr.cli.tables import table
from ctr.errors import DataError

if TYPE_CHECKING:
    from ctr.tracking import Run


def runs(
    report: Report,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="Runs to compare, by name or part of the name. Default: list all."
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="The folder of `ctr train --track DIR`.")
    ] = Path("runs"),
    sort: Annotated[
        Literal["time", "logloss"], typer.Option(help="Oldest first, or lowest log loss first.")
    ] = "time",
) -> None:
    """List the runs of `ctr train --track runs`, or compare some of them.

    Figures are for the hold-out or, with a star, for progressive validation (L-BFGS: the training rows).
    Settings that differ are shown, blank if an optimizer does not have them; then the spec with a prefix of
    its fingerprint, the range of its scales, the inputs, and differing hold-outs, as log losses on different
    rows are not comparable.

    Examples:

    - `ctr runs --sort logloss`
    - `ctr runs 3f2a91 b05c77`
    """
    from ctr.tracking import read_runs

    all_runs = read_runs(folder)
    if not all_runs:
        raise DataError(f"{folder}: holds no runs; `ctr train … --track {folder}` keeps one there.")
    if sort == "logloss":
        all_runs.sort(key=lambda run: inf if run.metrics["logloss"] is None else run.metrics["logloss"])
    chosen = [_named(name, all_runs, folder) for name in names] if names else all_runs
    lines = _compared(chosen) if names else _listed(chosen)
    report(lines, {"runs": [{"name": run.name, **run.summary} for run in chosen]})


def _named(name: str, runs: Sequence[Run], folder: Path) -> Run:
    matches = [run for run in runs if name in run.name]
    if len(matches) == 1:
        return matches[0]
    count = "no run has" if not matches else f"{len(matches)} runs have"
    raise typer.BadParameter(f"{count} {name!r} in their name in {folder}; `ctr runs` lists the names.")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"


def _listed(runs: Sequence[Run]) -> list[str]:
    from ctr.tracking import differing, flat

    settings = [flat(run.summary["settings"]) for run in runs]
    data_of = [_data_of(run) for run in runs]
    keys = differing(settings)
    shown = ["spec", "scales", "inputs", *(["hold-out"] if "hold-out" in differing(data_of) else [])]
    rows: list[tuple[str, ...]] = [("run", "examples", "log loss", "AUC", "calibration")]
    rows[0] += (*("optimizer" if key == "name" else key for key in keys), *shown)
    for run, values, data in zip(runs, settings, data_of, strict=True):
        star = "" if run.summary["holdout"] else "*"
        figures = (_figure(run.metrics[name]) for name in ("logloss", "auc", "calibration"))
        texts = (_text(values[key]) if key in values else "" for key in keys)
        logloss, *others = figures
        first = run.name, f"{run.summary['examples']:,}", logloss + (star or " ")
        rows.append((*first, *others, *texts, *(_text(data[key]) for key in shown)))
    return table(rows, "<>>>>" + ">" * len(keys) + "<" * len(shown))


def _data_of(run: Run) -> dict[str, Any]:
    """The spec, inputs and hold-outs of a run; the first of many files."""
    sources = {"inputs": run.summary.get("inputs"), "hold-out": run.summary.get("holdout_inputs")}
    rows = {
        key: [*value[:1], f"and {len(value) - 1:,} more"] if isinstance(value, list) and value[1:] else value
        for key, value in sources.items()
    }
    spec, fingerprint = run.summary.get("spec"), run.summary.get("spec_fingerprint", "")[:8]
    scales = (run.summary.get("scales") or {}).values()
    return {
        "spec": fingerprint if spec is None else f"{Path(spec).name}@{fingerprint}",
        "scales": f"{min(scales):g}..{max(scales):g}" if scales else None,
        **rows,
    }


_SIDE_BY_SIDE = (
    ("created", "spec", "spec_fingerprint", "inputs", "holdout_inputs"),
    ("settings",),
    ("scales",),
    ("workers", "store", "best_pass", "seconds"),
)
"""The compared entries of a run, in the order of display."""


def _compared(runs: Sequence[Run]) -> list[str]:
    from ctr.tracking import differing, flat

    groups = [
        [flat({key: run.summary[key] for key in names if key in run.summary}) for run in runs]
        for names in _SIDE_BY_SIDE
    ]
    rows = [("", *(run.name for run in runs))]
    for entries in (*groups, [_metrics(run) for run in runs]):
        rows += [
            (key, *(_text(entry[key]) if key in entry else "" for entry in entries))
            for key in differing(entries)
        ]
    return table(rows, "<" + ">" * len(runs))


def _metrics(run: Run) -> dict[str, float | None]:
    """The metrics of a run, by the rows they were measured on."""
    figures = {}
    for part in ("progressive", "training", "holdout"):
        if metrics := run.summary.get(part):
            for name in ("logloss", "normalized_entropy", "auc", "calibration"):
                figures[f"{part} {name}"] = metrics[name]
    for number, day in enumerate(run.summary.get("days", ()), 1):
        if metrics := day["holdout"]:
            figures[f"after day {number}, logloss"] = metrics["logloss"]
    return figures


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
