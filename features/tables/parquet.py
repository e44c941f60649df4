"""`ParquetReader`: rows of a Parquet file as text cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from io import BufferedReader
from itertools import repeat

import numpy as np
import pyarrow as pa

from ctr.errors import DataError
from ctr.features.inputs import InputFile
from ctr.features.spec import FeatureSpec
from ctr.features.tables.arrow_rows import BATCH_ROWS, ArrowPiece, TypedReader, parts_of
from ctr.features.tables.column_pages import ColumnPages, are_readable, is_text
from ctr.features.text import PARQUET, Texts

_READ_BYTES = 1 << 20  # 1 MiB of a column at a time, instead of a whole row group
_PAGE_ROWS = 65_536
_FIRST_ROWS = 4_096  # of a file: enough for callers that only need to know the kind of its labels
_MOST_PLAIN = 1 << 29  # the most bytes, in a piece, of texts without a dictionary that are treated as one
_MOST_WIDTH = 8192  # bytes per row, so that _PAGE_ROWS rows have far less than 2 GiB


class ParquetReader(TypedReader):
    """Reads the needed columns of a Parquet file."""

    def __init__(self, path: InputFile, spec: FeatureSpec) -> None:
        from pyarrow import parquet  # here, as other formats do not need it and its network file systems

        self._path = path
        try:
            # A remote row group comes in a few large requests; memory for all of it is needed anyway.
            self._file = parquet.ParquetFile(
                path.seekable(), pre_buffer=path.is_remote, buffer_size=0 if path.is_remote else _READ_BYTES
            )
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None
        super().__init__(path, self._file.schema_arrow, spec)
        self._groups = path.row_groups or range(self._file.num_row_groups)
        self._rows_before = self._rows_in(range(self._groups.start))
        self._rows = self._rows_in(self._groups)

    def close(self) -> None:
        self._file.close()

    @property
    def fraction(self) -> float:
        return self._rows_read / self._rows if self._rows else 1.0

    def count_rows(self) -> int:
        return self._rows

    def pieces(self, columns: Sequence[str]) -> Iterator[ArrowPiece]:
        if self._rows == 0:
            raise self._empty()
        try:
            yield from super().pieces(columns)
            self._path.require_unchanged()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._unreadable(error) from None

    def _pieces(self, columns: Sequence[str]) -> Iterator[ArrowPiece]:
        groups = self._groups
        names = {} if self._path.is_remote else self._paged(columns)
        if not names:
            # Arrow would fetch all row groups of a remote file at once.
            for some in [[group] for group in groups] if self._path.is_remote else [list(groups)]:
                for part in self._parts(some, columns):
                    yield self._piece(part, columns)
            return
        with closing(self._path.open()) as file:
            for group in groups:
                yield from self._group(file, group, columns, names)

    def _group(
        self, file: BufferedReader, group: int, columns: Sequence[str], names: Mapping[str, int]
    ) -> Iterator[ArrowPiece]:
        """The rows of a row group; the columns `names`, with their numbers, are read page by page."""
        metadata, schema = self._file.metadata.row_group(group), self._file.schema
        pages = {name: ColumnPages(file, metadata.column(i), schema.column(i)) for name, i in names.items()}
        others = [name for name in columns if name not in pages]
        parts = self._parts([group], others) if others else repeat(None)
        unread = metadata.num_rows
        while unread:
            part = next(parts)
            most = _PAGE_ROWS if self._rows_read else _FIRST_ROWS
            codes = np.empty((len(pages), min(most, unread) if part is None else part.num_rows), np.int32)
            unread -= codes.shape[1]
            texts: dict[str, Texts] = {}
            dictionaries: dict[str, Texts] = {}
            spare_bytes = _MOST_PLAIN
            for name, column in pages.items():
                row = codes[len(dictionaries)]
                plain = column.read(row)
                if name not in self._spec.by_value or (plain and plain.buffer.size >= spare_bytes):
                    texts[name] = plain or column.texts_of(row)
                elif plain is None:
                    dictionaries[name] = column.dictionary
                else:
                    # As if all texts were distinct: hashing them in place takes half the time.
                    dictionaries[name], row[:] = plain, np.arange(row.size, dtype=np.int32)
                    spare_bytes -= plain.buffer.size
            yield replace(
                self._piece(part, columns),
                texts=texts,
                dictionaries=dictionaries,
                codes=codes[: len(dictionaries)],
            )

    def _paged(self, columns: Sequence[str]) -> dict[str, int]:
        """The columns that can be read page by page in all row groups, with their numbers in the file."""
        metadata, schema = self._file.metadata, self._file.schema
        paged, width = {}, 0.0
        for i in range(metadata.num_columns):
            name = schema.column(i).path
            if name not in columns or not is_text(self._file.schema_arrow.field(name).type):
                continue
            chunks = [metadata.row_group(group).column(i) for group in self._groups]
            width += max(chunk.total_uncompressed_size / max(chunk.num_values, 1) for chunk in chunks)
            if width <= _MOST_WIDTH and all(are_readable(chunk, schema.column(i)) for chunk in chunks):
                paged[name] = i
        return paged

    def _rows_in(self, groups: range) -> int:
        return sum(self._file.metadata.row_group(group).num_rows for group in groups)

    def _parts(self, groups: list[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=groups, columns=list(columns)):
            yield from parts_of(batch)

    def _unreadable(self, error: Exception) -> DataError:
        reason = str(error).splitlines()[0]
        with closing(self._path.open()) as file:
            is_parquet = file.read(len(PARQUET)) == PARQUET
        if not is_parquet and not {".parquet", ".pq"}.intersection(self._path.suffixes):
            return DataError(
                f"{self._path}: the feature spec is for Parquet (`source: {{format: parquet}}`), and this is "
                "no such file; save its rows as Parquet or Arrow, or train a model with a spec for text."
            )
        if not is_parquet:
            return DataError(
                f"{self._path}: cannot be read as a Parquet file, for it does not begin like one ({reason});"
                f" rename it to .csv or .tsv if it is text, decompress it if it is compressed."
            )
        return DataError(
            f"{self._path}: cannot be read as a Parquet file ({reason}); if it was cut short, fetch it again."
        )
