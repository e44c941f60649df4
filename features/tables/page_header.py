"""`page_header`: reads the header of a page of a Parquet file, in Thrift's compact protocol.

https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from io import SEEK_CUR, BytesIO
from typing import Any, NamedTuple

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12
_INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits
_DEEPEST = 4
DATA, DICTIONARY, DATA_V2 = 0, 2, 3
PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY = 0, 2, 8


class PageHeader(NamedTuple):
    """The parts of a header that `ColumnPages` needs."""

    kind: int
    """`DATA`, `DICTIONARY`, `DATA_V2`, or another kind."""
    size: int
    """The size of the page in the file, in bytes."""
    full_size: int
    """Its size when decompressed, in bytes."""
    values: int
    encoding: int
    level_bytes: int
    """The size of the definition levels, which are before the values and never compressed (`DATA_V2`)."""
    is_compressed: bool


def page_header(data: memoryview) -> tuple[PageHeader, int]:
    """The header at the beginning of `data`, and its length.

    Raises IndexError if it is longer than `data`, and ValueError if it is not a valid header.
    """
    stream = BytesIO(data)
    fields = _struct(stream, _DEEPEST)
    kind = fields.get(1, -1)
    own = fields.get(5 if kind == DATA else 7 if kind == DICTIONARY else 8, {})
    if not isinstance(own, dict):
        raise ValueError("a page header has a number in place of a structure")
    header = PageHeader(
        kind=kind,
        size=fields.get(3, -1),
        full_size=fields.get(2, -1),
        values=own.get(1, 0),
        encoding=own.get(4 if kind == DATA_V2 else 2, 0),
        level_bytes=own.get(5, 0) if kind == DATA_V2 else 0,
        is_compressed=own.get(7, True) if kind == DATA_V2 else True,
    )
    if not all(isinstance(number, int) and number >= 0 for number in header):
        raise ValueError("a page header has no sizes")
    return header, stream.tell()


def _struct(data: BytesIO, depth: int) -> dict[int, Any]:
    """The fields of a structure by number; those of types that a page header does not need are left out."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data.read(1)[0]:
        kind = head & 15
        number = number + (head >> 4) if head >> 4 else _integer(data)
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif kind in _INTEGERS:
            fields[number] = _integer(data)
        elif kind == _BINARY:
            if (size := _unsigned(data)) >> 31:
                raise ValueError("a page header has too long a text")
            data.seek(size, SEEK_CUR)
        elif kind == _STRUCT and depth:
            fields[number] = _struct(data, depth - 1)
        elif kind in (_BYTE, _DOUBLE):
            data.seek(1 if kind == _BYTE else 8, SEEK_CUR)
        else:
            raise ValueError(f"a page header has a field of type {kind}")
    return fields


def _integer(data: BytesIO) -> int:
    value = _unsigned(data)
    return value >> 1 ^ -(value & 1)


def _unsigned(data: BytesIO) -> int:
    value = 0
    for shift in range(0, 64, 7):
        byte = data.read(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("a page header has too long a number")
