"""`ctr features build` and `ctr features describe`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from ctr.cli.options import MOST_BAD, BadRowsOption, Inputs, JsonOption, MaxBadFraction, OnBadRows
from ctr.cli.reporting import bad_rows_lines, peak_memory_mb, report, stopping
from ctr.outputs import beside, require_apart, require_no_part

if TYPE_CHECKING:
    from ctr.progress import Report
    from features import DatasetManifest, RawSource

_FIRST_PASS = 0.5  # of the time that a build with --shuffle takes: its first pass

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Hash raw logs into data sets, and describe them."
)


SpecOption = Annotated[
    str,
    typer.Option(
        metavar="SPEC",
        help="Feature spec: a YAML file, or a shipped one by name (criteo, avazu, libsvm).",
        show_default=False,
    ),
]
OutOption = Annotated[
    Path, typer.Option(metavar="DIR", help="The data set is written to this folder.", show_default=False)
]
ShuffleOption = Annotated[
    int | None,
    typer.Option(
        metavar="SEED",
        min=0,
        max=(1 << 64) - 1,
        help="Put the rows in a random order; the same seed gives the same order.",
    ),
]


@app.command()
def build(
    inputs: Inputs,
    spec: SpecOption,
    out: OutOption,
    shuffle: ShuffleOption = None,
    on_bad_rows: BadRowsOption = OnBadRows.FAIL,
    max_bad_fraction: MaxBadFraction = MOST_BAD,
    json: JsonOption = None,
) -> None:
    """Hash raw files once, so that every later training pass is fast.

    Training reads the rows in the order of the files. If they are sorted, such as by label, the model
    learns badly; `--shuffle` puts them in a random order.

    Example: `ctr features build --spec criteo day1.tsv day2.tsv.gz --out days.hashed`
    """
    from ctr.progress import progress
    from features import RawSource, fit, load_spec

    require_apart(json, [*inputs, spec])
    require_no_part(json, out)
    quarantine = beside(out, ".bad-rows") if on_bad_rows is OnBadRows.QUARANTINE else None
    source = RawSource(
        fit(load_spec(spec), inputs),
        inputs,
        on_bad_rows=on_bad_rows.value,
        quarantine=quarantine,
        max_bad_fraction=max_bad_fraction,
    )
    warnings = source.warnings()
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    started = perf_counter()
    with stopping(f"{out} was not written."), progress("hashing") as show:
        manifest = _write(source, out, shuffle, show)
    seconds = perf_counter() - started
    facts = {
        "examples": manifest.rows,
        "positives": manifest.positives,
        "features": manifest.features,
        "spec_fingerprint": manifest.spec_fingerprint,
        "shuffle": shuffle,
        "bad_rows": source.bad_rows.count,
        "warnings": warnings,
        "seconds": seconds,
        "examples_per_second": manifest.rows / seconds,
        "peak_memory_mb": peak_memory_mb(),
    }
    lines = [
        f"hashed {manifest.rows:,} rows into {out} in {seconds:.2f} s ({manifest.rows / seconds:,.0f} rows/s)"
    ]
    report(lines + bad_rows_lines(source.bad_rows, quarantine), facts, json)


def _write(source: RawSource, out: Path, shuffle: int | None, show: Report) -> DatasetManifest:
    """Write the rows of `source` as the data set `out`, in random order if `shuffle` is a seed."""
    from features import BLOCK_ROWS, shuffled, write_dataset

    if shuffle is None:
        return write_dataset(
            source.batches(BLOCK_ROWS),
            source.spec,
            out,
            progress=lambda rows: show(rows, source.fraction_read),
        )
    hashed = 0

    def first_pass(rows: int) -> None:
        nonlocal hashed
        hashed = rows
        show(rows, _FIRST_PASS * source.fraction_read)

    def writing(rows: int) -> None:
        show(hashed, _FIRST_PASS + (1 - _FIRST_PASS) * rows / hashed)

    # The temporary files lie beside the data set: there is the room that it needs anyway.
    beside = out.resolve().parent
    with closing(shuffled(source, BLOCK_ROWS, shuffle, beside, progress=first_pass)) as batches:
        return write_dataset(batches, source.spec, out, shuffled=shuffle, progress=writing)


@app.command()
def describe(
    dataset: Annotated[
        Path, typer.Argument(metavar="DIR", help="A hashed data set.", exists=True, show_default=False)
    ],
    json: JsonOption = None,
) -> None:
    """Show what a hashed data set holds: rows, clicks, features, slots used, expected collisions.

    Two features *collide* when they hash to the same slot and so share one weight; more `bits` in the
    spec mean fewer collisions.

    Example: `ctr features describe days.hashed`
    """
    from features.dataset import describe as look

    require_no_part(json)
    found = look(dataset)
    report(found.lines(), found.to_json(), json)
