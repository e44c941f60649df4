"""`Transform`: cells -> batch, the one way from raw values to slots, for training and serving alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from features.batches import Batch, BatchBuilder
from features.spec import FeatureSpec, NumberField, column_of
from features.text import LOG_CELLS, Cells, cells_of_rows, log_cells
from features.transform.hashing import hash_bytes
from features.transform.kernels import CATEGORY, EDGES, LOG, Plan, RowStatus, transform_rows

__all__ = ["RowStatus", "Transform"]

_EXPECTED = {
    RowStatus.LABEL: "is no label; it must be 0 or 1, or -1 or 1",
    RowStatus.LABEL_MINUS: "is a label of -1 or 1, but other rows have 0 or 1; write all labels one way",
    RowStatus.LABEL_ZERO: "is a label of 0 or 1, but other rows have -1 or 1; write all labels one way",
    RowStatus.WEIGHT: "is no weight; it must be a finite number above 0",
    RowStatus.NUMBER: "is not a number; write it in decimal digits, or leave it empty when it is missing",
}


_REASONS = {
    RowStatus.LABEL: "no label (0 or 1, or -1 or 1)",
    RowStatus.LABEL_MINUS: "a label of -1 where other rows have 0",
    RowStatus.LABEL_ZERO: "a label of 0 where other rows have -1",
    RowStatus.WEIGHT: "no weight (finite, above 0)",
    RowStatus.NUMBER: "not a number",
}


class Transform:
    """A spec made ready to run. Immutable; may be shared by threads.

    A libsvm spec has no columns and nothing to append here: its reader hashes the features itself.
    """

    spec: FeatureSpec
    with_label: bool
    columns: tuple[str, ...]
    """The columns that `Cells` must have: label and weight (if wanted), then those of the fields."""

    def __init__(self, spec: FeatureSpec, *, with_label: bool) -> None:
        """Without label, neither label nor weight is read: for examples that are to be predicted."""
        self.spec = spec
        self.with_label = with_label
        wanted = [spec.label, spec.weight] if with_label else []
        wanted += [column_of(field) for field in spec.fields]
        self.columns = tuple(dict.fromkeys(column for column in wanted if column is not None))
        self._plan = _compile(spec, self.columns)
        categories = {column_of(field) for field in spec.fields if not isinstance(field, NumberField)}
        self._numbers = frozenset(self.columns) - categories
        unused = {*spec.source.columns, *spec.source.ignore, spec.label, spec.weight}
        self._ignored = frozenset(column for column in unused if column is not None)

    def append(
        self,
        cells: Cells,
        status: NDArray[np.uint8],
        column: NDArray[np.int32],
        builder: BatchBuilder,
        first_row: int,
    ) -> int:
        """Transforms the rows from `first_row` on into `builder`, until they end or it is full.

        Rows whose `status` (uint8[rows], a RowStatus) is not OK already are skipped; their cells may
        be anything. A row that fails adds nothing: its status is set, and `column` (int32[rows], an index
        into `columns`) tells where. Returns the next row to do.
        """
        if cells.starts.shape[1] != len(self.columns):
            raise ValueError(f"cells have {cells.starts.shape[1]} columns, not {len(self.columns)}")
        if len(cells) == 0:
            return first_row
        # Numba compiles a kernel anew for a read-only array; so that it does not, all are.
        buffer = cells.buffer.view()
        buffer.flags.writeable = False
        next_row, builder.rows = transform_rows(
            buffer,
            cells.starts,
            cells.ends,
            first_row,
            status,
            column,
            self._plan,
            builder.indptr,
            builder.slots,
            builder.labels,
            builder.no_click,
            builder.weights,
            builder.rows,
        )
        return int(next_row)

    def apply(self, cells: Cells) -> Batch:
        """All rows as a batch. Raises DataError naming row, column and value of the first bad one."""
        builder = BatchBuilder(self, len(cells))
        status = np.zeros(len(cells), np.uint8)
        column = np.zeros(len(cells), np.int32)
        self.append(cells, status, column, builder, 0)
        if builder.rows < len(cells):
            row = int(np.flatnonzero(status)[0])
            raise DataError(f"rows[{row}]: {self.explain(cells, row, int(status[row]), int(column[row]))}.")
        return builder.take()

    def apply_rows(self, rows: Sequence[Mapping[str, object]]) -> Batch:
        """Rows that came as mappings of column names to values, such as JSON objects, as a batch.

        Columns that no feature needs may be there, if the spec names them: as label, as weight, in
        `source.columns` or in `source.ignore`. Raises DataError as `apply` and
        `cells_of_rows` do.
        """
        if not self.columns:
            raise DataError("libsvm features have no columns, so rows cannot be given by column name.")
        return self.apply(cells_of_rows(rows, self.columns, numbers=self._numbers, ignored=self._ignored))

    def explain(self, cells: Cells, row: int, status: int, column: int) -> str:
        """What is wrong with a bad row, such as ``column 'I3': 'x' is not a number; ...``."""
        return f"column {self.columns[column]!r}: {cells.text(row, column)!r} {_EXPECTED[RowStatus(status)]}"

    def reason(self, status: int, column: int) -> str:
        """The same without the value, to count by."""
        return f"column {self.columns[column]!r}: {_REASONS[RowStatus(status)]}"


def _compile(spec: FeatureSpec, columns: tuple[str, ...]) -> Plan:
    index = {column: i for i, column in enumerate(columns)}
    seeds = [hash_bytes(field.name.encode(), spec.seed) for field in spec.fields]
    edges = [field.edges if isinstance(field, NumberField) else () for field in spec.fields]
    names = [field.name for field in spec.fields]
    lowest, threshold = _log_tables()
    return Plan(
        label_column=index.get(spec.label or "", -1),
        weight_column=index.get(spec.weight or "", -1),
        bias=spec.bias,
        mask=np.uint64((1 << spec.bits) - 1),
        columns=np.array([index[column_of(field)] for field in spec.fields], np.uint64),
        kinds=np.array([_kind(field) for field in spec.fields], np.uint8),
        seeds=np.array(seeds, np.uint64),
        keeps_missing=np.array([field.missing == "feature" for field in spec.fields], np.bool_),
        missing_hashes=np.array([hash_bytes(b"", seed) for seed in seeds], np.uint64),
        edges=np.array([edge for of_field in edges for edge in of_field], np.float64),
        edge_starts=np.array([0, *accumulate(map(len, edges))], np.int64),
        cross_seeds=np.array([hash_bytes(c.name.encode(), spec.seed) for c in spec.crosses], np.uint64),
        cross_parts=np.array([names.index(part) for c in spec.crosses for part in c.of], np.int64),
        cross_starts=np.array([0, *accumulate(len(c.of) for c in spec.crosses)], np.int64),
        log_lowest=lowest,
        log_threshold=threshold,
    )


def _kind(field: object) -> int:
    if not isinstance(field, NumberField):
        return CATEGORY
    return LOG if field.transform == "log" else EDGES


@cache
def _log_tables() -> tuple[NDArray[np.uint16], NDArray[np.uint32]]:
    lowest, threshold = np.empty(LOG_CELLS, np.uint16), np.empty(LOG_CELLS, np.uint32)
    log_cells(lowest, threshold)
    return lowest, threshold
