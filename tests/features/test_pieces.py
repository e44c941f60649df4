"""Raw files whose rows become examples on several threads: all is as with one."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ctr.errors import DataError
from ctr.features import SKIP, BadRowPolicy
from ctr.features.batches import Batch
from ctr.features.lines.delimited import DelimitedReader
from ctr.features.raw import RawSource
from ctr.features.spec import FORMATS, parse_spec
from ctr.features.threads import Threads, in_order

SPEC = """
version: 1
source: {format: delimited, header: true, quote: QUOTE}
label: y
weight: w
bits: 12
fields: [{name: n, type: number, transform: log}, {name: c, type: category}]
"""
SPECS = {quote: parse_spec(SPEC.replace("QUOTE", quote), "test.yaml") for quote in ("true", "false")}
ROWS = 3_000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of some 20 rows instead of several thousand."""
    small = replace(
        FORMATS["delimited"],
        open=lambda path, spec, labels: DelimitedReader(path, spec, labels=labels, read_bytes=512),
    )
    monkeypatch.setitem(FORMATS, "delimited", small)


def row_of(i: int, quote: str) -> str:
    """A row; some are bad, each in its own way."""
    if i % 97 == 5:
        return ["1,1", "2,1,3,bad label", "1,0,3,bad weight", "1,1,x,bad number"][i % 4]
    if i % 211 in (7, 8, 9):
        return "no row"
    value = f'"a ""{i}""\n,{"," * (i % 40)}"' if quote == "true" and i % 3 == 0 else f"v{i % 50}"
    return f"{i % 2},{1 + i % 3},{i * i},{value}"


@pytest.fixture(params=["true", "false"])
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """A compressed file, a plain one, and one of Parquet."""
    text = [
        "\n".join(["y,w,n,c", *(row_of(i, request.param) for i in range(first, first + ROWS))])
        for first in (0, ROWS)
    ]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text[0].encode()))
    (tmp_path / "b.csv").write_text(text[1])
    table = {"y": [1, 0, None] * 50, "w": [1.0] * 150, "n": range(150), "c": ["x"] * 150}
    parquet.write_table(
        pa.table({name: list(column) for name, column in table.items()}), tmp_path / "c.parquet"
    )
    return [tmp_path / name for name in ("a.csv.gz", "b.csv", "c.parquet")]


def spec_of(paths: list[Path]) -> Any:
    return SPECS["true" if b'"' in paths[1].read_bytes() else "false"]


