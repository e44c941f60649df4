"""`ctr synth`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ctr.cli.reporting import Report, stopping


def synth(
    report: Report,
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Output file; compressed if the name ends in .gz.",
        ),
    ],
    seed: Annotated[int, typer.Option(min=0, help="Random seed; the same seed gives the same log.")] = 0,
    interactions: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Number of column pairs with interactions: each pair of values has its own weight. They "
            "are printed.",
        ),
    ] = 0,
    truth: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write each row's true click probability (Parquet, column `probability`).",
        ),
    ] = None,
) -> None:
    """Write a synthetic click log with Criteo's columns, to try things out.

    Tab separated, no header: label, 13 numbers I1-I13, 26 categories C1-C26, with heavy tails, missing values
    and drift. The log is drawn from a known model, so the best possible log loss is known, and printed.

    Example: `ctr synth --rows 1000000 --out clicks.tsv`
    """
    from ctr.progress import progress
    from ctr.synth import write_click_log

    with stopping(f"{out} was not written."), progress("writing") as show:
        log = write_click_log(
            out,
            rows,
            seed=seed,
            interactions=interactions,
            truth=truth,
            progress=lambda done: show(done, done / rows),
        )
    lines = [
        f"wrote {log.rows:,} rows to {out}, {log.base_rate:.2%} of them clicks",
        f"best reachable log loss {log.best_logloss:.5f}; "
        f"always predicting the base rate gives {log.base_logloss:.5f}",
    ]
    if log.interactions:
        lines.append(f"interactions: {', '.join(' * '.join(pair) for pair in log.interactions)}")
    report(lines, asdict(log))
