"""`BadRows` against a set, and the file that `Quarantine` leaves."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.errors import DataError
from features.bad_rows import BadRows, Quarantine


@given(st.lists(st.sets(st.integers(0, 60), max_size=20), max_size=12))
def test_every_row_counts_once_in_whatever_order_they_come(adds: list[set[int]]) -> None:
    bad = BadRows()
    known: set[int] = set()
    told: list[str] = []
    for add in adds:
        before, copy = bad.ordinals, bad.ordinals.copy()
        rows = sorted(add)
        new = bad.add(np.array(rows, np.int64), lambda i, rows=rows: f"row {rows[i]}")
        assert [rows[i] for i in new] == [row for row in rows if row not in known]
        told += [f"row {rows[i]}" for i in new]
        known |= add
        assert bad.ordinals.tolist() == sorted(known)
        assert bad.count == len(known)
        np.testing.assert_array_equal(before, copy)
    assert bad.examples == tuple(told[:5])


def test_ordinals_are_a_view_that_nobody_can_write_to() -> None:
    bad = BadRows()
    assert bad.ordinals.dtype == np.int64
    bad.add(np.array([3, 9]), str)
    assert bad.ordinals.base is not None
    assert np.searchsorted(bad.ordinals, 4) == 1
    with pytest.raises(ValueError, match="read-only"):
        bad.ordinals[0] = 1


def test_another_thread_may_look_while_rows_are_added() -> None:
    bad = BadRows()
    writer = Thread(target=lambda: [bad.add(np.arange(i, i + 100), str) for i in range(0, 200_000, 100)])
    writer.start()
    while writer.is_alive():
        seen = bad.ordinals
        assert seen.size % 100 == 0
        np.testing.assert_array_equal(seen, np.arange(seen.size))
    writer.join()
    assert bad.count == 200_000


def test_a_quarantine_appears_when_it_is_settled(tmp_path: Path) -> None:
    path = tmp_path / "kept.csv"
    quarantine = Quarantine(path)
    quarantine.settle()
    assert list(tmp_path.iterdir()) == []
    quarantine.keep([b"a\n", b"b\n"])
    quarantine.keep([b"c\n"])
    assert not path.exists()
    quarantine.settle()
    quarantine.keep([b"d\n"])
    quarantine.settle()
    assert path.read_bytes() == b"a\nb\nc\nd\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_quarantine_that_cannot_be_put_in_place(tmp_path: Path) -> None:
    (tmp_path / "kept.csv").mkdir()
    quarantine = Quarantine(tmp_path / "kept.csv")
    quarantine.keep([b"a\n"])
    with pytest.raises(DataError, match=r"kept\.csv: bad rows cannot be kept there"):
        quarantine.settle()
