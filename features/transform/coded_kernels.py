"""The loop of `Transform` where all fields are coded: codes -> slots, by tables of each field's values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.transform.field_kernels import TILE, Tile
from ctr.features.transform.label_kernels import write_labels, write_weights
from ctr.numba_cache import njit

_U0, _U1 = np.uint64(0), np.uint64(1)


class CodedSlots(NamedTuple):
    """The slots of the distinct texts of `c` fields' columns, and which of the texts each cell is."""

    codes: NDArray[np.int32]
    """int32[columns, rows]."""
    first: int
    """The row there that is row 0 of the block."""
    columns: NDArray[np.int64]
    """int64[c]: which row of `codes` each field reads."""
    starts: NDArray[np.uint64]
    """uint64[c]: where in `slots` those of each field begin."""
    slots: NDArray[Any]
    """uint32|uint64[...]: 0 where a text makes no feature."""
    tile: NDArray[Any]
    """Of the same dtype, [c, TILE]: room for the slots of some rows."""


@njit(nogil=True, cache=True)
def slots_of(
    hashes: NDArray[np.uint64], present: NDArray[np.bool_], mask: np.uint64, slots: NDArray[Any]
) -> None:
    """Writes the slot of each hash, 0 where no feature is present."""
    for i in range(hashes.size):
        slot = hashes[i] & mask
        slots[i] = slot + np.uint64(slot == _U0) if present[i] else _U0


@njit(nogil=True, cache=True)
def write_coded_rows(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    width: int,
    first_row: int,
    last_row: int,
    status: NDArray[np.uint8],
    bad_column: NDArray[np.int32],
    targets: tuple[int, int, int, int],
    bias: bool,
    coded: CodedSlots,
    numbers: NDArray[np.int64],
    at: NDArray[np.uint64],
    indptr: NDArray[np.int64],
    slots: NDArray[Any],
    fields: NDArray[Any],
    labels: NDArray[np.float32],
    no_click: NDArray[np.int8],
    weights: NDArray[np.float32],
    rows: int,
) -> tuple[int, int]:
    """As `kernels.transform_rows`; the cells are those of the columns that are not coded.

    `targets`: the columns of label and weight among those, -1 for none, and among all.
    """
    label, weight, label_name, weight_name = targets
    row = first_row
    while row < last_row and rows < indptr.size - 1:
        n = 0
        room = min(TILE, indptr.size - 1 - rows)
        while row < last_row and n < room:
            if status[row] == 0:
                numbers[n] = row
                at[n] = np.uint64(row) * np.uint64(width)
                n += 1
            row += 1
        tile = Tile(buffer, starts, ends, at[:n], numbers[:n], status, bad_column)
        if label >= 0:
            write_labels(tile, label, label_name, labels[rows:], no_click)
        if weight >= 0:
            write_weights(tile, weight, weight_name, weights[rows:])
        for f in range(coded.columns.size):
            _load_slots(tile, coded, f)
        rows = _write_rows(tile, bias, coded.tile, indptr, slots, fields, labels, weights, rows)
    return row, rows


@njit(nogil=True, cache=True, forceinline=True)
def _load_slots(tile: Tile, coded: CodedSlots, f: int) -> None:
    codes, start, slots, n = coded.codes[coded.columns[f]], coded.starts[f], coded.slots, tile.at.size
    out = coded.tile[f]
    if n == 0:
        return
    first = np.uint64(coded.first + tile.numbers[0])
    if tile.numbers[n - 1] - tile.numbers[0] == n - 1:
        for t in range(n):
            out[t] = slots[start + np.uint64(codes[first + np.uint64(t)])]
    else:
        for t in range(n):
            out[t] = slots[start + np.uint64(codes[np.uint64(coded.first + tile.numbers[t])])]


@njit(nogil=True, cache=True, forceinline=True)
def _write_rows(
    tile: Tile,
    bias: bool,
    found: NDArray[Any],
    indptr: NDArray[np.int64],
    slots: NDArray[Any],
    fields: NDArray[Any],
    labels: NDArray[np.float32],
    weights: NDArray[np.float32],
    rows: int,
) -> int:
    """Writes the tile's good rows after the first `rows`; their labels and weights move up over bad ones."""
    first, has_fields = rows, fields.size > 0
    end = np.uint64(indptr[rows])
    for t in range(tile.at.size):
        if tile.status[tile.numbers[t]] != 0:
            continue
        if labels.size > 0:
            labels[rows] = labels[first + t]
        if weights.size > 0:
            weights[rows] = weights[first + t]
        if bias:
            slots[end] = 0
            if has_fields:
                fields[end] = 0
            end += _U1
        u = np.uint64(t)
        for f in range(np.uint64(found.shape[0])):
            slot = found[f, u]
            slots[end] = slot  # even if there is none, to be overwritten: cheaper than a branch
            if has_fields:
                fields[end] = f + _U1  # no other field or cross is there
            end += np.uint64(slot != 0)
        rows += 1
        indptr[rows] = end
    return rows
