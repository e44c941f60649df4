"""Making features: speed beside Vowpal Wabbit's reading of text and scikit-learn's `FeatureHasher`."""

from __future__ import annotations

import subprocess
from itertools import islice, pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from pyarrow import csv, parquet
from sklearn.feature_extraction import FeatureHasher

from benchmarks import vowpal
from benchmarks.measure import CTR, alternate, ctr, run

NUMBERS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]
PEER_ROWS = 50_000
WINDOW_USERS, WINDOW_DEVICES, WINDOW_ADS = 333_000, 2, 1_000
"""1,000,000 keys: users, users with one of their devices, ads."""
_HEAD = f"  {'':44}{'rows/s':>12}{'ratio':>8}  asked"


def measure(folder: Path, rows: int, rounds: int, window_rows: int) -> None:
    """Print all figures; parts whose command is not there are left out, which is told."""
    log = folder / f"features-{rows}.tsv"
    if not log.exists():
        ctr("synth", "--rows", rows, "--out", log)
    measure_text(folder, log, rows, rounds)
    measure_parquet(folder, log, rows, rounds)
    measure_fitting(folder, log, rows, rounds)
    measure_suggestions(folder, log, rows)
    measure_windows(folder, window_rows)


def measure_text(folder: Path, log: Path, rows: int, rounds: int) -> None:
    """Hashing a Criteo log, plain and with crosses, beside VW's learning from its own text."""
    text, hashed = log.with_suffix(".vw"), folder / "features.hashed"
    vowpal.write_text(log, text)
    fields = [*NUMBERS[:5], *CATEGORIES[:6]]
    crosses = [f"{one} * {other}" for one, other in pairwise(fields)]
    crossed = _spec(folder / "crossed.yaml", _criteo_fields("log", {}), crosses)
    nothing = folder / "nothing.vw"
    nothing.write_text("1 | a\n")
    start_up = min(vowpal.learn(nothing) for _ in range(rounds))

    def build(spec: object) -> float:
        return float(ctr("features", "build", "--spec", spec, log, "--out", hashed, cores=2)["seconds"])

    build(crossed)  # compiles the kernels, if this is their first run
    learning, plain, more = alternate(
        rounds, lambda: vowpal.learn(text) - start_up, lambda: build("criteo"), lambda: build(crossed)
    )
    build("criteo")
    size = sum(file.stat().st_size for file in hashed.iterdir()) / log.stat().st_size
    print(f"\nCriteo's columns, raw text -> hashed data set: {rows:,} synthetic rows, {rounds} runs in turns")
    print(_HEAD)
    print(f"  {'VW --ftrl from text, learning':44}{rows / learning:12,.0f}")
    print(f"  {'ctr features build, two cores':44}{rows / plain:12,.0f}{learning / plain:8.2f}  3")
    print(f"  {'with ten crosses: its time by the plain one':44}{rows / more:12,.0f}{more / plain:8.2f}  1.6")
    print(f"  {'hashed data by raw text, bytes':56}{size:8.2f}  0.7")


def measure_parquet(folder: Path, log: Path, rows: int, rounds: int) -> None:
    """Hashing 39 columns of strings from Parquet on one core, beside `FeatureHasher`."""
    names = ["label", *NUMBERS, *CATEGORIES]
    path, hashed = log.with_suffix(".parquet"), folder / "parquet.hashed"
    if not path.exists():
        table = csv.read_csv(
            log,
            csv.ReadOptions(column_names=names),
            csv.ParseOptions(delimiter="\t", quote_char=False),
            csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True),
        )
        parquet.write_table(table, path)
    few = folder / "few.parquet"
    with parquet.ParquetFile(path) as file:
        parquet.write_table(pa.Table.from_batches([next(file.iter_batches(PEER_ROWS))]), few)
    fields: list[dict[str, object]] = [{"name": name, "type": "category"} for name in (*NUMBERS, *CATEGORIES)]
    spec = _spec(folder / "parquet.yaml", fields, [], {"format": "parquet"})
    hasher = FeatureHasher(1 << vowpal.BITS, input_type="string", alternate_sign=False)
    cells = _peer_cells(few)

    def hash_lists() -> float:
        begun = perf_counter()
        hasher.transform(cells)
        return (perf_counter() - begun) * rows / len(cells)

    def hash_file() -> float:
        begun = perf_counter()
        hasher.transform(_peer_cells(few))
        return (perf_counter() - begun) * rows / len(cells)

    def build() -> float:
        return float(ctr("features", "build", "--spec", spec, path, "--out", hashed, cores=1)["seconds"])

    def read_dictionaries() -> float:
        begun = perf_counter()
        with parquet.ParquetFile(path, read_dictionary=[*NUMBERS, *CATEGORIES]) as file:
            for _ in file.iter_batches(1 << 16, use_threads=False):
                pass
        return perf_counter() - begun

    build()  # compiles the kernels, if this is their first run
    in_memory, theirs, arrow, ours = alternate(rounds, hash_lists, hash_file, read_dictionaries, build)
    print(f"\nParquet, 39 columns of strings, one core: {rows:,} rows, {rounds} runs in turns")
    print(_HEAD)
    print(f"  {'FeatureHasher, from lists in memory':44}{rows / in_memory:12,.0f}")
    print(f"  {'FeatureHasher, from Parquet':44}{rows / theirs:12,.0f}")
    print(f"  {'ctr features build (1.0M rows/s asked)':44}{rows / ours:12,.0f}{theirs / ours:8.2f}  12")
    print(f"  {'  beside lists in memory':56}{in_memory / ours:8.2f}")
    print(f"  {'  beside reading dictionaries with pyarrow alone':56}{arrow / ours:8.2f}")


