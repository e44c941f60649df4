"""`ArrowReader`: rows of an Arrow IPC file (Feather) or stream as text cells; `TableReader`: of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from ctr.errors import DataError
from ctr.features.inputs import InputFile
from ctr.features.spec import FeatureSpec
from ctr.features.tables.arrow_rows import ArrowPiece, TypedReader, parts_of
from ctr.features.text import ARROW_FILE, ARROW_STREAM

_SUFFIXES = frozenset({".arrow", ".arrows", ".ipc", ".feather"})
_OF_DATASET = {"indptr", "slots", "indices"}
_HEAD_BYTES = 8  # of a file, with padding; what follows has the format of a stream
_TAIL_BYTES = 1 << 16


class ArrowReader(TypedReader):
    """Reads an Arrow file like a stream: from front to back, one record batch at a time."""

    def __init__(self, path: InputFile, spec: FeatureSpec) -> None:
        self._path = path
        self._ended = False
        self._begins_like_arrow = True
        self._raw = path.open()
        try:
            head = self._raw.peek(_HEAD_BYTES)
            self._is_file = head.startswith(ARROW_FILE)
            self._begins_like_arrow = self._is_file or head.startswith(ARROW_STREAM)
            if self._is_file:
                self._raw.read(_HEAD_BYTES)
            self._stream = pa.ipc.open_stream(pa.PythonFile(self._raw, mode="r"))
            super().__init__(path, self._stream.schema, spec)
        except (pa.ArrowException, OSError, EOFError) as error:
            self.close()
            raise self._unreadable(error) from None
        if set(self.columns) >= _OF_DATASET:
            self.close()
            raise DataError(
                f"{path}: this is a part of a hashed data set; give its folder with the manifest."
            )

    def close(self) -> None:
        self._raw.close()

    @property
    def fraction(self) -> float:
        if self._ended:
            return 1.0
        return min(self._raw.tell() / self._path.size, 1.0) if self._path.size else 0.0

    def count_rows(self) -> int:
        return sum(batch.num_rows for batch in self._batches())

    def _pieces(self, columns: Sequence[str]) -> Iterator[ArrowPiece]:
        for batch in self._batches():
            for part in parts_of(batch.select(list(columns))):
                yield self._piece(part, columns)
        if self._rows_read == 0:
            raise self._empty()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """All batches with rows. Raises DataError if a file lacks its end."""
        try:
            while True:
                batch = self._stream.read_next_batch()
                batch.validate()
                if batch.num_rows:
                    yield batch
        except StopIteration:
            pass
        except (pa.ArrowException, OSError, EOFError) as error:
            raise self._unreadable(error) from None
        self._path.require_unchanged(self._raw)
        if self._is_file:
            end = b""
            while more := self._raw.read(_TAIL_BYTES):
                end = (end + more)[-len(ARROW_FILE) :]
            if end != ARROW_FILE:
                raise self._unreadable(EOFError("it is cut short"))
        self._ended = True

    def _unreadable(self, error: Exception) -> DataError:
        if not self._begins_like_arrow and not _SUFFIXES.intersection(self._path.suffixes):
            return DataError(
                f"{self._path}: the feature spec is for Arrow (`source: {{format: arrow}}`), and this is no "
                "such file; save its rows as Parquet or Arrow, or train a model with a spec for text."
            )
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return DataError(
            f"{self._path}: cannot be read as an Arrow file or stream ({reason}); if it was cut short, fetch"
            " it again."
        )


class TableReader(TypedReader):
    """Reads an Arrow table, or any object that exports one, such as a frame of pandas or polars.

    Such an object has the method `__arrow_c_stream__` of the Arrow PyCapsule interface.
    """

    def __init__(self, table: object, spec: FeatureSpec) -> None:
        """`spec` says which columns may hold lists. A stream that can be read only once is used up.

        Raises DataError if `table` is not a table.
        """
        if isinstance(table, type) or not hasattr(table, "__arrow_c_stream__"):
            raise DataError(
                f"the table: expected an Arrow table, or a frame of pandas (2.2 or newer) or polars, got"
                f" {_kind(table)}; {_remedy(table)}."
            )
        self._table = stream_of(table).read_all()
        super().__init__("the table", self._table.schema, spec)

    def close(self) -> None:
        """Does nothing: no file is open."""

    @property
    def fraction(self) -> float:
        return self._rows_read / self._table.num_rows if self._table.num_rows else 1.0

    def require(self, columns: Sequence[str]) -> None:
        # Loads pyarrow.compute: 70 ms of every start.
        from ctr.features.tables.category_types import check_categories

        super().require(columns)
        check_categories(self._table, self._spec, columns)

    def count_rows(self) -> int:
        return int(self._table.num_rows)

    def _pieces(self, columns: Sequence[str]) -> Iterator[ArrowPiece]:
        for batch in self._table.select(list(columns)).to_batches():
            for part in parts_of(batch):
                if part.num_rows:
                    yield self._piece(part, columns)


def stream_of(table: object) -> pa.RecordBatchReader:
    """The batches of a table with `__arrow_c_stream__`. Raises DataError if Arrow rejects its columns."""
    try:
        return pa.RecordBatchReader.from_stream(table)
    except (pa.ArrowException, ValueError) as error:  # pandas raises ValueError for duplicate names
        raise DataError(
            f"the table: {_kind(table)} cannot be read as an Arrow table ({str(error).splitlines()[0]});"
            " give a table whose columns have distinct names, and one type each."
        ) from None


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _remedy(value: object) -> str:
    """What a user should give instead."""
    if isinstance(value, Mapping):
        return "make one with pyarrow.table(...)"
    if isinstance(value, list | tuple):
        return "make one of a list of dicts with pyarrow.Table.from_pylist(...)"
    if hasattr(value, "shape") and not isinstance(value, type):
        return "columns are found by name, so give the table that these numbers come from"
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        return "read the file first, with ctr.read(path, spec)"
    return "make one with pyarrow.table(...)"
