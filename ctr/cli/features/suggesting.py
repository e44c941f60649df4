"""`ctr features suggest`."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.reporting import Report, peak_memory_mb, stopping
from ctr.outputs import replace_file, require_new

if TYPE_CHECKING:
    from ctr.crosses import Suggestion
    from ctr.settings import RawInputs, RawSpec


def suggest(
    report: Report,
    inputs: RawInputs,
    spec: RawSpec,
    out: Annotated[
        Path,
        typer.Option(
            metavar="NEW.yaml",
            help="The spec with the suggested crosses is written to this file.",
        ),
    ],
    crosses: Annotated[
        int, typer.Option(min=1, metavar="N", help="The maximum number of crosses to add.")
    ] = 20,
    rows: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Use at most this many rows, spread evenly over all."),
    ] = 1_000_000,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1_000, help="Threads.  \\[default: one per core]"),
    ] = None,
) -> None:
    """Find crosses of a spec's fields that improve the model.

    A model of the present spec is trained, and each pair of fields is tried on top of it. The best pairs, and
    some triples, are written into a new spec, each with its gain. The last fifth of the rows decides whether
    the model improves; if not, no cross is suggested.

    Example: `ctr features suggest --spec criteo day1.tsv --out crossed.yaml`
    """
    from ctr.crosses import suggest_crosses
    from ctr.features import load_spec
    from ctr.progress import progress

    require_new(out)
    loaded = load_spec(spec)
    started = perf_counter()
    with stopping(f"{out} was not written."), progress("trying crosses") as show:
        suggestion = suggest_crosses(
            loaded,
            inputs,
            most=crosses,
            rows=rows,
            workers=workers or os.cpu_count() or 1,
            on_progress=show,
        )
        with replace_file(out) as partial:
            partial.write_text(suggestion.yaml(), "utf-8")
    seconds = perf_counter() - started
    facts = suggestion.to_json() | {"seconds": seconds, "peak_memory_mb": peak_memory_mb()}
    report(_lines(suggestion, out, seconds), facts)


def _lines(suggestion: Suggestion, out: Path, seconds: float) -> list[str]:
    sample = "" if suggestion.rows == suggestion.rows_in_all else f" of {suggestion.rows_in_all:,}"
    lines = [
        f"tried {suggestion.candidates:,} crosses on {suggestion.rows:,}{sample} rows in {seconds:.1f} s"
    ]
    if suggestion.left_out:
        lines.append(
            f"skipped, as a row may have several of their features: {', '.join(suggestion.left_out)}"
        )
    if not suggestion.chosen:
        return [*lines, f"no cross improves log loss significantly; {out} is the unchanged spec"]
    width = max(map(len, suggestion.names))
    lines.append(f"{'cross':<{width}}  nats per 1,000 rows")
    lines += [
        f"{name:<{width}}  {each.gain:8.4f} ± {each.error:.4f}"
        for name, each in zip(suggestion.names, suggestion.chosen, strict=True)
    ]
    loss, gain = suggestion.held_out_loss, suggestion.held_out_gain
    lines.append(
        f"log loss of the last fifth of the rows: {loss:.5f} without crosses, {loss - gain:.5f} with crosses"
        f" chosen on the other rows (standard error of the difference {suggestion.held_out_error:.5f})"
    )
    return [*lines, f"{out}: the spec with {len(suggestion.chosen)} more crosses"]
