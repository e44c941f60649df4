"""The loops of `Transform`: cells of text -> slots.

A tile of rows is worked on field by field (see `field_kernels`), so that what to do is decided once per
field and tile; then its hashes are written out row by row.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit
from features.text.number_kernels import GARBAGE, NUMBER, edge_bucket, log_bucket, parse_number
from features.transform.field_kernels import (
    TILE,
    edge_buckets,
    find_points,
    hash_crosses,
    hash_other_categories,
    hash_words,
    keep_missing,
    load_categories,
    load_numbers,
    log_buckets,
    parse_words,
)
from features.transform.label_kernels import BAD_LABEL, MINUS_LABEL, ZERO_LABEL, label_problem

CATEGORY, LOG, EDGES = 0, 1, 2

_U0, _U1 = np.uint64(0), np.uint64(1)
_ZERO, _ONE = np.uint8(ord("0")), np.uint8(ord("1"))


class RowStatus(IntEnum):
    """What came of a row; everything but OK keeps it out of the batch."""

    OK = 0
    COLUMNS = 1
    """It has more or fewer columns than it should: set by who splits the rows, before the transform."""
    LABEL = BAD_LABEL
    WEIGHT = 3
    NUMBER = 4
    LABEL_MINUS = MINUS_LABEL
    """Its label is -1, but those before it are 0 or 1."""
    LABEL_ZERO = ZERO_LABEL
    """Its label is 0, but those before it are -1 or 1."""


class Plan(NamedTuple):
    """A spec as arrays: `f` fields, `x` crosses."""

    label_column: int
    """-1 without a label."""
    weight_column: int
    """-1 without a weight."""
    bias: bool
    mask: np.uint64
    """2**bits - 1."""
    columns: NDArray[np.uint64]
    """uint64[f]."""
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
    no_click: NDArray[np.int8],
    weights: NDArray[np.float32],
    rows: int,
) -> tuple[int, int]:
    """Appends the good rows from `first_row` on to the `rows` examples that the arrays hold already.

    Stops when the cells end or `indptr` is full, and returns the next row and the number of examples.
    `no_click`: see `label_problem`.
    """
    row_count, width = starts.shape
    flat_starts, flat_ends = starts.reshape(starts.size), ends.reshape(ends.size)
    hashes = np.zeros((plan.columns.size + plan.cross_seeds.size, TILE), np.uint64)
    present = np.zeros(hashes.shape, np.bool_)
    scratch = _scratch(plan)
    numbers = np.empty(TILE, np.int64)  # of the rows in the tile
    at = np.empty(TILE, np.uint64)  # where their cells begin in flat_starts and flat_ends
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
        cells = (buffer, flat_starts, flat_ends, at[:n])
        verdict = (numbers, status, bad_column)
        if plan.label_column >= 0:
            _labels(cells, plan.label_column, verdict, labels[rows:], no_click)
        if plan.weight_column >= 0:
            _weights(cells, plan.weight_column, verdict, weights[rows:])
        _hash_fields(cells, verdict, plan, hashes, present, scratch)
        rows = _write_rows(
            numbers[:n], status, plan.bias, plan.mask, hashes, present, indptr, slots, labels, weights, rows
        )
    return row, rows


@njit(nogil=True, cache=True)
def _scratch(plan: Plan) -> Any:
    """Of numbers: digits, minus, whether odd; of fields: whether with odd cells, points; bytes of a cross."""
    shape = (plan.columns.size, TILE)
    widest = 0
    for x in range(plan.cross_seeds.size):
        widest = max(widest, plan.cross_starts[x + 1] - plan.cross_starts[x])
    lengths, others = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
    negative, slow = np.zeros(shape, np.bool_), np.zeros(plan.columns.size, np.bool_)
    return lengths, negative, others, slow, slow.copy(), np.empty(8 * widest, np.uint8)


@njit(nogil=True, cache=True, forceinline=True)
def _hash_fields(
    cells: Any,
    verdict: Any,
    plan: Plan,
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
    scratch: Any,
) -> None:
    lengths, negative, others, slow, pointed, parts = scratch
    n = cells[3].size
    fields = plan.columns.size
    for f in range(fields):
        if plan.kinds[f] == CATEGORY:
            slow[f] = load_categories(cells, plan.columns[f], f, hashes, present)
        else:
            load_numbers(cells, plan.columns[f], f, hashes, present, lengths, negative, others)
    for f in range(fields):
        if plan.kinds[f] == CATEGORY:
            pointed[f] = find_points(f, hashes)
        else:
            slow[f] = parse_words(f, hashes, lengths, others)
    for f in range(fields):
        if plan.kinds[f] == LOG:
            log_buckets(n, f, plan.log_lowest, plan.log_threshold, hashes, negative)
        elif plan.kinds[f] == EDGES:
            edges = plan.edges[plan.edge_starts[f] : plan.edge_starts[f + 1]]
            edge_buckets(n, f, edges, hashes, negative)
        if plan.kinds[f] != CATEGORY and slow[f]:
            _other_numbers(cells, verdict, plan, f, others, hashes, present)
    for f in range(fields):
        hash_words(f, plan.seeds[f], hashes)
    for f in range(fields):
        if plan.kinds[f] == CATEGORY and (slow[f] or pointed[f]):
            hash_other_categories(cells, plan.columns[f], f, plan.seeds[f], pointed[f], hashes, present)
        if plan.keeps_missing[f]:
            keep_missing(n, f, plan.missing_hashes[f], hashes, present)
    for x in range(plan.cross_seeds.size):
        members = plan.cross_parts[plan.cross_starts[x] : plan.cross_starts[x + 1]]
        hash_crosses(n, members, plan.cross_seeds[x], fields + x, hashes, present, parts)


@njit(nogil=True, cache=True)
def _other_numbers(
    cells: Any,
    verdict: Any,
    plan: Plan,
    f: int,
    others: NDArray[np.uint64],
    buckets: NDArray[np.uint64],
    present: NDArray[np.bool_],
) -> None:
    """Buckets of the cells that are not just a few digits."""
    buffer, starts, ends, at = cells
    numbers, status, bad_column = verdict
    edges = plan.edges[plan.edge_starts[f] : plan.edge_starts[f + 1]]
    for t in range(at.size):
        if others[f, t] == _U0:
            continue
        k = at[t] + plan.columns[f]
        kind, value = parse_number(buffer, np.uint64(starts[k]), np.uint64(ends[k]))
        present[f, t] = kind == NUMBER
        bucket = log_bucket(value) if plan.kinds[f] == LOG else edge_bucket(value, edges)
        buckets[f, t] = np.uint64(bucket)
        if kind == GARBAGE and status[numbers[t]] == RowStatus.OK:
            status[numbers[t]] = RowStatus.NUMBER
            bad_column[numbers[t]] = plan.columns[f]


@njit(nogil=True, cache=True)
def _labels(
    cells: Any, column: int, verdict: Any, labels: NDArray[np.float32], no_click: NDArray[np.int8]
) -> None:
    buffer, starts, ends, at = cells
    numbers, status, bad_column = verdict
    for t in range(at.size):
        k = at[t] + np.uint64(column)
        start, end = np.uint64(starts[k]), np.uint64(ends[k])
        if end - start == _U1 and (buffer[start] == _ONE or (buffer[start] == _ZERO and no_click[0] == 0)):
            labels[t] = np.float32(buffer[start] - _ZERO)
            continue
        kind, value = parse_number(buffer, start, end)
        problem = label_problem(value, no_click) if kind == NUMBER else BAD_LABEL
        labels[t] = np.float32(value == 1.0)
        if problem != 0:
            status[numbers[t]] = problem
            bad_column[numbers[t]] = column


@njit(nogil=True, cache=True)
def _weights(cells: Any, column: int, verdict: Any, weights: NDArray[np.float32]) -> None:
    buffer, starts, ends, at = cells
    numbers, status, bad_column = verdict
    for t in range(at.size):
        k = at[t] + np.uint64(column)
        start, end = np.uint64(starts[k]), np.uint64(ends[k])
        kind, value = parse_number(buffer, start, end)
        weight = np.float32(value)
        if kind == NUMBER and weight > 0 and np.isfinite(weight):
            weights[t] = weight
        elif status[numbers[t]] == RowStatus.OK:
            status[numbers[t]] = RowStatus.WEIGHT
            bad_column[numbers[t]] = column


@njit(nogil=True, cache=True)
def _write_rows(
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
    """Writes the tile's good rows after the first `rows`; their labels and weights move up over bad ones."""
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
