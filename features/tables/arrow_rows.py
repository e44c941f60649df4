"""`TypedReader`: what readers of typed columns share; `ArrowPiece`: rows of a record batch as text cells."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.block import Block, UnfitColumnError, require_columns, rows_per_block
from ctr.features.inputs import InputFile
from ctr.features.spec import FeatureSpec
from ctr.features.text import Cells, CodedCells, CodedColumns, Texts

BATCH_ROWS = 16_384
_BATCH_BYTES = 1 << 30  # 1 GiB: positions in a buffer are 32 bits wide
_MOST_BYTES = (1 << 31) - 1
_PADDING = 64
_PLACES = 1 << 14  # cells that are not coded, in a block with coded columns


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """The `Origin` of rows that come as Arrow columns."""

    where: object
    """The file, or another source whose `str` is its name in messages."""
    first: int
    """The position of the block's first row in it."""
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
    """Rows of a record batch, to be converted to text (see `text_of_column`)."""

    where: object
    """See `ArrowRows`."""
    batch: pa.RecordBatch | None
    """None if `texts` and `dictionaries` have all columns."""
    first: int
    """The position of the first row in `where`."""
    columns: Sequence[str]
    constants: bytes = b""
    """Bytes for the end of the buffer, where `FileReader` needs them."""
    texts: Mapping[str, Texts] = field(default_factory=dict)
    """The cells of columns that are not in the batch."""
    dictionaries: Mapping[str, Texts] = field(default_factory=dict)
    """The distinct texts of further such columns, in the order of `codes`: see `CodedColumns`."""
    codes: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), np.int32))
    """int32[dictionaries, rows]."""

    @property
    def rows(self) -> int:
        return self.codes.shape[1] if self.batch is None else int(self.batch.num_rows)

    def blocks(self) -> Iterator[Block]:
        places = {name: j for j, name in enumerate(self.columns)}
        plain = {
            places[name]: self.texts.get(name) or self._column(name)
            for name in self.columns
            if name not in self.dictionaries
        }
        constants = np.frombuffer(self.constants, np.uint8)
        buffer = np.concatenate(
            [*(texts.buffer for texts in plain.values()), np.zeros(_PADDING, np.uint8), constants]
        )
        if buffer.size > _MOST_BYTES:
            raise DataError(
                f"{self.where}: its texts are too long: {self.rows:,} rows have over 2 GiB of them."
            )
        dictionaries = {places[name]: texts for name, texts in self.dictionaries.items()}
        coded = CodedColumns(dictionaries, self.codes, buffer)
        size = rows_per_block(len(places))
        if dictionaries:
            size = max(size, _PLACES // max(len(plain), 1))
        for first in range(0, self.rows, size):
            rows = slice(first, min(first + size, self.rows))
            starts, ends = np.empty((2, rows.stop - first, len(plain)), np.int32)
            base = 0
            for j, texts in enumerate(plain.values()):
                np.add(texts.starts[rows], base, out=starts[:, j])
                np.add(texts.ends[rows], base, out=ends[:, j])
                base += texts.buffer.size
            cells = Cells(buffer, starts, ends)
            if dictionaries:
                cells = CodedCells(cells, coded, first)
            status, column = np.zeros(len(cells), np.uint8), np.zeros(len(cells), np.int32)
            origin = ArrowRows(self.where, self.first + first, self.columns, cells)
            yield Block(cells, status, column, origin)

    def _column(self, name: str) -> Texts:
        """The cells of a column of the batch."""
        from ctr.features.tables.column_text import text_of_column  # pyarrow.compute: 70 ms of every start

        assert self.batch is not None
        column = self.batch.column(name)
        try:
            text = text_of_column(column)
        except pa.ArrowException:
            raise UnfitColumnError(
                f"{self.where}: column {name!r} has the type {column.type}, which has no text; expected"
                f" strings, numbers, booleans, times or lists of them; leave it out of the"
                " spec, or write its parts as columns.",
                name,
                lists=False,
            ) from None
        _, offset_buffer, data_buffer = text.buffers()
        bounds = np.frombuffer(offset_buffer, np.int64)[text.offset : text.offset + len(text) + 1]
        begin, end = int(bounds[0]), int(bounds[-1])
        data = np.frombuffer(data_buffer or b"", np.uint8)[begin:end]
        starts = bounds[:-1] - begin
        ends = bounds[1:] - begin
        if text.null_count:  # the bytes of a null may be anything
            ends = np.where(text.is_null().to_numpy(zero_copy_only=False), starts, ends)
        return Texts(data, starts.astype(np.int32), ends.astype(np.int32))


class TypedReader(ABC):
    """Reads rows whose columns have types. Subclasses provide the pieces."""

    def __init__(self, where: object, schema: pa.Schema, spec: FeatureSpec) -> None:
        """`where`: see `ArrowRows`; `spec` says which columns may hold lists."""
        self._where, self._spec = where, spec
        self.schema = schema
        """The types of the columns."""
        self.columns: Sequence[str] = schema.names
        self._constants = b""
        if isinstance(where, InputFile):
            self._constants = b"".join(where.partition_columns.values())
        self._rows_before = self._rows_read = 0

    def require(self, columns: Sequence[str]) -> None:
        """Raises DataError unless each column exists once, without lists if its field takes one value."""
        from ctr.features.tables.column_text import is_list

        require_columns(self._where, self.columns, columns)
        for name in columns:
            kind = self.schema.field(name).type
            if is_list(kind) and name not in self._spec.list_columns:
                raise UnfitColumnError(
                    f"{self._where}: column {name!r} holds lists ({kind}), but its field takes one value;"
                    " give the field a type of several values in the spec, such as type: list, or write one"
                    " value a row.",
                    name,
                    lists=True,
                )

    def pieces(self, columns: Sequence[str]) -> Iterator[ArrowPiece]:
        """See `Reader`."""
        TypedReader.require(self, columns)
        for piece in self._pieces(columns):
            yield piece
            self._rows_read += piece.rows

    @abstractmethod
    def _pieces(self, columns: Sequence[str]) -> Iterator[ArrowPiece]: ...

    def _piece(self, batch: pa.RecordBatch | None, columns: Sequence[str]) -> ArrowPiece:
        first = self._rows_before + self._rows_read
        return ArrowPiece(self._where, batch, first, columns, self._constants)

    def _empty(self) -> DataError:
        return DataError(f"{self._where}: there are no rows; leave it out.")


def parts_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, cut into parts of at most `BATCH_ROWS` and `_BATCH_BYTES`, or of one row."""
    if batch.num_rows == 1 or (batch.nbytes <= _BATCH_BYTES and batch.num_rows <= BATCH_ROWS):
        yield batch
        return
    half = batch.num_rows // 2
    yield from parts_of(batch.slice(0, half))
    yield from parts_of(batch.slice(half))
