"""`BadRows` against a set, and the file that `Quarantine` leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from threading import Thread

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.errors import DataError
from ctr.features.readers.bad_rows import BadRows, Quarantine

SHARD = 20


@given(
    st.sets(st.integers(0, 59)), st.lists(st.tuples(st.integers(0, 2), st.integers(0, SHARD)), max_size=12)
)
def test_every_row_counts_once_however_far_which_pass_comes(
    rows: set[int], passes: list[tuple[int, int]]
) -> None:
    """Passes over three parts of the data by two workers, and what they tell, merged."""
    workers, known, told = [BadRows(), BadRows()], [set[int](), set[int]()], [list[str](), list[str]()]
    followers = [bad.follow() for bad in workers]
    for number, (shard, size) in enumerate(passes):
        bad, seen, said = workers[number % 2], known[number % 2], told[number % 2]
        start = shard * SHARD
        for first in range(start, start + size, 7):  # block by block
            met = sorted(row for row in rows if first <= row < min(first + 7, start + size))
            if not met:
                continue
            new = bad.add(start, np.array(met, np.int64), lambda i, met=met: f"row {met[i]}")
            assert [met[i] for i in new] == [row for row in met if row not in seen]
            said += [f"row {met[i]}" for i in new]
            seen |= set(met)
        assert bad.count == len(seen)
        assert bad.count_from(start) == sum(start <= row < start + SHARD for row in seen)
        assert bad.end == max(seen, default=-1) + 1
        assert bad.examples == tuple(said[:5])
    for follower, seen in zip(followers, known, strict=True):
        assert sorted(np.concatenate([np.empty(0, np.int64), *follower]).tolist()) == sorted(seen)
    merged = BadRows.from_json(orjson.loads(orjson.dumps(workers[0].to_json())))
    merged.merge(workers[1])
    merged.merge(workers[0])
    assert merged.count == len(known[0] | known[1])
    assert merged.end == max(known[0] | known[1], default=-1) + 1
    assert merged.examples == tuple(dict.fromkeys([*told[0][:5], *told[1][:5]]))[:5]


@given(st.sets(st.integers(0, 60)), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12))
def test_every_row_counts_once_where_passes_overlap(rows: set[int], passes: list[tuple[int, int]]) -> None:
    bad, known = BadRows(), set[int]()
    for start, stop in passes:
        met = [row for row in sorted(rows) if start <= row < stop]
        if met:
            new = bad.add(start, np.array(met, np.int64), str)
            assert [met[i] for i in new] == [row for row in met if row not in known]
        known |= set(met)
        assert (bad.count, bad.end) == (len(known), max(known, default=-1) + 1)


def test_what_is_kept_and_told_does_not_grow_with_the_bad_rows() -> None:
    bad = BadRows()
    block = np.arange(0, 2_000_000, 2)  # a bad row in every two
    tracemalloc.start()
    for start in range(0, 100_000_000, 2_000_000):
        bad.add(0, start + block, str)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert bad.count == 50_000_000
    assert kept < 10_000
    assert len(orjson.dumps(bad.to_json())) < 1_000


def test_another_thread_may_look_while_rows_are_added() -> None:
    bad = BadRows()
    parts = range(0, 200_000, 100)
    writer = Thread(target=lambda: [bad.add(i - i % 1_000, np.arange(i, i + 100), str) for i in parts])
    writer.start()
    while writer.is_alive():
        assert bad.count % 100 == 0
        assert bad.end % 100 == 0
        assert BadRows.from_json(bad.to_json()).count % 100 == 0
    writer.join()
    assert bad.count == 200_000


def test_a_quarantine_appears_when_it_is_put_in_place(tmp_path: Path) -> None:
    path = tmp_path / "kept.csv"
    quarantine = Quarantine(path)
    quarantine.put_in_place()
    assert list(tmp_path.iterdir()) == []
    quarantine.keep([b"a\n", b"b\n"])
    quarantine.keep([b"c\n"])
    assert not path.exists()
    quarantine.put_in_place()
    quarantine.keep([b"d\n"])
    quarantine.put_in_place()
    assert path.read_bytes() == b"a\nb\nc\nd\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_quarantine_that_cannot_be_put_in_place(tmp_path: Path) -> None:
    (tmp_path / "kept.csv").mkdir()
    quarantine = Quarantine(tmp_path / "kept.csv")
    quarantine.keep([b"a\n"])
    with pytest.raises(DataError, match=r"kept\.csv: bad rows cannot be kept there"):
        quarantine.put_in_place()


def test_what_a_killed_process_has_kept_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "kept.csv"
    live = Quarantine(path)
    live.keep([b"a\n"])
    words = "import os, pathlib, sys; from ctr.features.readers.bad_rows import Quarantine"
    words += "; q = Quarantine(pathlib.Path(sys.argv[1])); q.keep([b'b']); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", words, path], check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    Quarantine(path)
    assert len(list(tmp_path.iterdir())) == 1
    live.put_in_place()
    assert path.read_bytes() == b"a\n"
    assert list(tmp_path.iterdir()) == [path]
