"""`TableReader`: rows of a table in memory, of whatever library, as text cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from ctr.errors import DataError
from ctr.features.spec import FeatureSpec
from ctr.features.tables.arrow_rows import ArrowPiece, TypedReader, parts_of


class TableReader(TypedReader):
    """Reads an Arrow table, or any object that gives itself as one: frames of pandas and polars do.

    What such an object has to have is the method `__arrow_c_stream__` of the Arrow PyCapsule interface.
    """

    def __init__(self, table: object, spec: FeatureSpec) -> None:
        """`spec` tells which columns may hold lists. A stream that can be read but once is read.

        Raises DataError for what is no table.
        """
        if isinstance(table, type) or not hasattr(table, "__arrow_c_stream__"):
            raise DataError(
                f"the table: expected an Arrow table, or a frame of pandas (2.2 or newer) or polars, got"
                f" {_kind(table)}; {_remedy(table)}."
            )
        try:
            self._table = pa.RecordBatchReader.from_stream(table).read_all()
        except pa.ArrowException as error:
            raise DataError(
                f"the table: {_kind(table)} cannot be read as an Arrow table"
                f" ({str(error).splitlines()[0]}); give a table whose columns have one type each."
            ) from None
        super().__init__("the table", self._table.schema, spec)

    def close(self) -> None:
        """Nothing is open."""

    @property
    def fraction(self) -> float:
        return self._rows_read / self._table.num_rows if self._table.num_rows else 1.0

    def require(self, columns: Sequence[str]) -> None:
        from ctr.features.tables.category_types import (
            check_categories,  # pyarrow.compute: 70 ms of every start
        )

        super().require(columns)
        check_categories(self._table, self._spec, columns)

    def count_rows(self) -> int:
        return int(self._table.num_rows)

    def _pieces(self, columns: Sequence[str]) -> Iterator[ArrowPiece]:
        for batch in self._table.select(list(columns)).to_batches():
            for part in parts_of(batch):
                if part.num_rows:
                    yield self._piece(part, columns)


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _remedy(value: object) -> str:
    """What to give instead."""
    if isinstance(value, Mapping):
        return "make one with pyarrow.table(...)"
    if isinstance(value, list | tuple):
        return "make one of a list of dicts with pyarrow.Table.from_pylist(...)"
    if hasattr(value, "shape") and not isinstance(value, type):
        return "columns are found by name, so give the table that these numbers come from"
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        return "read the file first, with ctr.read(path, spec)"
    return "make one with pyarrow.table(...)"
