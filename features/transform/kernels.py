"""The loops of `Transform`: cells of text -> slots.

A tile of rows is worked on field by field (see `step_kernels`), so that what to do is decided once per
field and tile; then its hashes are written out row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.row_status import RowStatus
from ctr.features.transform.cross_kernels import write_bag_crosses
from ctr.features.transform.field_kernels import TILE, Tile
from ctr.features.transform.label_kernels import write_labels, write_weights
from ctr.features.transform.step_kernels import Coded, FeatureLists, Plan, Scratch, StepFeatures, hash_fields
from ctr.features.words.bag_kernels import bounded
from ctr.numba_cache import njit

_U0, _U1 = np.uint64(0), np.uint64(1)


@njit(nogil=True, cache=True)
def transform_rows(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    width: int,
    first_row: int,
    last_row: int,
    status: NDArray[np.uint8],
    bad_column: NDArray[np.int32],
    plan: Plan,
    steps: StepFeatures | None,
    lists: FeatureLists | None,
    coded: Coded | None,
    scratch: Scratch,
    indptr: NDArray[np.int64],
    slots: NDArray[Any],
    values: NDArray[np.float32],
    fields: NDArray[Any],
    labels: NDArray[np.float32],
    no_click: NDArray[np.int8],
    weights: NDArray[np.float32],
    rows: int,
) -> tuple[int, int]:
    """Appends the good rows of `first_row` to `last_row` (exclusive) to the `rows` examples in the arrays.

    Stops there or when `indptr` is full, and returns the next row and the number of examples. `starts` and
    `ends` are those of `Cells`, row by row of `width` cells. `no_click`: see `label_problem`.

    `steps`, `lists` and `coded` are None where a spec does not need them: the kernel is compiled without.
    """
    numbers, at = scratch.numbers, scratch.at
    row = first_row
    while row < last_row and rows < indptr.size - 1:
        n = 0
        room = min(TILE, indptr.size - 1 - rows)
        while row < last_row and n < room:
            if status[row] == RowStatus.OK:
                numbers[n] = row
                at[n] = np.uint64(row) * np.uint64(width)
                n += 1
            row += 1
        tile = Tile(buffer, starts, ends, at[:n], numbers[:n], status, bad_column)
        if plan.label_column >= 0:
            write_labels(tile, plan.label_column, plan.label_column, labels[rows:], no_click)
        if plan.weight_column >= 0:
            write_weights(tile, plan.weight_column, plan.weight_column, weights[rows:])
        hash_fields(tile, plan, steps, coded, scratch)
        if steps is not None:
            _note_problems(tile, steps)
        rows = _write_rows(tile, plan, lists, scratch, indptr, slots, values, fields, labels, weights, rows)
    return row, rows


@njit(nogil=True, cache=True)
def _note_problems(tile: Tile, steps: StepFeatures) -> None:
    """Marks the rows that are bad for steps which came before."""
    for row in tile.numbers:
        if tile.status[row] == RowStatus.OK and steps.problem[row - steps.first] != 0:
            tile.status[row] = steps.problem[row - steps.first]
            tile.bad_column[row] = steps.bad_column[row - steps.first]


@njit(nogil=True, cache=True)
def _write_rows(
    tile: Tile,
    plan: Plan,
    lists: FeatureLists | None,
    scratch: Scratch,
    indptr: NDArray[np.int64],
    slots: NDArray[Any],
    values: NDArray[np.float32],
    fields: NDArray[Any],
    labels: NDArray[np.float32],
    weights: NDArray[np.float32],
    rows: int,
) -> int:
    """Writes the tile's good rows after the first `rows`; their labels and weights move up over bad ones."""
    hashes, present = scratch.hashes, scratch.present
    features = np.uint64(hashes.shape[0])
    has_values, has_fields = values.size > 0, fields.size > 0
    first = rows
    end = np.uint64(indptr[rows])
    for t in range(tile.at.size):
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
            slot = hashes[f, u] & plan.mask
            # Written even when missing, and then overwritten: cheaper than a branch (kept in bounds by
            # the row's room for all its features).
            slots[end] = slot + np.uint64(slot == _U0)
            if has_values:
                values[end] = plan.scales[f]
            if has_fields:
                fields[end] = plan.ids[f]
            end += np.uint64(present[f, u])
        if lists is not None:
            row = tile.numbers[t] - lists.first
            of_bags, ids = plan.scales[features:], plan.ids[features:]
            end = _write_lists(row, plan.mask, of_bags, ids, lists, slots, values, fields, end)
            end = write_bag_crosses(
                t,
                row,
                plan.bag_crosses,
                of_bags[lists.bounds.shape[0] :],
                ids[lists.bounds.shape[0] :],
                lists.bounds,
                lists.hashes,
                lists.values,
                hashes,
                present,
                scratch.combination,
                plan.mask,
                slots,
                values,
                fields,
                end,
            )
        rows += 1
        indptr[rows] = end
    return rows


@njit(nogil=True, cache=True)
def _write_lists(
    row: int,
    mask: np.uint64,
    scales: NDArray[np.float32],
    ids: NDArray[Any],
    lists: FeatureLists,
    slots: NDArray[Any],
    values: NDArray[np.float32],
    fields: NDArray[Any],
    end: np.uint64,
) -> np.uint64:
    """Writes a row's features of fields that have any number of them; where they end."""
    for b in range(lists.bounds.shape[0]):
        for k in range(np.uint64(lists.bounds[b, row]), np.uint64(lists.bounds[b, row + 1])):
            slot = lists.hashes[k] & mask
            slots[end] = slot + np.uint64(slot == _U0)
            values[end] = lists.values[k]
            if scales[b] != 1:
                values[end] = bounded(lists.values[k] * scales[b])
            if fields.size > 0:
                fields[end] = ids[b]
            end += _U1
    return end
