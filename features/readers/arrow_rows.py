"""`ArrowPiece`: rows of an Arrow record batch, from a file or from memory, as text cells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import DataError
from features.readers.block import Block, require_columns, rows_per_block
from features.spec import FeatureSpec
from features.text import Cells

BATCH_ROWS = 16_384
_BATCH_BYTES = 1 << 30  # 1 GiB: places in a buffer are 32 bits wide
_PADDING = 64


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """The `Origin` of rows that come as Arrow columns."""

    where: object
    """The file, or what else `str` names in messages."""
    first: int
    """Position of the block's first row there."""
    columns: Sequence[str]
    cells: Cells

    def place(self, row: int) -> str:
        return f"{self.where}: row {self.first + row + 1}"

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
class ArrowPiece:
    """Rows of a record batch, brought into text (see `text_of_column`)."""

    where: object
    """See `ArrowRows`."""
    batch: pa.RecordBatch
    first: int
    """Position of the first row there."""
    columns: Sequence[str]
    constants: bytes = b""
    """To stand at the end of the buffer, for `PartitionedReader`."""

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
        constants = np.frombuffer(self.constants, np.uint8)
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
            origin = ArrowRows(self.where, self.first + first, self.columns, cells)
            yield Block(cells, status, column, origin)

    def _column(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Bytes of a column's cells, and where in them each cell starts and ends."""
        from features.readers.column_text import text_of_column  # pyarrow.compute: 70 ms of every start

        column = self.batch.column(name)
        try:
            text = text_of_column(column)
        except pa.ArrowException:
            raise DataError(
                f"{self.where}: column {name!r} has the type {column.type}, which has no text; expected"
                f" strings, numbers, booleans, times or lists of them."
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


def require_typed(path: object, schema: pa.Schema, columns: Sequence[str], spec: FeatureSpec) -> None:
    """Raises DataError unless each column is there, once, and is no list where its field takes one value."""
    from features.readers.column_text import is_list

    require_columns(path, schema.names, columns)
    for name in columns:
        kind = schema.field(name).type
        if is_list(kind) and name not in spec.list_columns:
            raise DataError(
                f"{path}: column {name!r} holds lists ({kind}), but its field takes one value; give the field"
                f" a type of several values in the spec, such as type: list, or write one value a row."
            )


def parts_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch cut into parts of at most `BATCH_ROWS` and `_BATCH_BYTES`, or one row."""
    if batch.num_rows == 1 or (batch.nbytes <= _BATCH_BYTES and batch.num_rows <= BATCH_ROWS):
        yield batch
        return
    half = batch.num_rows // 2
    yield from parts_of(batch.slice(0, half))
    yield from parts_of(batch.slice(half))
