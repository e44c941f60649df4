"""`ColumnPages`: a column of texts in a row group of a Parquet file, as codes of its dictionary.

Arrow creates the text of each cell, which takes 20 to 60 ns; here, most cells take 2 ns. With Arrow's own
dictionaries (`read_dictionary`), `ctr features build` has 0.64 of its speed on Criteo's columns, and 0.78 on
categories and a text; `make bench-features` compares with reading them alone.
"""

from __future__ import annotations

from io import BufferedReader
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.features.tables import page_header as headers
from ctr.features.tables.page_header import PageHeader, page_header
from ctr.features.tables.page_kernels import place_texts, spread, unpack_runs
from ctr.features.text import Texts

_READ_BYTES = 1 << 18  # 256 KiB; pages are often larger
_MOST_HEADER_BYTES = 1 << 24  # statistics may hold long texts
_MOST_BYTES = (1 << 31) - 1
_CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "GZIP": "gzip", "ZSTD": "zstd", "BROTLI": "brotli"}
_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_BY_DICTIONARY = (headers.PLAIN_DICTIONARY, headers.RLE_DICTIONARY)


_NO_TEXTS = Texts(np.empty(0, np.uint8), *np.zeros((2, 1), np.int32))


def is_text(kind: pa.DataType) -> bool:
    """Whether the bytes of values of this type are their text."""
    types = pa.types
    if types.is_dictionary(kind):
        return is_text(kind.value_type)
    plain = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(is_one(kind) for is_one in plain)


def are_readable(column: Any, schema: Any) -> bool:
    """Whether `ColumnPages` can read a column of texts: it has one text per row, and common encodings.

    `column` is its ColumnChunkMetaData in a row group, `schema` its ColumnSchema.
    """
    return bool(
        column.physical_type == "BYTE_ARRAY"
        and schema.max_repetition_level == 0
        and schema.max_definition_level <= 1
        and column.compression in _CODECS
        and set(column.encodings) <= _ENCODINGS
    )


