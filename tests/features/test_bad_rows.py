"""Rows that cannot be read: refused, skipped and counted, or kept in a file; and how many may be."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ctr.errors import DataError
from ctr.features import SKIP, BadRowPolicy
from ctr.features.raw import RawSource
from tests.features.raw_files import ROWS, SPEC, csv_of, expected, joined, write

BAD = "y,n,c\n1,2,ok\n2,2,label\n1,2\n0,x,number\n,1,none\n0,,ok\n"


def test_the_first_bad_row_fails(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD)
    with pytest.raises(DataError) as error:
        list(RawSource(SPEC, [path]).batches(10))
    message = str(error.value)
    assert message.startswith(f"{path}:3: column 'y': '2' is ")
    assert message.endswith('fix the row or use on_bad_rows="skip" or "quarantine".')


def test_bad_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.csv", BAD), write(tmp_path / "b.csv", BAD)]
    source = RawSource(SPEC, paths, on_bad_rows=SKIP)
    following = source.bad_rows.follow()
    for _ in range(2):
        assert joined(list(source.batches(10))) == 2 * expected([(1, 2, "ok"), (0, None, "ok")])
        assert np.concatenate(list(following)).tolist() == [1, 2, 3, 4, 7, 8, 9, 10]
        assert source.bad_rows.count == 8
        examples = source.bad_rows.examples
        assert [example.split(": ")[0] for example in examples] == [
            *(f"{paths[0]}:{line}" for line in (3, 4, 5, 6)),
            f"{paths[1]}:3",
        ]
        assert examples[1].endswith("found 2 columns, expected 3")


def test_a_pass_that_stops_early_forgets_no_bad_row(tmp_path: Path) -> None:
    source = RawSource(SPEC, [write(tmp_path / "a.csv", BAD)], on_bad_rows=SKIP)
    for _ in source.batches(1):
        pass
    (example, *_) = source.bad_rows.examples
    second = source.batches(1)
    next(second)
    assert source.bad_rows.count == 4
    assert source.bad_rows.examples[0] == example


def test_quarantine_keeps_each_bad_row_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD)
    kept = write(tmp_path / "kept.csv", "from an earlier job\n")
    source = RawSource(SPEC, [path], on_bad_rows=BadRowPolicy(skip=True, quarantine=kept))
    source.sample(1)
    assert kept.read_text() == "from an earlier job\n"
    for start, stop in [(3, None), (0, 3), (0, None)]:
        list(source.batches(10, start, stop))
    assert kept.read_text() == "0,x,number\n,1,none\n2,2,label\n1,2\n"
    assert sorted(tmp_path.iterdir()) == [path, kept]


@pytest.mark.parametrize("old", ["from an earlier job\n", None])
def test_without_bad_rows_no_quarantine_is_made_or_emptied(tmp_path: Path, old: str | None) -> None:
    path = write(tmp_path / "a.csv", csv_of(ROWS))
    kept = tmp_path / "kept.csv"
    if old is not None:
        kept.write_text(old)
    list(RawSource(SPEC, [path], on_bad_rows=BadRowPolicy(skip=True, quarantine=kept)).batches(10))
    assert (kept.read_text() if kept.exists() else None) == old


def test_an_old_quarantine_stays_until_the_pass_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD + csv_of(ROWS, "3,3,three"))
    kept = write(tmp_path / "kept.csv", "from an earlier job\n")
    batches = RawSource(SPEC, [path], on_bad_rows=BadRowPolicy(skip=True, quarantine=kept)).batches(2)
    next(batches)
    assert kept.read_text() == "from an earlier job\n"
    batches.close()  # type: ignore[attr-defined]
    assert kept.read_text() == "2,2,label\n1,2\n0,x,number\n,1,none\n"
    assert sorted(tmp_path.iterdir()) == [path, kept]


def test_what_was_quarantined_before_a_failure_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD)
    torn = write(tmp_path / "b.csv.gz", csv_of(ROWS * 100))
    kept = tmp_path / "kept.csv"
    source = RawSource(SPEC, [path, torn], on_bad_rows=BadRowPolicy(skip=True, quarantine=kept))
    torn.write_bytes(torn.read_bytes()[:-20])
    with pytest.raises(DataError, match="it has shrunk"):
        list(source.batches(10))
    assert kept.read_text() == "2,2,label\n1,2\n0,x,number\n,1,none\n"


def test_quarantine_of_parquet_is_json(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"y": [1, 5], "n": [1, 2], "c": ["a", "b"]}), tmp_path / "a.parquet")
    kept = tmp_path / "kept.jsonl"
    source = RawSource(SPEC, [tmp_path / "a.parquet"], on_bad_rows=BadRowPolicy(skip=True, quarantine=kept))
    list(source.batches(10))
    assert json.loads(kept.read_text()) == {"y": "5", "n": "2", "c": "b"}


def test_a_quarantine_that_cannot_be_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", BAD)
    source = RawSource(
        SPEC, [path], on_bad_rows=BadRowPolicy(skip=True, quarantine=tmp_path / "none" / "kept.csv")
    )
    with pytest.raises(DataError, match="bad rows cannot be kept there"):
        list(source.batches(10))


def test_only_bad_rows_make_no_batch(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "y,n,c\n5,1,a\n5,1,a\n")
    source = RawSource(SPEC, [path], on_bad_rows=SKIP)
    assert list(source.batches(10)) == []
    assert source.bad_rows.count == 2
    assert len(source.sample(5)) == 0


def test_many_bad_rows_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("y,n,c\n" + "2,1,a\n" * 20_000)
    source = RawSource(SPEC, [path], on_bad_rows=SKIP)
    source.sample(1)
    tracemalloc.start()
    list(source.batches(4096))
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert source.bad_rows.count == 20_000
    assert kept < 150_000


def test_too_many_bad_rows_end_a_pass_with_the_counts_by_reason(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [*ROWS] * 20
    for i in range(0, 120, 10):
        rows[i] = (1, "x", "bad") if i % 20 else (7, 1, "bad")
    path = write(tmp_path / "a.csv", csv_of(rows) + "1,2\n" * 10)
    for allowed in (None, 0.011):
        source = RawSource(SPEC, [path], on_bad_rows=BadRowPolicy(skip=True, max_fraction=allowed))
        assert sum(map(len, source.batches(100))) == 1_988
    source = RawSource(SPEC, [path], on_bad_rows=BadRowPolicy(skip=True, max_fraction=0.01))
    with pytest.raises(DataError) as error:
        list(source.batches(100))
    assert str(error.value).startswith(
        "22 of the 2,010 rows read are bad (1.1%), more than max_bad_fraction 0.01 allows: 10 with 2"
        " columns instead of 3, 6 with column 'y': no label (0 or 1, or -1 or 1), 6 with column 'n': not a"
        f" number; such as {path}:2: column 'y': '7' is no label"
    )
    with pytest.raises(DataError, match="10 of the 10 rows read are bad"):
        list(source.batches(100, start=2_000))
    assert sum(map(len, source.batches(100, start=60, stop=1_900))) == 1_834  # 6 bad rows are always allowed


@pytest.mark.parametrize(
    ("bad", "rows", "allowed"), [(1, 10, True), (10, 20, True), (3, 4, False), (11, 99, False)]
)
def test_a_few_bad_rows_of_few_are_allowed(tmp_path: Path, bad: int, rows: int, allowed: bool) -> None:
    text = csv_of([*ROWS[: rows - bad], *[("?", 1, "x")] * bad])
    source = RawSource(
        SPEC, [write(tmp_path / "a.csv", text)], on_bad_rows=BadRowPolicy(skip=True, max_fraction=0.01)
    )
    if allowed:
        assert sum(map(len, source.batches(100))) == rows - bad
    else:
        with pytest.raises(DataError, match=f"{bad} of the {rows} rows read are bad"):
            list(source.batches(100))