def _peer_cells(path: Path) -> list[list[str]]:
    """What `FeatureHasher` takes: the features of each row of a Parquet file, as `name=cell`."""
    table = parquet.read_table(path)
    columns = [
        pc.binary_join_element_wise(name, table[name], "=").to_pylist() for name in table.column_names[1:]
    ]
    return [[cell for cell in row if cell is not None] for row in zip(*columns, strict=True)]


def measure_fitting(folder: Path, log: Path, rows: int, rounds: int) -> None:
    """The first pass: quantiles of 13 columns, counts of 26; less the start of the command."""
    out, few = folder / "features.fitted", folder / "few.tsv"
    with log.open() as lines:
        few.write_text("".join(islice(lines, 300)))
    specs = {
        "quantiles of 13 columns": _criteo_fields("quantiles", None),
        "counts of 26 columns": _criteo_fields("log", {"min_count": 10}),
        "both": _criteo_fields("quantiles", {"min_count": 10}),
    }
    print(f"\nfitting: {rows:,} synthetic rows, medians of {rounds} runs less the command's start")
    print(_HEAD)
    for what, fields in specs.items():
        spec = _spec(folder / "fitted.yaml", fields, [])
        command = [str(CTR), "features", "fit", "--spec", str(spec), "--out", str(out)]
        run([*command, str(few)], cores=2)
        start, full = alternate(
            rounds,
            lambda command=command: run([*command, str(few)], cores=2),  # type: ignore[misc]
            lambda command=command: run([*command, str(log)], cores=2),  # type: ignore[misc]
        )
        print(f"  {what:44}{rows / max(full - start, 1e-3):12,.0f}{'':8}  1,000,000 rows/s")


def measure_suggestions(folder: Path, log: Path, rows: int) -> None:
    """Scoring all pairs of Criteo's fields."""
    if subprocess.run([CTR, "features", "suggest", "--help"], capture_output=True, check=False).returncode:
        print("\nsuggest: left out, as there is no `ctr features suggest`")
        return
    out = folder / "suggested.yaml"
    out.unlink(missing_ok=True)
    words = ["--spec", "criteo", log, "--out", out, "--rows", 1_000_000, "--workers", 2]
    done = ctr("features", "suggest", *words, cores=2)
    print(
        f"\nsuggest: 741 pairs on {min(rows, 1_000_000):,} rows, two cores: {done['wall']:.0f} s; asked 180 s"
    )


def measure_windows(folder: Path, rows: int) -> None:
    """Counts, clicks and rates of three keys over three spans, on one core."""
    log, spec = folder / f"windows-{rows}.csv", folder / "windows.yaml"
    if not log.exists():
        _write_windows_log(log, rows)
    windows = [
        {
            "name": name,
            "key": key,
            "time": "at",
            "format": "unix",
            "features": ["count", "rate"],
            "spans": ["1h", "1d", "7d"],
            "delay": "10m",
        }
        for name, key in (("by_user", ["user"]), ("by_ad", ["ad"]), ("by_device", ["user", "device"]))
    ]
    _spec(spec, [{"name": "ad", "type": "category"}], [], {"format": "delimited"}, {"windows": windows})
    done = ctr("features", "build", "--spec", spec, log, "--out", folder / "windows.hashed", cores=1)
    known = done["windows"]["keys"]
    print(f"\nwindows: 3 keys x 3 spans, one core, {rows:,} rows, {known:,} keys known at the end")
    print(f"  {done['examples_per_second']:,.0f} rows/s (asked 300,000), {done['peak_memory_mb']:,.0f} MiB")


def _write_windows_log(out: Path, rows: int) -> None:
    """Rows of users, devices and ads drawn at random, 20 a second."""
    rng = np.random.default_rng(0)
    with out.open("wb") as file:
        file.write(b"label,at,user,device,ad\n")
        for first in range(0, rows, 1_000_000):
            count = min(1_000_000, rows - first)
            table = pa.table(
                {
                    "label": (rng.random(count) < 0.1).astype(np.int8),
                    "at": 1_700_000_000 + (first + np.arange(count)) // 20,
                    "user": rng.integers(0, WINDOW_USERS, count),
                    "device": rng.integers(0, WINDOW_DEVICES, count),
                    "ad": rng.integers(0, WINDOW_ADS, count),
                }
            )
            csv.write_csv(table, file, csv.WriteOptions(include_header=False))


def _criteo_fields(transform: str, category: dict[str, object] | None) -> list[dict[str, object]]:
    """Criteo's fields: numbers with this transform, categories with these keys, or none of them."""
    keys: dict[str, object] = {"buckets": 20, "duplicates": "drop"} if transform == "quantiles" else {}
    numbers: list[dict[str, object]] = [
        {"name": name, "type": "number", "transform": transform, **keys} for name in NUMBERS
    ]
    if category is None:
        return numbers
    return numbers + [{"name": name, "type": "category", **category} for name in CATEGORIES]


def _spec(
    path: Path,
    fields: list[dict[str, object]],
    crosses: list[str],
    source: dict[str, object] | None = None,
    more: dict[str, object] | None = None,
) -> Path:
    criteo = {"format": "delimited", "delimiter": "\t", "header": False}
    criteo["columns"] = ["label", *NUMBERS, *CATEGORIES]
    spec = {"version": 1, "source": source or criteo, "label": "label", "bits": vowpal.BITS, "fields": fields}
    spec |= {"crosses": crosses} if crosses else {}
    path.write_text(yaml.safe_dump(spec | (more or {}), sort_keys=False))
    return path