class ColumnPages:
    """Reads the column from front to back. Raises ValueError for data that violate the format."""

    dictionary: Texts
    """The texts of the codes."""

    def __init__(self, file: BufferedReader, column: Any, schema: Any) -> None:
        """`column`: its ColumnChunkMetaData, for which `are_readable` is true."""
        self._file = file
        starts = [column.data_page_offset]
        starts += [column.dictionary_page_offset] if column.has_dictionary_page else []
        self._at = min(starts)
        """The position in the file at which `_window` ends."""
        self._end = self._at + column.total_compressed_size
        self._window = memoryview(b"")
        codec = _CODECS[column.compression]
        self._codec = None if codec is None else pa.Codec(codec)
        self._nullable = schema.max_definition_level > 0
        self._values_left: int = column.num_values
        """The number of values in pages that have not been read."""
        self.dictionary = _NO_TEXTS
        self._page: Texts | NDArray[np.int32] = np.empty(0, np.int32)
        self._used = self._size = 0
        """How many of the page's cells have been returned, and how many it has."""

    def read(self, codes: NDArray[np.int32]) -> Texts | None:
        """Reads the next `codes.size` cells. If the `dictionary` has them all, writes their codes.

        Returns None then, and otherwise their texts, in order.
        """
        done = 0
        parts: list[Texts | NDArray[np.int32]] = []
        while done < codes.size:
            in_place = self._used == self._size and self._next_page(codes[done:])
            part = slice(self._used, min(self._size, self._used + codes.size - done))
            count = part.stop - part.start
            if isinstance(self._page, Texts):
                page = self._page
                texts = Texts(page.buffer, page.starts[part], page.ends[part])
                parts.append(texts if count == self._size else _cut(texts))
            else:
                if not in_place:
                    codes[done : done + count] = self._page[part]
                parts.append(codes[done : done + count])
            self._used += count
            done += count
        if not any(isinstance(part, Texts) for part in parts):
            return None
        return _joined([part if isinstance(part, Texts) else self.texts_of(part) for part in parts])

    def texts_of(self, codes: NDArray[np.int32]) -> Texts:
        """The texts of these codes."""
        texts = self.dictionary
        return Texts(texts.buffer, texts.starts[codes], texts.ends[codes])

    def _next_page(self, buffer: NDArray[np.int32]) -> bool:
        """Goes on to the next page with cells; whether it has codes, and they all fit into `buffer`.

        They are then in `buffer`.
        """
        while self._used == self._size:
            header = self._header()
            self._fill(header.size)
            body = np.frombuffer(self._window[: header.size], np.uint8)
            self._window = self._window[header.size :]
            if header.kind == headers.DICTIONARY:
                self._take_dictionary(header, self._unpacked(body, header.full_size))
            elif header.kind in (headers.DATA, headers.DATA_V2):
                self._take_page(header, body, buffer)
        return isinstance(self._page, np.ndarray) and self._size <= buffer.size

    def _header(self) -> PageHeader:
        size = 1 << 12
        while True:
            self._fill(min(size, len(self._window) + self._end - self._at))
            try:
                header, length = page_header(self._window[:size])
            except IndexError:
                if size > min(len(self._window), _MOST_HEADER_BYTES):
                    raise ValueError("a column is cut short") from None
                size *= 4
                continue
            self._window = self._window[length:]
            return header

    def _fill(self, size: int) -> None:
        """Reads on until the window has at least `size` bytes."""
        missing = size - len(self._window)
        if missing <= 0:
            return
        if missing > self._end - self._at:
            raise ValueError("a column is cut short")
        self._file.seek(self._at)
        more = self._file.read(min(max(missing, _READ_BYTES), self._end - self._at))
        if len(more) < missing:
            raise ValueError("the file is cut short")
        self._at += len(more)
        self._window = memoryview(bytes(self._window) + more)

    def _unpacked(self, body: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
        if self._codec is None or size == 0:
            return body
        return np.frombuffer(self._codec.decompress(pa.py_buffer(body), size), np.uint8)

    def _take_dictionary(self, header: PageHeader, data: NDArray[np.uint8]) -> None:
        if self.dictionary is not _NO_TEXTS or header.values > data.size // 4:
            raise ValueError("a dictionary is not as it should be")
        places = np.zeros((2, header.values + 1), np.int32)
        if not place_texts(data, 0, places[0, :-1], places[1, :-1]):
            raise ValueError("a dictionary is cut short")
        self.dictionary = Texts(data, places[0], places[1])

    def _take_page(self, header: PageHeader, body: NDArray[np.uint8], buffer: NDArray[np.int32]) -> None:
        if header.values > self._values_left:
            raise ValueError("there are more values than rows")
        self._values_left -= header.values
        split = header.level_bytes
        if header.kind == headers.DATA_V2:
            if split > min(body.size, header.full_size):
                raise ValueError("a page is cut short")
            level_bytes, data = body[:split], body[split:]
            if header.is_compressed:
                data = self._unpacked(data, header.full_size - split)
        else:
            data = self._unpacked(body, header.full_size)
            level_bytes = data[:0]
            if self._nullable:
                split = 4 + int.from_bytes(data[:4].tobytes(), "little")
                level_bytes, data = data[4:split], data[split:]
        levels = np.empty(header.values if self._nullable else 0, np.uint8)
        if not unpack_runs(level_bytes, 0, level_bytes.size, 1, 2, levels):
            raise ValueError("the levels of a page are not as they should be")
        out = buffer[: header.values] if header.values <= buffer.size else np.empty(header.values, np.int32)
        self._page = self._values(header, data, levels, out)
        self._used, self._size = 0, header.values

    def _values(
        self, header: PageHeader, data: NDArray[np.uint8], levels: NDArray[np.uint8], out: NDArray[np.int32]
    ) -> Texts | NDArray[np.int32]:
        """The cells of a page: texts, or codes, which are written to `out`."""
        present = np.count_nonzero(levels) if self._nullable else out.size
        some = present < out.size
        if header.encoding in _BY_DICTIONARY:
            missing = self.dictionary.starts.size - 1
            codes = np.empty(present + 1, np.int32) if some else out
            width = int(data[0]) if data.size else 0
            if width > 32 or not unpack_runs(data, 1, data.size, width, missing, codes[:present]):
                raise ValueError("a page has values that are not in its dictionary")
            if some:
                spread(levels, missing, codes, out)
            return out
        if header.encoding != headers.PLAIN:
            raise ValueError(f"a page has the encoding {header.encoding}")
        starts, ends = np.empty((2, present + 1), np.int32)
        if not place_texts(data, 0, starts[:present], ends[:present]):
            raise ValueError("a page is cut short")
        if not some:
            return Texts(data, starts[:present], ends[:present])
        places = np.empty((2, out.size), np.int32)
        spread(levels, 0, starts, places[0])
        spread(levels, 0, ends, places[1])
        return Texts(data, places[0], places[1])


def _joined(parts: list[Texts]) -> Texts:
    """All texts, one part after the other, in one buffer."""
    if len(parts) == 1:
        return parts[0]
    if sum(part.buffer.size for part in parts) > _MOST_BYTES:
        raise ValueError("its texts are too long: a few rows have over 2 GiB of them")
    starts, ends, base = [], [], 0
    for part in parts:
        starts.append(part.starts + np.int32(base))
        ends.append(part.ends + np.int32(base))
        base += part.buffer.size
    return Texts(np.concatenate([p.buffer for p in parts]), np.concatenate(starts), np.concatenate(ends))


def _cut(texts: Texts) -> Texts:
    """The texts with only the part of the buffer that they need; missing ones begin and end at 0."""
    present = texts.ends > 0
    if not present.any():
        return Texts(texts.buffer[:0], texts.starts, texts.ends)
    first, last = int(texts.starts[present][0]), int(texts.ends[present][-1])
    starts, ends = np.maximum(texts.starts - first, 0), np.maximum(texts.ends - first, 0)
    return Texts(texts.buffer[first:last], starts, ends)
