"""`ctr features build` and `ctr features describe`."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.options import MOST_BAD, BadRowsOption, Inputs, JsonOption, MaxBadFraction, OnBadRows
from ctr.cli.reporting import bad_rows_lines, peak_memory_mb, report, stopping
from ctr.cli.tables import size
from ctr.outputs import beside, require_apart, require_no_part
from ctr.table import table

if TYPE_CHECKING:
    from ctr.progress import Report
    from features import DatasetManifest, FeatureSpec, RawSource
    from features.dataset import Unfinished
    from features.readable import Collisions, Dictionary
    from features.windows import Windows

_MOST_THREADS = 4  # what one thread can write, at 0.5 against 0.8 microseconds per Criteo row
_FIRST_PASS = 0.5  # of the time that a build with --shuffle takes: its first pass

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Hash raw logs into data sets, and describe them."
)


SpecOption = Annotated[
    str,
    typer.Option(
        metavar="SPEC",
        help="Feature spec: a YAML file, a folder with a fitted one, or a shipped one by name (criteo, "
        "avazu, libsvm).",
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
DictionaryOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=10_000_000,
        help="Also write the texts of the N most frequent features; building takes longer.",
    ),
]
SAMPLE_ROWS = 100_000

RawOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Raw rows of the data set, whose features that share a slot are counted by field.",
    ),
]
RowsOption = Annotated[int, typer.Option(metavar="N", min=1, help="How many of the raw rows to read.")]


WindowsFrom = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The windows of the spec go on from those of this data set or model: that of the day before.",
        show_default=False,
    ),
]


@app.command()
def build(
    inputs: Inputs,
    spec: SpecOption,
    out: OutOption,
    shuffle: ShuffleOption = None,
    dictionary: DictionaryOption = None,
    windows_from: WindowsFrom = None,
    on_bad_rows: BadRowsOption = OnBadRows.FAIL,
    max_bad_fraction: MaxBadFraction = MOST_BAD,
    json: JsonOption = None,
) -> None:
    """Hash raw files once, so that every later training pass is fast.

    Training reads the rows in the order of the files. If they are sorted, such as by label, the model
    learns badly; `--shuffle` puts them in a random order.

    Windows look back at the rows before, so these come in the order of time, and `--windows-from` goes on
    where the day before ended.

    Example: `ctr features build --spec criteo day1.tsv day2.tsv.gz --out days.hashed`
    """
    from ctr.progress import progress
    from features import RawSource, fit, load_spec
    from features.dataset import BLOCK_ROWS, Unfinished, kept_fit, key_of
    from features.inputs import input_files
    from features.readable import Dictionary

    require_apart(json, [*inputs, spec])
    require_no_part(json, out)
    quarantine = beside(out, ".bad-rows") if on_bad_rows is OnBadRows.QUARANTINE else None
    wanted, files = load_spec(spec), input_files(inputs)
    fitted = kept_fit(out, wanted, files, BLOCK_ROWS) or fit(wanted, files)
    source = RawSource(
        fitted,
        files,
        on_bad_rows=on_bad_rows.value,
        quarantine=quarantine,
        max_bad_fraction=max_bad_fraction,
        threads=min(max((os.cpu_count() or 1) - 1, 1), _MOST_THREADS),  # one core is for writing
        windows=_windows(fitted, windows_from),
    )
    warnings = _warned(source)
    texts = None if dictionary is None else Dictionary(source.spec, source.columns, dictionary)
    source.watch = None if texts is None else texts.add
    started = perf_counter()
    resumable = shuffle is None and texts is None and not fitted.windows and on_bad_rows is OnBadRows.FAIL
    of_fit, of_build = (key_of(each, files, BLOCK_ROWS) for each in (wanted, fitted))
    kept = Unfinished(out, of_build if resumable else None, fitted, of_fit)
    with stopping(f"{out} was not written."), kept as unfinished:
        if before := unfinished.done.rows:
            typer.echo(f"going on behind {before:,} rows that an interrupted build has written", err=True)
        read = 0 if before or shuffle is not None else sum(file.size for file in source.files)
        with progress("hashing", read) as show:
            manifest = _write(source, out, shuffle, texts, unfinished, show)
    facts, lines = _summary(source, out, manifest, before, perf_counter() - started)
    facts |= {"shuffle": shuffle, "warnings": warnings}
    if texts is not None:
        facts["dictionary"], line = _dictionary(texts, out)
        lines.append(line)
    report(lines + bad_rows_lines(source.bad_rows, quarantine), facts, json)


def _dictionary(texts: Dictionary, out: Path) -> tuple[dict[str, int], str]:
    """What is told of it, as JSON and for a person."""
    from features.readable import DICTIONARY

    known = len(texts.table())
    facts = {"features": known, "bytes": (out / DICTIONARY).stat().st_size}
    return facts, f"{DICTIONARY} in it has the texts of the {known:,} most frequent features"


def _warned(source: RawSource) -> list[str]:
    """What the first rows show that a user should know, told."""
    warnings = source.warnings()
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    return warnings


def _windows(spec: FeatureSpec, before: Path | None) -> Windows | None:
    """What the windows of `spec` know at the beginning, if it has any."""
    from features.windows import Windows, load_windows

    if before is None:
        return Windows(spec) if spec.windows else None
    if not spec.windows:
        raise typer.BadParameter("the spec has no windows; leave it out", param_hint="--windows-from")
    return load_windows(spec, before)


def _summary(
    source: RawSource, out: Path, manifest: DatasetManifest, before: int, seconds: float
) -> tuple[dict[str, Any], list[str]]:
    """For a program, and for a person; `before`: the rows that an earlier build had written."""
    speed = (manifest.rows - before) / seconds
    facts: dict[str, Any] = {
        "examples": manifest.rows,
        "positives": manifest.positives,
        "features": manifest.features,
        "spec_fingerprint": manifest.spec_fingerprint,
        "bad_rows": source.bad_rows.count,
        "seconds": seconds,
        "examples_per_second": speed,
        "resumed_behind": before,
        "peak_memory_mb": peak_memory_mb(),
    }
    lines = [f"hashed {manifest.rows:,} rows into {out} in {seconds:.2f} s ({speed:,.0f} rows/s)"]
    if (windows := source.windows) is not None:
        facts["windows"] = {"keys": windows.keys, "bytes": windows.bytes}
        lines.append(f"its windows know {windows.keys:,} keys, in {size(windows.bytes)}")
    return facts, lines


def _write(
    source: RawSource,
    out: Path,
    shuffle: int | None,
    texts: Dictionary | None,
    unfinished: Unfinished,
    show: Report,
) -> DatasetManifest:
    """Write the rows of `source` as the data set `out`, in random order if `shuffle` is a seed."""
    from features import BLOCK_ROWS, shuffled, write_dataset

    if shuffle is None:
        try:
            return write_dataset(
                source.batches(BLOCK_ROWS, unfinished.done.position),
                source.spec,
                out,
                dictionary=texts,
                windows=source.windows,
                unfinished=unfinished,
                position=lambda: source.position,
                progress=lambda rows: show(rows, source.fraction_read),
            )
        except KeyboardInterrupt:
            if unfinished.key is None or not (kept := unfinished.done.rows):
                raise
            raise KeyboardInterrupt(
                f"{out} was not written; the same command goes on behind {kept:,} rows."
            ) from None
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
        return write_dataset(
            batches,
            source.spec,
            out,
            shuffled=shuffle,
            dictionary=texts,
            progress=writing,
            windows=source.windows,
        )


@app.command()
def describe(
    dataset: Annotated[
        Path, typer.Argument(metavar="DIR", help="A hashed data set.", exists=True, show_default=False)
    ],
    raw: RawOption = None,
    rows: RowsOption = SAMPLE_ROWS,
    json: JsonOption = None,
) -> None:
    """Show what a hashed data set holds: rows, clicks, features, slots used, expected collisions.

    Two features *collide* when they hash to the same slot and so share one weight; more `bits` in the
    spec mean fewer collisions. Those of each field are counted in raw rows.

    Example: `ctr features describe days.hashed --raw day1.tsv`
    """
    from features import DatasetSource, collisions
    from features.dataset import describe as look

    require_no_part(json)
    found = look(dataset)
    lines, facts = found.lines(), found.to_json()
    if raw:
        sample = collisions(DatasetSource(dataset, labels="ignored").spec, raw, rows)
        lines += _collision_lines(sample)
        facts["collisions_by_field"] = sample.to_json()
    report(lines, facts, json)


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