def require_equal(found: list[Batch], wanted: list[Batch]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for name in ("indptr", "slots", "labels", "weights"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert one.values is None
        assert other.values is None


def test_batches_and_bad_rows_are_those_of_one_thread(paths: list[Path], tmp_path: Path) -> None:
    sources = [
        RawSource(
            spec_of(paths),
            paths,
            on_bad_rows=BadRowPolicy(skip=True, quarantine=tmp_path / f"bad{threads}"),
            threads=threads,
        )
        for threads in (1, 3)
    ]
    rows = sources[0].count_rows()
    for size, start, stop in (
        (64, 0, None),
        (1, 0, 200),
        (1000, 2_990, 3_700),
        (100, 3_700, None),
        (7, 6_100, rows),
    ):
        wanted, found = (list(source.batches(size, start, stop)) for source in sources)
        require_equal(found, wanted)
        one, several = sources
        assert several.bad_rows.to_json() == one.bad_rows.to_json()
        assert several.fraction_read == one.fraction_read == 1
    assert sources[0].bad_rows.count > 50
    assert (tmp_path / "bad3").read_bytes() == (tmp_path / "bad1").read_bytes()


@settings(max_examples=20)
@given(st.integers(1, 90), st.integers(0, 400), st.integers(0, 400), st.sets(st.integers(0, 299)))
def test_bad_rows_may_be_anywhere(
    tmp_path_factory: pytest.TempPathFactory, size: int, start: int, stop: int, bad: set[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "a.csv"
    rows = ["x" if i in bad else f"{i % 2},1,{i},v{i % 9}" for i in range(300)]
    path.write_text("\n".join(["y,w,n,c", *rows]))
    sources = [RawSource(SPECS["false"], [path], on_bad_rows=SKIP, threads=threads) for threads in (1, 2)]
    wanted, found = (list(source.batches(size, start, stop)) for source in sources)
    require_equal(found, wanted)
    assert sources[1].bad_rows.to_json() == sources[0].bad_rows.to_json()


def read_until_it_fails(source: RawSource, rows: int) -> tuple[list[Batch], str]:
    found: list[Batch] = []
    with pytest.raises(DataError) as error:
        found.extend(source.batches(rows))  # keeps those before the error
    return found, str(error.value)


@pytest.mark.parametrize("damage", ["bad row", "too many bad rows", "torn file"])
def test_what_was_before_an_error_comes_before_it(tmp_path: Path, damage: str) -> None:
    rows = [f"{i % 2},1,{i},v{i % 9}" for i in range(3_000)]
    if damage != "torn file":
        for i in range(1_234, 1_300):
            rows[i] = "bad"
    path = tmp_path / "a.csv.gz"
    data = gzip.compress("\n".join(["y,w,n,c", *rows]).encode())
    path.write_bytes(data[: len(data) // 2] if damage == "torn file" else data)
    outcomes = [
        read_until_it_fails(
            RawSource(
                SPECS["false"],
                [path],
                on_bad_rows=BadRowPolicy(skip=damage == "too many bad rows", max_fraction=0.01),
                threads=threads,
            ),
            50,
        )
        for threads in (1, 4)
    ]
    require_equal(outcomes[1][0], outcomes[0][0])
    assert len(outcomes[1][0]) > 10
    assert outcomes[1][1] == outcomes[0][1]


def test_the_first_row_without_a_click_decides_for_all(tmp_path: Path) -> None:
    """Where the first rows leave it open, as all are clicks, the order of the rows matters."""
    path = tmp_path / "a.csv"
    labels = ["1"] * 66_000 + ["-1"] + ["1", "0", "-1"] * 300
    path.write_text("\n".join(["y,w,n,c", *(f"{label},1,1,x" for label in labels)]))
    source = RawSource(SPECS["false"], [path], on_bad_rows=SKIP, threads=4)
    found = np.concatenate([batch.labels for batch in source.batches(500) if batch.labels is not None])
    assert found.tolist() == [float(label == "1") for label in labels if label != "0"]
    assert source.bad_rows.count == 300
    assert "write all labels one way" in source.bad_rows.examples[0]


def test_a_pass_that_is_given_up_ends_its_threads(paths: list[Path]) -> None:
    batches = RawSource(spec_of(paths), paths, on_bad_rows=SKIP, threads=3).batches(10)
    for _ in range(5):
        next(batches)
    assert any(thread.name.startswith("hasher") for thread in threading.enumerate())
    del batches
    assert not any(thread.name.startswith("hasher") for thread in threading.enumerate())


def test_in_order_takes_few_items_ahead() -> None:
    taken: list[int] = []
    first = threading.Event()

    def items() -> Iterator[int]:
        for i in range(50):
            taken.append(i)
            yield i

    def double(i: int) -> int:
        if i == 0:
            first.wait(60)  # the slowest one, and yet the first to come
        return 2 * i

    found = in_order(double, items(), 3)
    threading.Timer(0.05, first.set).start()
    assert next(found) == 0
    assert len(taken) == 6
    assert list(found) == list(range(2, 100, 2))


def test_in_order_fails_in_order() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise DataError("the items end")

    def half(i: int, bad: int) -> float:
        if i == bad:
            raise DataError("a call failed")
        return i / 2

    for bad, wanted, message in (
        (9, [0, 0.5, 1, 1.5, 2], "the items end"),
        (3, [0, 0.5, 1], "a call failed"),
    ):
        found: list[float] = []
        with pytest.raises(DataError, match=message):
            found.extend(in_order(partial(half, bad=bad), items(), 4))
        assert found == wanted


def test_threads_begin_what_is_submitted_first() -> None:
    begun: list[str] = []
    free = threading.Event()
    with Threads(1) as threads:
        threads.ahead(free.wait, 60)
        ahead = [threads.ahead(begun.append, f"ahead {i}") for i in range(2)]
        submitted = [threads.submit(begun.append, f"submitted {i}") for i in range(2)]
        free.set()
        for each in ahead + submitted:
            each.result()
    assert begun == ["submitted 0", "submitted 1", "ahead 0", "ahead 1"]


def test_threads_that_end_cancel_what_has_not_begun() -> None:
    running, free = threading.Event(), threading.Event()

    def work() -> int:
        running.set()
        free.wait(60)
        return 1

    with Threads(1) as threads:
        begun = threads.ahead(work)
        assert running.wait(60)
        waiting = threads.submit(print)
        threading.Timer(0.05, free.set).start()
    assert begun.result() == 1
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="ended"):
        threads.ahead(print)


def test_threads_that_do_other_work_too_give_the_same_batches(paths: list[Path]) -> None:
    alone, shared = (RawSource(spec_of(paths), paths, on_bad_rows=SKIP, threads=2) for _ in range(2))
    expected = list(alone.batches(100))
    with Threads(2) as threads:
        shared.shared_threads = threads
        others = [threads.submit(sum, range(1_000)) for _ in range(20)]
        found = list(shared.batches(100))
        assert {each.result() for each in others} == {499_500}
    require_equal(found, expected)
