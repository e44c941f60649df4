"""`ctr features describe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.reporting import Report
from ctr.cli.tables import table

if TYPE_CHECKING:
    from ctr.features.readable import Collisions


def describe(
    report: Report,
    dataset: Annotated[Path, typer.Argument(metavar="DIR", help="A hashed data set.", exists=True)],
    raw: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Raw rows of the data set, whose features that share a slot are counted by field.",
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many of the raw rows to read.")
    ] = 100_000,
) -> None:
    """Show what a hashed data set holds: rows, clicks, features, slots used, expected collisions.

    Two features *collide* when they hash to the same slot and so share one weight; more `bits` in the
    spec mean fewer collisions. Those of each field are counted in raw rows.

    Example: `ctr features describe days.hashed --raw day1.tsv`
    """
    from ctr.features import DatasetSource, collisions
    from ctr.features.dataset import describe as look

    found = look(dataset)
    lines, facts = found.lines(), found.to_json()
    if raw:
        sample = collisions(DatasetSource(dataset, labels="ignored").spec, raw, rows)
        lines += _collision_lines(sample)
        facts["collisions_by_field"] = sample.to_json()
    report(lines, facts)


def _collision_lines(sample: Collisions) -> list[str]:
    """Of each field, how many of its features share a slot."""
    head = ("field", "features", "expected", "actual", "share")
    fields = [
        (
            of.name,
            f"{of.features:,}",
            f"{of.expected:,.0f}",
            f"{of.actual:,}",
            f"{of.actual / of.features:.2%}" if of.features else "-",
        )
        for of in [*sample.fields, sample.all_fields]
    ]
    title = f"features of the first {sample.rows:,} rows that share a slot of 2**{sample.bits}:"
    return ["", title, *table([head, *fields], "<>>>>")]
