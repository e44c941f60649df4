"""The kind of a file by its first bytes: its compression, and whether it holds rows of text."""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import re
from contextlib import closing
from json import loads
from typing import Protocol

import pyarrow as pa

from ctr.errors import DataError
from ctr.features.inputs import InputFile

COMPRESSED = (".gz", ".zst", ".bz2", ".lz4", ".xz")
"""Suffixes of compressed files. How a file is read depends on its first bytes alone."""

PARQUET = b"PAR1"
"""What a Parquet file begins with."""
ARROW_FILE, ARROW_STREAM = b"ARROW1", b"\xff\xff\xff\xff"
"""What an Arrow IPC file begins and ends with, and what a stream begins with."""

_CODECS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xfd7zXZ\x00": "xz",
}
_OTHERS = {
    PARQUET: "a Parquet file that was compressed once more; decompress it",
    b"PK\x03\x04": "a zip archive or an Excel workbook; unpack it, or save the sheet as CSV",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it and give the files in it",
    b"Rar!": "a RAR archive; unpack it and give the files in it",
    ARROW_FILE: "an Arrow file that was compressed once more; decompress it",
    b"FEA1": "a Feather file of version 1; write it as version 2, such as with pyarrow.feather.write_feather",
    b"ORC": "an ORC file; write it as Parquet",
    b"Obj\x01": "an Avro file; write it as Parquet",
    b"SQLite format 3\x00": "an SQLite database; export the table as CSV",
    b"\xff\x06\x00\x00sNaPpY": "compressed with snappy; decompress it",
    **{magic: f"{codec}-compressed twice; decompress it once" for magic, codec in _CODECS.items()},
}
_JSON_OVER_LINES = re.compile(rb'\s*(\[\s*\{|\{\s*\n)\s*"')
_QUOTED = re.compile(rb'"[^"]*"')
_HTML = re.compile(rb"\s*<(!doctype html|html)", re.IGNORECASE)


class Stream(Protocol):
    """Bytes of a file."""

    def readinto(self, buffer: memoryview, /) -> int: ...

    def close(self) -> None: ...


def decompressed(path: InputFile, file: io.BufferedReader) -> Stream:
    """`file`, which must be at its beginning; decompressed if it is compressed. Raises DataError."""
    head = file.peek(16)[:16]
    codec = _codec_of(head)
    if codec is None:
        suffix = "".join(path.suffixes[-1:])
        if head and suffix in COMPRESSED:
            raise DataError(
                f"{path}: not compressed, or damaged, though its name ends in {suffix}; rename it if it"
                f" is plain text."
            )
        return file
    if codec == "gzip":
        return gzip.GzipFile(fileobj=file)
    if codec == "xz":
        return lzma.LZMAFile(file)
    stream: Stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)
    return stream


def is_compressed(path: InputFile) -> bool:
    """Whether a file's first bytes or its name are those of a compressed file. Raises DataError."""
    with closing(path.open()) as file:
        return _codec_of(file.read(16)) is not None or "".join(path.suffixes[-1:]) in COMPRESSED


def _codec_of(head: bytes) -> str | None:
    return next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)


def require_text(path: InputFile, head: bytes, *, whole: bool = False, json: bool = False) -> None:
    """Raises DataError if a file whose content begins with `head` certainly has no rows of text.

    `whole`: `head` is the whole file; if not, fewer than 64 bytes may lack a line end. `json`: lines of JSON
    are expected.
    """
    kinds = [what for magic, what in _OTHERS.items() if head.startswith(magic)]
    if head[257:262] == b"ustar":
        kinds.append("a tar archive; unpack it and give the files in it")
    if _is_utf16(head):
        kinds.append("text in UTF-16; save it as UTF-8, such as with `iconv -f UTF-16 -t UTF-8`")
    if (whole or len(head) >= 64) and _is_cr_only(head):
        kinds.append(
            "text whose lines end with a carriage return alone; convert it, such as with `tr '\\r' '\\n'`"
        )
    if _HTML.match(head):
        kinds.append("a web page; perhaps the download gave an error page instead of the data")
    if _JSON_OVER_LINES.match(head):
        kinds.append(
            "JSON that is not one object a line; write it so, such as with `jq -c '.[]?'` or `jq -c .`"
        )
    if not json and _is_json_line(head):
        kinds.append("JSON lines; say `format: jsonl` in the spec's source, or name the file .jsonl")
    if kinds:
        raise DataError(f"{path}: this is {kinds[0]}.")


def _is_cr_only(head: bytes) -> bool:
    """Whether lines end with a carriage return alone; one in quotes, or at the very end, does not count."""
    return b"\n" not in head and b"\r" in _QUOTED.sub(b"", head)[:-1]


def _is_utf16(head: bytes) -> bool:
    """Whether there is a byte order mark, or every other byte is zero, as in digits, delimiters and names."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    start = head[:32]
    return len(start) >= 4 and not (any(start[::2]) and any(start[1::2])) and any(start)


def _is_json_line(head: bytes) -> bool:
    """Whether the first line is a JSON object."""
    if not head.lstrip().startswith(b"{"):
        return False
    try:
        return isinstance(loads(head.lstrip().split(b"\n", 1)[0]), dict)
    except (ValueError, RecursionError):
        return False
