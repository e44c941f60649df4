"""`ParquetReader`: rows of a Parquet file, as text cells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import DataError
from features.inputs import InputFile, partition_columns
from features.readers.block import Block, require_columns, rows_per_block
from features.text import PARQUET, Cells

_BATCH_ROWS = 16_384
_BATCH_BYTES = 1 << 30  # 1 GiB: places in a buffer are 32 bits wide
_READ_BYTES = 1 << 20  # 1 MiB at a time of a column, instead of a whole row group
_PADDING = 64


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """The `Origin` of rows of a Parquet file."""

    path: InputFile
    first: int
    """Position of the block's first row in the file."""
    columns: Sequence[str]
    cells: Cells

    def place(self, row: int) -> str:
        return f"{self.path}: row {self.first + row + 1}"

    def raw(self, row: int) -> bytes:
        """The columns that were read, as a line of JSON."""
        texts: dict[str, str] = {}
        for j, name in enumerate(self.columns):
            cell = self.cells.buffer[self.cells.starts[row, j] : self.cells.ends[row, j]]
            texts[name] = cell.tobytes().decode("utf-8", "backslashreplace")
        return json.dumps(texts, ensure_ascii=False).encode() + b"\n"

    def misread(self, status: int, column: int) -> tuple[str, str] | None:
        return None


@dataclass(frozen=True, slots=True)
class ParquetPiece:
    """Rows of a Parquet file, brought into text (see `text_of_column`)."""

    path: InputFile
    batch: pa.RecordBatch
    first: int
    """Position of the first row in the file."""
    columns: Sequence[str]

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    def blocks(self) -> Iterator[Block]:
        pieces: list[NDArray[np.uint8]] = []
        offsets: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        base = 0
        for name in self.columns:
            data, starts, ends = self._column(name)
            pieces.append(data)
            offsets.append((starts + base, ends + base))
            base += data.size
        constants = np.frombuffer(b"".join(partition_columns(self.path).values()), np.uint8)
        buffer = np.concatenate([*pieces, np.zeros(_PADDING, np.uint8), constants])
        size = rows_per_block(len(offsets))
        for first in range(0, self.rows, size):
            part = slice(first, min(first + size, self.rows))
            rows = part.stop - part.start
            cells = Cells(
                buffer,
                np.stack([starts[part] for starts, _ in offsets], axis=1).astype(np.int32),
                np.stack([ends[part] for _, ends in offsets], axis=1).astype(np.int32),
            )
            status, column = np.zeros(rows, np.uint8), np.zeros(rows, np.int32)
            origin = ParquetRows(self.path, self.first + first, self.columns, cells)
            yield Block(cells, status, column, origin)

    def _column(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Bytes of a column's cells, and where in them each cell starts and ends."""
        from features.readers.column_text import text_of_column  # pyarrow.compute: 70 ms of every start

        column = self.batch.column(name)
        try:
            text = text_of_column(column)
        except pa.ArrowException:
            raise DataError(
                f"{self.path}: column {name!r} has the type {column.type}, which has no text; expected"
                f" strings, numbers, booleans or times."
            ) from None
        _, offset_buffer, data_buffer = text.buffers()
        bounds = np.frombuffer(offset_buffer, np.int64)[text.offset : text.offset + len(text) + 1]
        begin, end = int(bounds[0]), int(bounds[-1])
        data = np.frombuffer(data_buffer or b"", np.uint8)[begin:end]
        starts = bounds[:-1] - begin
        ends = bounds[1:] - begin
        if text.null_count:  # what a null spans may be anything
            ends = np.where(text.is_null().to_numpy(zero_copy_only=False), starts, ends)
        return data, starts, ends


class ParquetReader:
    """Reads the needed columns of a Parquet file."""

    def __init__(self, path: InputFile) -> None:
        from pyarrow import parquet  # here, as text has no use for it and its network file systems

        self._path = path
        self._rows_read = 0
        try:
            # Far away, a row group comes in few large requests, each as large as memory is taken anyway.
            self._file = parquet.ParquetFile(
                path.seekable(), pre_buffer=path.is_remote, buffer_size=0 if path.is_remote else _READ_BYTES
            )
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None
        self._rows: int = self._file.metadata.num_rows
        self.columns: Sequence[str] = self._file.schema_arrow.names

    def close(self) -> None:
        self._file.close()

    @property
    def fraction(self) -> float:
        return self._rows_read / self._rows if self._rows else 1.0

    def require(self, columns: Sequence[str]) -> None:
        require_columns(self._path, self.columns, columns)

    def count_rows(self) -> int:
        return self._rows

    def pieces(self, columns: Sequence[str]) -> Iterator[ParquetPiece]:
        self.require(columns)
        if self._rows == 0:
            raise DataError(f"{self._path}: there are no rows; leave the file out.")
        try:
            for part in self._batches(columns):
                yield ParquetPiece(self._path, part, self._rows_read, columns)
                self._rows_read += part.num_rows
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        groups = range(self._file.num_row_groups)
        # Arrow would fetch all row groups of a remote file at once.
        for some in [[group] for group in groups] if self._path.is_remote else [list(groups)]:
            for batch in self._file.iter_batches(_BATCH_ROWS, row_groups=some, columns=list(columns)):
                yield from _parts(batch)

    def _unreadable(self, error: Exception) -> DataError:
        reason = str(error).splitlines()[0]
        with closing(self._path.open()) as file:
            known = file.read(len(PARQUET)) == PARQUET
        if not known:
            return DataError(
                f"{self._path}: cannot be read as a Parquet file, for it does not begin like one ({reason});"
                f" rename it to .csv or .tsv if it is text, decompress it if it is compressed."
            )
        return DataError(f"{self._path}: cannot be read as a Parquet file ({reason}).")


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch cut into parts of at most `_BATCH_BYTES`, or one row."""
    if batch.nbytes <= _BATCH_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half))
    yield from _parts(batch.slice(half))
