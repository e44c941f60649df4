"""Files by their URI: a server that speaks S3, and what goes wrong with one."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ctr.errors import DataError
from ctr.features.inputs import input_files
from ctr.features.inputs.remote import _s3
from ctr.features.raw import RawSource
from ctr.features.spec import parse_spec
from tests.features.inputs.s3_server import S3Server, start_s3
from tests.features.raw_files import ROWS, SPEC, csv_of, expected, joined, write

pytestmark = pytest.mark.xdist_group("s3")  # one server for all

MANY = ROWS * 12_000  # 14 MB: more than is read ahead


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with start_s3() as server:
        server.put("logs")
        server.put("logs/day=1/b.csv.gz", gzip.compress(csv_of(ROWS[40:70]).encode()))
        server.put("logs/day=1/a.csv", csv_of(ROWS[:40]).encode())
        server.put("logs/day=1/_SUCCESS", b"")
        server.put("logs/many.csv", csv_of(MANY).encode())
        y, n, c = zip(*ROWS[70:], strict=True)
        sink = pa.BufferOutputStream()
        parquet.write_table(pa.table({"c": c, "n": n, "y": y}), sink, row_group_size=7)
        server.put("logs/day=2/c.parquet", sink.getvalue().to_pybytes())
        server.put("logs/day=2/deep/torn.csv.gz", gzip.compress(csv_of(ROWS).encode())[:-20])
        yield server


@pytest.fixture(autouse=True)
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    _s3.cache_clear()
    yield server
    _s3.cache_clear()


def names(*inputs: str) -> list[str]:
    return [str(file).removeprefix("s3://logs/") for file in input_files(inputs)]


def test_files_folders_and_patterns(server: S3Server) -> None:
    first = ["day=1/a.csv", "day=1/b.csv.gz"]
    every = [*first, "day=2/c.parquet", "day=2/deep/torn.csv.gz", "many.csv"]
    assert names("s3://logs/day=1/a.csv") == first[:1]
    assert names("s3://logs/day=1") == names("s3://logs/day=1/") == first
    assert names("s3://logs") == every
    assert names("s3://logs/day=*") == every[:-1]
    assert names("s3://logs/day=*/*.csv*") == first
    assert names("s3://logs/**/*.gz") == [every[1], every[3]]
    assert names("s3://logs/day=[!2]/?.csv") == first[:1]
    with pytest.raises(DataError, match=r"day=3: there is no such file or folder"):
        names("s3://logs/day=3/*")
    with pytest.raises(DataError, match=r"day=1/\*\.tsv: no data file is there"):
        names("s3://logs/day=1/*.tsv")


def test_rows_are_those_of_local_files(server: S3Server) -> None:
    source = RawSource(SPEC, ["s3://logs/day=1", "s3://logs/day=2/c.parquet"])
    assert joined(list(source.batches(30))) == expected(ROWS)
    assert source.count_rows() == len(ROWS)
    days = parse_spec(SPEC.to_yaml().replace("name: n", "name: day"), "days")
    ((batch),) = RawSource(days, ["s3://logs/day=1/a.csv"]).batches(100)
    assert len(batch) == 40


def test_a_large_file_comes_in_pieces(server: S3Server, tmp_path: Path) -> None:
    local = write(tmp_path / "many.csv", csv_of(MANY))
    source = RawSource(SPEC, ["s3://logs/many.csv"])
    fractions = []
    for mine, other in zip(RawSource(SPEC, [local]).batches(100_000), source.batches(100_000), strict=True):
        assert (mine.slots == other.slots).all()
        fractions.append(source.fraction_read)
    assert 0 < fractions[0] < 0.5 < fractions[-1]


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (csv_of(ROWS + ROWS), "it has grown"),
        (csv_of(ROWS[::-1]), "it was written to"),
    ],
)
def test_a_file_that_is_put_there_anew(server: S3Server, text: str, change: str) -> None:
    server.put("logs/changing/a.csv", csv_of(ROWS).encode())
    source = RawSource(SPEC, ["s3://logs/changing"])
    assert joined(list(source.batches(30))) == expected(ROWS)
    assert joined(list(source.batches(30))) == expected(ROWS)
    put = int(time.time())
    while int(time.time()) == put:  # as S3 knows times to the second
        time.sleep(0.05)
    server.put("logs/changing/a.csv", text.encode())
    try:
        with pytest.raises(DataError, match=rf"s3://logs/changing/a\.csv: {change}"):
            list(source.batches(30))
    finally:
        server.delete("logs/changing/a.csv")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://logs/none.csv", "none.csv: there is no such file or folder; check bucket and path"),
        ("s3://nowhere/none.csv", "there is no such bucket; check its name"),
        ("s3://nowhere", "there is no such file or folder"),
        ("s3://logs/day=2/deep/torn.csv.gz", "torn.csv.gz: cannot be read to its end"),
        ("what://logs/a.csv", "what://logs/a.csv: no file system can be opened for it"),
    ],
)
def test_what_is_not_there(server: S3Server, uri: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(RawSource(SPEC, [uri]).batches(10))


def test_no_permission(server: S3Server) -> None:
    (file,) = input_files(["s3://logs/day=1/a.csv"])
    server.refuse(True)
    try:
        for uri in ("s3://logs/day=1/a.csv", "s3://logs/day=1", "s3://logs"):
            with pytest.raises(DataError, match=rf"{uri}: no permission to read it .*AWS_ACCESS_KEY_ID"):
                input_files([uri])
        with pytest.raises(DataError, match=r"a\.csv: no permission to read it"):
            file.open()
    finally:
        server.refuse(False)


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("ctr.features.inputs.remote._ATTEMPTS", 2)
    with pytest.raises(DataError, match=r"the server cannot be reached .*AWS_ENDPOINT_URL"):
        input_files(["s3://logs/a.csv"])


def test_file_uris(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", csv_of(ROWS))
    assert joined(list(RawSource(SPEC, [f"file://{tmp_path}/a.csv"]).batches(100))) == expected(ROWS)
    assert [str(file) for file in input_files([f"file://{tmp_path}"])] == [f"file://{tmp_path}/a.csv"]
