"""Standard input: looked at first, and then read once."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pyarrow as pa
import pytest

from ctr.errors import DataError
from ctr.features.inputs import StandardInput
from ctr.features.inspect import check
from ctr.features.raw import RawSource, fit
from tests.features.raw_files import ROWS, SPEC, csv_of, expected, joined

MANY = ROWS * 1000  # 1 MB, of which a pass keeps nothing


@contextmanager
def piped(data: bytes) -> Iterator[StandardInput]:
    read, write = os.pipe()

    def feed() -> None:
        with open(write, "wb") as file:
            file.write(data)

    feeder = Thread(target=feed)
    feeder.start()
    yield StandardInput(read)
    os.close(read)
    feeder.join()


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_one_pass_after_looking_at_the_first_rows(compress: type[bytes]) -> None:
    with piped(compress(csv_of(MANY).encode())) as pipe:
        source = RawSource(SPEC, [pipe])
        assert source.warnings() == []
        assert joined([source.sample(30)]) == expected(ROWS[:30])
        assert joined(list(source.batches(1000))) == expected(MANY)
        with pytest.raises(DataError, match="standard input: it can be read only once"):
            next(source.batches(1000))


def test_what_needs_a_second_pass_says_so() -> None:
    with piped(csv_of(ROWS).encode()) as pipe:
        source = RawSource(SPEC, [pipe])
        with pytest.raises(DataError, match="counting rows"):
            source.count_rows()
        assert fit(SPEC, [pipe]) is SPEC  # which has nothing to learn
        assert joined(list(source.batches(30))) == expected(ROWS)


def test_it_can_be_checked() -> None:
    with piped(csv_of(ROWS).encode()) as pipe:
        found = check(SPEC, [pipe], 1_000)
    assert (found.rows, found.unused) == (len(ROWS), [])


def test_parquet_is_no_pipe() -> None:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table({"y": [0], "n": [1], "c": ["a"]}), sink)
    with (
        piped(sink.getvalue().to_pybytes()) as pipe,
        pytest.raises(DataError, match="standard input: a Parquet or Arrow file is not read from front"),
    ):
        RawSource(SPEC, [pipe])


def test_a_pipe_that_is_empty() -> None:
    with piped(b"") as pipe, pytest.raises(DataError, match="standard input: the file is empty"):
        RawSource(SPEC, [pipe])
