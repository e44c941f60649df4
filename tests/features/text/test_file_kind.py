"""What a file is, by its first bytes: read right where that is certain, else the remedy."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ctr.errors import DataError, SpecError
from ctr.features.raw import RawSource
from ctr.features.spec import load_spec, parse_spec

SPEC = parse_spec(
    "{version: 1, source: {format: delimited}, label: y, fields: [{name: c, type: category}]}", "test.yaml"
)
ROWS = 30_000
TEXT = b"y,c\n" + b"".join(b"%d,v%d\n" % (i % 2, i) for i in range(ROWS))


def in_arrow(codec: str, data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as file:
        file.write(data)
    return sink.getvalue().to_pybytes()


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("clicks.csv", data)
    return file.getvalue()


def tarred(data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("clicks.csv")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


COMPRESSED = {
    ".gz": gzip.compress(TEXT),
    ".bz2": bz2.compress(TEXT),
    ".xz": lzma.compress(TEXT),
    ".zst": in_arrow("zstd", TEXT),
    ".lz4": in_arrow("lz4", TEXT),
}


def slots(path: Path) -> list[int]:
    (batch,) = RawSource(SPEC, [path]).batches(ROWS)
    return list(batch.slots.tolist())


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_compressed_text_is_read_whatever_its_name(tmp_path: Path, suffix: str) -> None:
    plain, named, nameless = (tmp_path / name for name in ("a.csv", f"a.csv{suffix}", "nameless"))
    plain.write_bytes(TEXT)
    named.write_bytes(COMPRESSED[suffix])
    nameless.write_bytes(COMPRESSED[suffix])
    assert slots(named) == slots(nameless) == slots(plain)
    assert RawSource(SPEC, [named]).count_rows() == ROWS
    joined = tmp_path / "joined"
    joined.write_bytes(COMPRESSED[suffix] + COMPRESSED[suffix])
    assert RawSource(SPEC, [joined], labels="ignored").count_rows() == 2 * ROWS + 1  # two headers


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_torn_file_is_an_error(tmp_path: Path, suffix: str) -> None:
    torn = tmp_path / f"torn.csv{suffix}"
    whole = COMPRESSED[suffix]
    for size in (len(whole) // 2, len(whole) - 1):
        torn.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"torn\.csv.*: cannot be read to its end"):
            slots(torn)
    torn.write_bytes(whole[:100] + bytes(100) + whole[200:])
    with pytest.raises(DataError, match=r"torn\.csv"):
        slots(torn)


def test_compressed_libsvm_is_known_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "pages.libsvm.zst"
    path.write_bytes(in_arrow("zstd", b"1 3:1\n0 4:1\n"))
    assert RawSource(load_spec("libsvm"), [path]).sample(9).labels.tolist() == [1, 0]


def test_parquet_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    parquet.write_table(pa.table({"y": [0, 1], "c": ["a", "b"]}), path)
    assert RawSource(SPEC, [path]).sample(9).labels.tolist() == [0, 1]
    with pytest.raises(SpecError, match=r"clicks\.csv: a file of format parquet does not go with"):
        RawSource(load_spec("libsvm"), [path])


PARQUET = io.BytesIO()
parquet.write_table(pa.table({"y": [0, 1], "c": ["a", "b"]}), PARQUET)
JSON_ROWS = [{"y": 0, "c": 'an, "x"'}, {"y": 1, "c": None}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "\n".join(map(json.dumps, JSON_ROWS)).encode(),
            "this is JSON lines; say `format: jsonl` in the spec's source",
        ),
        (in_arrow("zstd", json.dumps(JSON_ROWS[0]).encode() + b"\n"), "this is JSON"),
        (json.dumps(JSON_ROWS).encode(), "this is JSON"),
        (json.dumps(JSON_ROWS, indent=2).encode(), "this is JSON"),
        (json.dumps(JSON_ROWS[0], indent=2).encode(), "this is JSON"),
        (gzip.compress(PARQUET.getvalue()), "this is a Parquet file that was compressed once more"),
        (gzip.compress(gzip.compress(TEXT)), "this is gzip-compressed twice"),
        (zipped(TEXT), "this is a zip archive"),
        (gzip.compress(tarred(TEXT)), "this is a tar archive; unpack it"),
        (b"<!DOCTYPE html>\n<html><body>Not found</body></html>\n", "this is a web page"),
        (gzip.compress(b"ARROW1\0\0" + bytes(1000)), "this is an Arrow file that was compressed once more"),
        (b"FEA1" + bytes(1000), "this is a Feather file of version 1"),
        (b"ORC" + bytes(100), "this is an ORC file"),
        (TEXT.decode().encode("utf-16"), "this is text in UTF-16; save it as UTF-8"),
        (TEXT.decode().encode("utf-16-be"), "this is text in UTF-16"),
        ("点击,广告\n1,甲\n".encode("utf-16"), "this is text in UTF-16"),
        (codecs.BOM_UTF16_BE + "点击,广告\n1,甲\n".encode("utf-16-be"), "this is text in UTF-16"),
        (TEXT.replace(b"\n", b"\r"), "this is text whose lines end with a carriage return alone"),
        (b"y,c\r1,a", "this is text whose lines end with a carriage return alone"),
        (b'y,c\r1,"a"\r', "this is text whose lines end with a carriage return alone"),
    ],
    ids=range(20),
)
def test_what_holds_no_rows_of_text_is_told_with_the_remedy(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "clicks.csv"
    path.write_bytes(data)
    for spec in (SPEC, load_spec("libsvm")):
        with pytest.raises(DataError, match=message) as error:
            RawSource(spec, [path]).sample(1)
        assert str(path) in str(error.value)
        assert str(error.value).isprintable()


@pytest.mark.parametrize("data", [b'{"a": 1}\t0\n{"a": 2}\t1\n', b"[1]\t0\n[2]\t1\n", b"{x}\t1\n{y}\t0\n"])
def test_cells_that_look_like_json_are_text(tmp_path: Path, data: bytes) -> None:
    spec = parse_spec(
        '{version: 1, source: {format: delimited, delimiter: "\\t", header: false, columns: [c, "y"]},'
        ' label: "y", fields: [{name: c, type: category}]}',
        "test.yaml",
    )
    path = tmp_path / "clicks.tsv"
    path.write_bytes(data)
    assert len(RawSource(spec, [path]).sample(9)) == 2


def test_text_for_a_model_of_parquet_is_not_to_be_renamed(tmp_path: Path) -> None:
    spec = parse_spec(
        "{version: 1, source: {format: parquet}, label: click, fields: [{name: site, type: category}]}",
        "s.yaml",
    )
    path = tmp_path / "clicks.csv"
    path.write_bytes(TEXT)
    with pytest.raises(DataError, match=r"the feature spec is for Parquet .*no such file") as error:
        RawSource(spec, [path])
    assert "rename" not in str(error.value)


def test_text_named_parquet(tmp_path: Path) -> None:
    path = tmp_path / "clicks.parquet"
    for data in (TEXT, COMPRESSED[".zst"]):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"as a Parquet file, for it does not begin like one .*rename it"):
            RawSource(SPEC, [path])
