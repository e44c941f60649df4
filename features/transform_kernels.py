"""The loops of `Transform`: cells of text -> slots.

A tile of rows is worked on field by field, so that the choice of what to do is made once per field and
tile and the arithmetic runs in vector registers; then its hashes are written out row by row.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from features.hashing import load_u64, xxh64, xxh64_u64
from features.number_kernels import (
    GARBAGE,
    NUMBER,
    edge_bucket,
    log_bucket,
    log_bucket_of_whole,
    parse_number,
)

CATEGORY, LOG, EDGES = 0, 1, 2
TILE = 64  # rows; ns per Criteo row at 16, 32, 64, 128, 256: 277, 168, 145, 152, 160

_U0, _U1, _U2, _U8, _U9 = (np.uint64(k) for k in (0, 1, 2, 8, 9))
_MINUS, _ZERO, _ONE = (np.uint8(ord(c)) for c in "-01")


class RowStatus(IntEnum):
    """What came of a row; everything but OK keeps it out of the batch."""

    OK = 0
    COLUMNS = 1
    """It has more or fewer columns than it should: set by who splits the rows, before the transform."""
    LABEL = 2
    WEIGHT = 3
    NUMBER = 4


class Plan(NamedTuple):
    """A spec as arrays: `f` fields, `x` crosses."""

    label_column: int
    """-1 without a label."""
    weight_column: int
    """-1 without a weight."""
    bias: bool
    mask: np.uint64
    """2**bits - 1."""
    columns: NDArray[np.int64]
    """int64[f]."""
    kinds: NDArray[np.uint8]
    """uint8[f]: CATEGORY, LOG or EDGES."""
    seeds: NDArray[np.uint64]
    """uint64[f]."""
    keeps_missing: NDArray[np.bool_]
    """bool[f]: whether a missing value is a feature."""
    missing_hashes: NDArray[np.uint64]
    """uint64[f]: the hash of no bytes."""
    edges: NDArray[np.float64]
    """The edges of all fields one after the other."""
    edge_starts: NDArray[np.int64]
    """int64[f + 1], into `edges`."""
    cross_seeds: NDArray[np.uint64]
    """uint64[x]."""
    cross_parts: NDArray[np.int64]
    """The fields of all crosses one after the other."""
    cross_starts: NDArray[np.int64]
    """int64[x + 1], into `cross_parts`."""
    log_lowest: NDArray[np.uint16]
    log_threshold: NDArray[np.uint32]
    """The tables of `log_bucket_of_whole`."""


@njit(nogil=True, cache=True)
def transform_rows(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    first_row: int,
    status: NDArray[np.uint8],
    bad_column: NDArray[np.int32],
    plan: Plan,
    indptr: NDArray[np.int64],
    slots: NDArray[Any],
    labels: NDArray[np.float32],
    weights: NDArray[np.float32],
    rows: int,
) -> tuple[int, int]:
    """Appends the good rows from `first_row` on to the `rows` examples that the arrays hold already.

    Stops when the cells end or `indptr` is full, and returns the next row and the number of examples.
    """
    row_count, width = starts.shape
    flat_starts, flat_ends = starts.reshape(starts.size), ends.reshape(ends.size)
    field_count = plan.columns.size
    features = field_count + plan.cross_seeds.size
    hashes = np.empty((features, TILE), np.uint64)
    present = np.empty((features, TILE), np.bool_)
    work = np.empty((5, TILE), np.uint64)
    numbers = np.empty(TILE, np.int64)  # of the rows in the tile
    at = np.empty(TILE, np.uint64)  # where their cells begin in flat_starts and flat_ends
    widest = 0
    for x in range(plan.cross_seeds.size):
        widest = max(widest, plan.cross_starts[x + 1] - plan.cross_starts[x])
    parts = np.empty(8 * widest, np.uint8)
    row = first_row
    while row < row_count and rows < indptr.size - 1:
        n = 0
        room = min(TILE, indptr.size - 1 - rows)
        while row < row_count and n < room:
            if status[row] == RowStatus.OK:
                numbers[n] = row
                at[n] = np.uint64(row) * np.uint64(width)
                n += 1
            row += 1
        if n == 0:
            break
        tile = (buffer, flat_starts, flat_ends, at[:n], numbers[:n], status, bad_column)
        if plan.label_column >= 0:
            _label_tile(tile, plan.label_column, labels[rows:])
        if plan.weight_column >= 0:
            _weight_tile(tile, plan.weight_column, weights[rows:])
        for f in range(field_count):
            if plan.kinds[f] == CATEGORY:
                _category_tile(tile, plan.columns[f], plan.seeds[f], hashes[f], present[f], work)
            else:
                _number_tile(tile, plan, f, hashes[f], present[f], work)
            if plan.keeps_missing[f]:
                _keep_missing(n, plan.missing_hashes[f], hashes[f], present[f])
        for x in range(plan.cross_seeds.size):
            members = plan.cross_parts[plan.cross_starts[x] : plan.cross_starts[x + 1]]
            _cross_tile(n, members, plan.cross_seeds[x], hashes, present, field_count + x, parts)
        rows = _write_tile(
            numbers[:n], status, plan.bias, plan.mask, hashes, present, indptr, slots, labels, weights, rows
        )
    return row, rows


@njit(nogil=True, cache=True)
def _label_tile(tile: Any, column: int, labels: NDArray[np.float32]) -> None:
    buffer, starts, ends, at, numbers, status, bad_column = tile
    for t in range(at.size):
        start, end = np.uint64(starts[at[t] + np.uint64(column)]), np.uint64(ends[at[t] + np.uint64(column)])
        if end - start == _U1 and (buffer[start] == _ZERO or buffer[start] == _ONE):
            labels[t] = np.float32(buffer[start] - _ZERO)
            continue
        kind, value = parse_number(buffer, start, end)
        if kind == NUMBER and (value == 1.0 or value == 0.0 or value == -1.0):
            labels[t] = np.float32(value == 1.0)
        else:
            status[numbers[t]] = RowStatus.LABEL
            bad_column[numbers[t]] = column


@njit(nogil=True, cache=True)
def _weight_tile(tile: Any, column: int, weights: NDArray[np.float32]) -> None:
    buffer, starts, ends, at, numbers, status, bad_column = tile
    for t in range(at.size):
        start, end = np.uint64(starts[at[t] + np.uint64(column)]), np.uint64(ends[at[t] + np.uint64(column)])
        kind, value = parse_number(buffer, start, end)
        weight = np.float32(value)
        if kind == NUMBER and weight > 0 and np.isfinite(weight):
            weights[t] = weight
        elif status[numbers[t]] == RowStatus.OK:
            status[numbers[t]] = RowStatus.WEIGHT
            bad_column[numbers[t]] = column


@njit(nogil=True, cache=True)
def _hash_words(words: NDArray[np.uint64], seed: np.uint64, hashes: NDArray[np.uint64]) -> None:
    # All of the tile, also when it is not full: a constant number of turns is unrolled into vectors.
    for t in range(TILE):
        hashes[t] = xxh64_u64(words[t], seed)


@njit(nogil=True, cache=True)
def _category_tile(
    tile: Any,
    column: int,
    seed: np.uint64,
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
    work: NDArray[np.uint64],
) -> None:
    buffer, starts, ends, at, _, _, _ = tile
    words = work[0]
    size = np.uint64(buffer.size)
    others = False  # whether there are values of another length than 8
    for t in range(at.size):
        k = at[t] + np.uint64(column)
        start = np.uint64(starts[k])
        length = np.uint64(ends[k]) - start
        present[t] = length != _U0
        # Without a branch between missing and 8 bytes, which no predictor could foresee.
        if length & ~_U8 == _U0 and start + _U8 <= size:
            words[t] = load_u64(buffer, start)
        else:
            others = True
    _hash_words(words, seed, hashes)
    if others:
        for t in range(at.size):
            k = at[t] + np.uint64(column)
            start, end = np.uint64(starts[k]), np.uint64(ends[k])
            if end - start != _U8 or start + _U8 > size:
                hashes[t] = xxh64(buffer, start, end, seed)


@njit(nogil=True, cache=True)
def _number_tile(
    tile: Any,
    plan: Plan,
    f: int,
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
    work: NDArray[np.uint64],
) -> None:
    buffer, starts, ends, at, numbers, status, bad_column = tile
    words, lengths, negative, values, others = work[0], work[1], work[2], work[3], work[4]
    column = plan.columns[f]
    edges = plan.edges[plan.edge_starts[f] : plan.edge_starts[f + 1]]
    is_log = plan.kinds[f] == LOG
    _load_digits(tile, column, work)
    _parse_words(words, lengths, values, others)
    for t in range(at.size):
        present[t] = lengths[t] != _U0
        if is_log:
            bucket = log_bucket_of_whole(values[t], plan.log_lowest, plan.log_threshold)
            words[t] = bucket if negative[t] == _U0 else _U0 - values[t]
        else:
            whole = np.float64(np.int64(values[t]))
            words[t] = np.uint64(edge_bucket(whole if negative[t] == _U0 else -whole, edges))
    any_other = _U0
    for t in range(at.size):
        any_other |= others[t]
    if any_other != _U0:
        for t in range(at.size):
            if others[t] == _U0:
                continue
            k = at[t] + np.uint64(column)
            kind, value = parse_number(buffer, np.uint64(starts[k]), np.uint64(ends[k]))
            present[t] = kind == NUMBER
            words[t] = np.uint64(log_bucket(value) if is_log else edge_bucket(value, edges))
            if kind == GARBAGE and status[numbers[t]] == RowStatus.OK:
                status[numbers[t]] = RowStatus.NUMBER
                bad_column[numbers[t]] = column
    _hash_words(words, plan.seeds[f], hashes)


@njit(nogil=True, cache=True)
def _load_digits(tile: Any, column: int, work: NDArray[np.uint64]) -> None:
    """Loads the cells that are at most 8 characters after an optional minus; marks all others."""
    buffer, starts, ends, at, _, _, _ = tile
    words, lengths, negative, others = work[0], work[1], work[2], work[4]
    size = np.uint64(buffer.size)
    if size < _U9:
        lengths[:] = _U0
        others[:] = _U1
        return
    for t in range(at.size):
        k = at[t] + np.uint64(column)
        start, end = np.uint64(starts[k]), np.uint64(ends[k])
        inside = start + _U9 <= size
        start = start if inside else _U0  # not to read beyond the buffer
        minus = np.uint64(buffer[start] == _MINUS) & np.uint64(end > start)
        words[t] = load_u64(buffer, start + minus)
        length = end - start - minus
        plain = inside and length <= _U8 and length >= minus
        lengths[t] = length if plain else _U0
        negative[t] = minus
        others[t] = np.uint64(not plain)


@njit(nogil=True, cache=True)
def _parse_words(
    words: NDArray[np.uint64],
    lengths: NDArray[np.uint64],
    values: NDArray[np.uint64],
    others: NDArray[np.uint64],
) -> None:
    """The decimal number in the first `lengths[t]` (0 to 8) bytes of each word; marks in `others` what is none.

    The digits are shifted to the word's end, filled up with zeros in front, and added up in pairs, then
    fours, then eights by multiplications.
    """
    for t in range(TILE):
        length = lengths[t] & np.uint64(15)
        half = (_U8 - length) << _U2  # in two halves, for a shift by 64 is not defined
        word = (words[t] << half) << half
        half = length << _U2
        word |= (np.uint64(0x3030303030303030) >> half) >> half
        high = word & np.uint64(0xF0F0F0F0F0F0F0F0)
        carried = (word + np.uint64(0x0606060606060606)) & np.uint64(0xF0F0F0F0F0F0F0F0)
        others[t] |= (high | carried >> np.uint64(4)) ^ np.uint64(0x3333333333333333)
        word -= np.uint64(0x3030303030303030)
        word = word * np.uint64(10) + (word >> _U8)
        odd = (word & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
        even = ((word >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
        values[t] = (odd + even) >> np.uint64(32)


@njit(nogil=True, cache=True)
def _keep_missing(n: int, missing: np.uint64, hashes: NDArray[np.uint64], present: NDArray[np.bool_]) -> None:
    # Stores without a condition: LLVM 22 makes wrong code for Zen 4 of `if not present[t]:` with a store to
    # each of the two arrays below it (tests/features/test_transform.py finds it).
    for t in range(n):
        hashes[t] = hashes[t] if present[t] else missing
        present[t] = True


@njit(nogil=True, cache=True)
def _cross_tile(
    n: int,
    members: NDArray[np.int64],
    seed: np.uint64,
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
    out: int,
    parts: NDArray[np.uint8],
) -> None:
    for t in range(n):
        present[out, t] = True
        for i in range(members.size):
            present[out, t] &= present[members[i], t]
            part = hashes[members[i], t]
            for byte in range(8):
                parts[8 * i + byte] = np.uint8(part >> np.uint64(8 * byte))
        hashes[out, t] = xxh64(parts, _U0, np.uint64(8 * members.size), seed)


@njit(nogil=True, cache=True)
def _write_tile(
    numbers: NDArray[np.int64],
    status: NDArray[np.uint8],
    bias: bool,
    mask: np.uint64,
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
    indptr: NDArray[np.int64],
    slots: NDArray[Any],
    labels: NDArray[np.float32],
    weights: NDArray[np.float32],
    rows: int,
) -> int:
    """Writes the tile's good rows after the first `rows`, moving their labels and weights up over bad ones."""
    features = np.uint64(hashes.shape[0])
    first = rows
    end = np.uint64(indptr[rows])
    for t in range(numbers.size):
        if status[numbers[t]] != RowStatus.OK:
            continue
        if labels.size > 0:
            labels[rows] = labels[first + t]
        if weights.size > 0:
            weights[rows] = weights[first + t]
        if bias:
            slots[end] = 0
            end += _U1
        u = np.uint64(t)
        for f in range(features):
            slot = hashes[f, u] & mask
            # Written even when missing, and then overwritten: cheaper than a branch (kept in bounds by
            # the row's room for all its features).
            slots[end] = slot + np.uint64(slot == _U0)
            end += np.uint64(present[f, u])
        rows += 1
        indptr[rows] = end
    return rows
