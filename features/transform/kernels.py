"""The loops of `Transform`: cells of text -> slots.

A tile of rows is processed field by field (see `step_kernels`), so that each field's step is chosen once per
tile; then its slots are written row by row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.column_kernels import TILE, TileCells
from ctr.features.text.row_status import RowStatus
from ctr.features.transform.cross_kernels import write_list_crosses
from ctr.features.transform.label_kernels import write_labels, write_weights
from ctr.features.transform.plan_kernels import (
    ColumnFeatures,
    Examples,
    FeatureLists,
    Plan,
    Scratch,
    Tile,
    ValueTables,
)
from ctr.features.transform.step_kernels import find_fields
from ctr.features.words.token_kernels import bounded
from ctr.jit import njit

_U0, _U1 = np.uint64(0), np.uint64(1)


@njit(nogil=True, cache=True, borrows=True)
def transform_rows(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    first_row: int,
    last_row: int,
    status: NDArray[np.uint8],
    bad_column: NDArray[np.int32],
    plan: Plan,
    by_column: ColumnFeatures | None,
    lists: FeatureLists | None,
    tables: ValueTables | None,
    scratch: Scratch,
    examples: Examples,
    rows: int,
) -> tuple[int, int]:
    """Appends the good rows from `first_row` to `last_row` (exclusive) to the first `rows` of `examples`.

    Stops when `examples` is full. Returns the next row and the number of examples. `starts` and `ends` are
    those of `Cells`, row by row.

    `by_column`, `lists` and `tables` are None if the spec does not need them: no code is compiled for them.
    """
    numbers, at, width = scratch.numbers, scratch.at, np.uint64(plan.columns.size)
    capacity = examples.indptr.size - 1
    row = first_row
    while row < last_row and rows < capacity:
        n = 0
        room = min(TILE, capacity - rows)
        while row < last_row and n < room:
            if status[row] == RowStatus.OK:
                numbers[n] = row
                at[n] = np.uint64(row) * width
                n += 1
            row += 1
        cells = TileCells(buffer, starts, ends, at[:n])
        tile = Tile(cells, numbers[:n], status, bad_column, plan.columns)
        if plan.label_column >= 0:
            write_labels(tile, plan.label_column, examples.labels[rows:], examples.no_click)
        if plan.weight_column >= 0:
            write_weights(tile, plan.weight_column, examples.weights[rows:])
        find_fields(tile, plan, by_column, tables, scratch)
        if by_column is not None:
            _note_problems(tile, by_column)
        rows = _write_rows(tile, plan, lists, scratch, examples, rows)
    return row, rows


@njit(nogil=True, cache=True)
def _note_problems(tile: Tile, by_column: ColumnFeatures) -> None:
    """Marks rows that were found bad when features were made column by column."""
    for row in tile.numbers:
        if tile.status[row] == RowStatus.OK and by_column.problem[row - by_column.first] != 0:
            tile.status[row] = by_column.problem[row - by_column.first]
            tile.bad_column[row] = by_column.bad_column[row - by_column.first]


@njit(nogil=True, cache=True)
def _write_rows(
    tile: Tile, plan: Plan, lists: FeatureLists | None, scratch: Scratch, examples: Examples, rows: int
) -> int:
    """Writes the tile's good rows after the first `rows`; labels and weights move up over bad rows."""
    indptr, slots, values, fields = examples.indptr, examples.slots, examples.values, examples.fields
    labels, weights, of_tile = examples.labels, examples.weights, scratch.slots
    features = np.uint64(of_tile.shape[0])
    has_values, has_fields = values.size > 0, fields.size > 0
    first = rows
    end = np.uint64(indptr[rows])
    for t in range(tile.numbers.size):
        if tile.status[tile.numbers[t]] != RowStatus.OK:
            continue
        if labels.size > 0:
            labels[rows] = labels[first + t]
        if weights.size > 0:
            weights[rows] = weights[first + t]
        if plan.bias:
            slots[end] = 0
            if has_values:
                values[end] = 1
            if has_fields:
                fields[end] = 0
            end += _U1
        u = np.uint64(t)
        for f in range(features):
            slot = of_tile[f, u]
            # If there is no feature, this is overwritten: cheaper than a branch (and in bounds, as each row
            # has room for all its features).
            slots[end] = slot
            if has_values:
                values[end] = plan.scales[f]
            if has_fields:
                fields[end] = plan.ids[f]
            end += np.uint64(slot != 0)
        if lists is not None:
            row = tile.numbers[t] - lists.first
            end = _write_lists(row, plan, of_tile.shape[0], lists, examples, end)
            end = write_list_crosses(t, row, plan, lists, scratch, examples, end)
        rows += 1
        indptr[rows] = end
    return rows


@njit(nogil=True, cache=True)
def _write_lists(
    row: int, plan: Plan, single: int, lists: FeatureLists, examples: Examples, end: np.uint64
) -> np.uint64:
    """Writes a row's features of fields with any number of them; returns their end.

    `single`: how many fields and crosses come before these.
    """
    for b in range(lists.bounds.shape[0]):
        scale = plan.scales[single + b]
        for k in range(np.uint64(lists.bounds[b, row]), np.uint64(lists.bounds[b, row + 1])):
            slot = lists.hashes[k] & plan.mask
            examples.slots[end] = slot + np.uint64(slot == _U0)
            examples.values[end] = lists.values[k]
            if scale != 1:
                examples.values[end] = bounded(lists.values[k] * scale)
            if examples.fields.size > 0:
                examples.fields[end] = plan.ids[single + b]
            end += _U1
    return end
