"""`ParquetReader`: rows of a Parquet file, as text cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from ctr.errors import DataError
from features.inputs import InputFile, partition_columns
from features.readers.arrow_rows import BATCH_ROWS, ArrowPiece, parts_of, require_typed
from features.spec import FeatureSpec
from features.text import PARQUET

_READ_BYTES = 1 << 20  # 1 MiB at a time of a column, instead of a whole row group


class ParquetReader:
    """Reads the needed columns of a Parquet file."""

    def __init__(self, path: InputFile, spec: FeatureSpec) -> None:
        from pyarrow import parquet  # here, as text has no use for it and its network file systems

        self._path = path
        self._spec = spec
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
        require_typed(self._path, self._file.schema_arrow, columns, self._spec)

    def count_rows(self) -> int:
        return self._rows

    def pieces(self, columns: Sequence[str]) -> Iterator[ArrowPiece]:
        self.require(columns)
        if self._rows == 0:
            raise DataError(f"{self._path}: there are no rows; leave the file out.")
        constants = b"".join(partition_columns(self._path).values())
        try:
            for part in self._batches(columns):
                yield ArrowPiece(self._path, part, self._rows_read, columns, constants)
                self._rows_read += part.num_rows
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        groups = range(self._file.num_row_groups)
        # Arrow would fetch all row groups of a remote file at once.
        for some in [[group] for group in groups] if self._path.is_remote else [list(groups)]:
            for batch in self._file.iter_batches(BATCH_ROWS, row_groups=some, columns=list(columns)):
                yield from parts_of(batch)

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
