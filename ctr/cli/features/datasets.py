"""`ctr features build` and `describe`: hashed data sets."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.reporting import Report, bad_rows_lines, peak_memory_mb, stopping
from ctr.cli.tables import size, some, table

if TYPE_CHECKING:
    from ctr.features import DatasetManifest
    from ctr.features.readable import Collisions, Dictionary
    from ctr.jobs import Portion
    from ctr.settings import BuildJob


def build(job: BuildJob, report: Report) -> None:
    """Hash raw files once, so that every later training pass is fast.

    Training reads the rows in the order of the files. If they are sorted, for example by label, the model
    learns badly; `--shuffle` puts them in random order.

    Windows look back at earlier rows, so rows must be in time order; `--windows-from` continues from the
    previous day.

    Examples:

    - `ctr features build --spec criteo day1.tsv day2.tsv.gz --out days.hashed`
    - `ctr features build --spec ads.yaml logs --out train --holdout-where 'day >= 9' --holdout-out test`
    """
    from ctr.jobs import build_datasets, open_portions

    portions = open_portions(job)
    warnings = portions[-1].source.warnings()
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)

    def on_resume(rows: int) -> None:
        typer.echo(f"continuing after {rows:,} rows that an interrupted build has written", err=True)

    started = perf_counter()
    with stopping("Nothing was written."):
        manifests = build_datasets(job, portions, on_resume)
    facts, lines = _summary(portions, manifests, perf_counter() - started)
    facts |= {"shuffle": job.shuffle, "warnings": warnings}
    if (texts := portions[-1].texts) is not None:
        facts["dictionary"], line = _dictionary(texts, portions[-1].name)
        lines.append(line)
    for portion in portions:
        lines += bad_rows_lines(portion.source.bad_rows, portion.source.on_bad_rows.quarantine)
    report(lines, facts)


def _dictionary(texts: Dictionary, out: str) -> tuple[dict[str, int], str]:
    """Facts about the dictionary, as JSON and as a line."""
    from ctr.features import input_files
    from ctr.features.readable import DICTIONARY

    known = len(texts.table())
    facts = {"features": known, "bytes": input_files([f"{out}/{DICTIONARY}"])[0].size}
    return facts, f"its {DICTIONARY} has the texts of the {known:,} most frequent features"


def _summary(
    portions: list[Portion], manifests: list[DatasetManifest], seconds: float
) -> tuple[dict[str, Any], list[str]]:
    """Facts about the data sets, as JSON and as lines."""
    rows = sum(manifest.rows for manifest in manifests) - sum(each.unfinished.before for each in portions)
    *held_out, facts = [_facts(*each) for each in zip(portions, manifests, strict=True)]
    source, manifest = portions[-1].source, manifests[-1]
    facts |= {
        "spec_fingerprint": manifest.spec_fingerprint,
        "seconds": seconds,
        "examples_per_second": rows / seconds,
        "peak_memory_mb": peak_memory_mb(),
    }
    speed = f"in {seconds:.2f} s ({rows / seconds:,.0f} rows/s)"
    lines = [f"hashed {some(manifest.rows, 'row')} into {portions[-1].name} {speed}"]
    if held_out:
        facts["holdout"] = held_out[0]
        lines = [
            f"hashed {some(manifest.rows, 'row')} into {portions[-1].name}, and {manifests[0].rows:,}"
            f" held-out rows into {portions[0].name}, {speed}"
        ]
    if (windows := source.windows) is not None:
        facts["windows"] = {"keys": windows.keys, "bytes": windows.bytes}
        lines.append(f"its windows know {some(windows.keys, 'key')}, in {size(windows.bytes)}")
        if source.reads_served:
            lines.append("they did not count these rows, which carry their window features")
        elif not manifest.windows_before:
            lines.append("they started empty; --windows-from DIR continues from the previous day")
    return facts, lines


def _facts(portion: Portion, manifest: DatasetManifest) -> dict[str, Any]:
    """Facts about one data set, as JSON."""
    return {
        "examples": manifest.rows,
        "positives": manifest.positives,
        "features": manifest.features,
        "bad_rows": portion.source.bad_rows.count,
        "resumed_behind": portion.unfinished.before,
    }


def describe(
    report: Report,
    dataset: Annotated[str, typer.Argument(metavar="DIR", help="A hashed data set: its folder or URI.")],
    raw: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Raw rows of the data set, to count by field the features that share a slot.",
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many of the raw rows to read.")
    ] = 100_000,
) -> None:
    """Show what a hashed data set holds: rows, clicks, features, slots used, expected collisions.

    Two features *collide* when they hash to the same slot and so share one weight; more `bits` in the
    spec mean fewer collisions. Collisions by field are counted in raw rows.

    Example: `ctr features describe days.hashed --raw day1.tsv`
    """
    from ctr.features import DatasetSource
    from ctr.features.dataset import describe as look
    from ctr.features.inspect import collisions

    contents = look(dataset)
    lines, facts = contents.lines(), contents.to_json()
    if raw:
        sample = collisions(DatasetSource(dataset, labels="ignored").spec, raw, rows)
        lines += _collision_lines(sample)
        facts["collisions_by_field"] = sample.to_json()
    report(lines, facts)


def _collision_lines(sample: Collisions) -> list[str]:
    """The features of each field that share a slot."""
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
