"""Runs a `Plan` over a tile of rows: cells -> slots of all fields and crosses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.column_kernels import (
    find_points,
    hash_other_categories,
    hash_words,
    load_categories,
)
from ctr.features.text.number_kernels import (
    BAD_NUMBER,
    GARBAGE,
    NUMBER,
    edge_bucket,
    log_bucket,
    parse_number,
)
from ctr.features.transform.field_kernels import (
    edge_buckets,
    find_slots,
    hash_crosses,
    hash_pairs,
    keep_missing,
    load_numbers,
    log_buckets,
    parse_words,
)
from ctr.features.transform.plan_kernels import (
    ColumnFeatures,
    NumberPlan,
    Plan,
    Scratch,
    Tile,
    ValueTables,
)
from ctr.jit import njit

_U0 = np.uint64(0)


@njit(nogil=True, cache=True, forceinline=True)
def find_fields(
    tile: Tile, plan: Plan, by_column: ColumnFeatures | None, tables: ValueTables | None, scratch: Scratch
) -> None:
    """Fills `slots` (and, for crosses, `hashes` and `present`); marks rows with an invalid number.

    What a spec does not need is None: no code is compiled for it.
    """
    hashes, present, others, slow = scratch.hashes, scratch.present, scratch.others, scratch.slow
    cells, n = tile.cells, tile.numbers.size
    categories, numbers, crosses = plan.categories, plan.numbers, plan.crosses
    for i in range(categories.fields.size):
        f = categories.fields[i]
        slow[f] = load_categories(cells, categories.columns[i], f, hashes, present)
    for i in range(numbers.fields.size):
        f = numbers.fields[i]
        load_numbers(cells, numbers.columns[i], f, hashes, present, scratch.lengths, scratch.negative, others)
    for f in categories.fields:
        scratch.pointed[f] = find_points(f, hashes)
    for f in numbers.fields:
        slow[f] = parse_words(f, hashes, scratch.lengths, others)
    for i in range(numbers.fields.size):
        f = numbers.fields[i]
        if numbers.logarithmic[i]:
            log_buckets(n, f, numbers.log_lowest, numbers.log_threshold, hashes, scratch.negative)
        else:
            edges = numbers.edges[numbers.edge_starts[i] : numbers.edge_starts[i + 1]]
            edge_buckets(n, f, edges, hashes, scratch.negative)
        if slow[f]:
            _other_numbers(tile, numbers, i, others, hashes, present)
    for f in plan.tiled:
        hash_words(f, plan.seeds[f], hashes)
    for i in range(categories.fields.size):
        f = categories.fields[i]
        if slow[f] or scratch.pointed[f]:
            hash_other_categories(
                cells, categories.columns[i], f, plan.seeds[f], scratch.pointed[f], hashes, present
            )
    for f in plan.tiled:
        if plan.keeps_missing[f]:
            keep_missing(n, f, plan.missing_hashes[f], hashes, present)
        find_slots(f, plan.mask, hashes, present, scratch.slots)
    if by_column is not None:
        _load_columns(tile, plan, by_column, scratch)
    if tables is not None:
        _look_up(tile, tables, scratch)
    for x in range(crosses.seeds.size):
        members = crosses.parts[crosses.starts[x] : crosses.starts[x + 1]]
        row = plan.seeds.size + x
        if members.size == 2:
            hash_pairs(members[0], members[1], crosses.seeds[x], row, hashes, present)
        else:
            hash_crosses(n, members, crosses.seeds[x], row, hashes, present, scratch.combination.hashes)
        find_slots(row, plan.mask, hashes, present, scratch.slots)


@njit(nogil=True, cache=True)
def _other_numbers(
    tile: Tile,
    plan: NumberPlan,
    i: int,
    others: NDArray[np.uint64],
    buckets: NDArray[np.uint64],
    present: NDArray[np.bool_],
) -> None:
    """Makes buckets of the i-th number field's cells that are not just a few digits."""
    cells, f, column = tile.cells, plan.fields[i], plan.columns[i]
    edges = plan.edges[plan.edge_starts[i] : plan.edge_starts[i + 1]]
    for t in range(tile.numbers.size):
        if others[f, t] == _U0:
            continue
        k = cells.at[t] + column
        kind, value = parse_number(cells.buffer, np.uint64(cells.starts[k]), np.uint64(cells.ends[k]))
        present[f, t] = kind == NUMBER
        bucket = log_bucket(value) if plan.logarithmic[i] else edge_bucket(value, edges)
        buckets[f, t] = np.uint64(bucket)
        row = tile.numbers[t]
        if kind == GARBAGE and tile.status[row] == 0:
            tile.status[row] = BAD_NUMBER
            tile.bad_column[row] = tile.columns[column]


@njit(nogil=True, cache=True)
def _load_columns(tile: Tile, plan: Plan, by_column: ColumnFeatures, scratch: Scratch) -> None:
    """Loads the features that were made column by column."""
    rows, first, hashes, present = tile.numbers, by_column.first, scratch.hashes, scratch.present
    of_column, are_there = by_column.hashes, by_column.present
    for i in range(plan.by_column.size):
        f = plan.by_column[i]
        for t in range(rows.size):
            hashes[f, t] = of_column[i, rows[t] - first]
            present[f, t] = are_there[i, rows[t] - first]
        find_slots(f, plan.mask, hashes, present, scratch.slots)


@njit(nogil=True, cache=True)
def _look_up(tile: Tile, tables: ValueTables, scratch: Scratch) -> None:
    """Loads the features of the fields that have a table of their values."""
    rows, codes, of_value, slots = tile.numbers, tables.codes, tables.slots, scratch.slots
    hashes, present, n = scratch.hashes, scratch.present, tile.numbers.size
    value_hashes, value_present = tables.hashes, tables.present
    in_order = n > 0 and rows[-1] - rows[0] == n - 1
    for i in range(tables.fields.size):
        f, column, start = np.uint64(tables.fields[i]), np.uint64(tables.columns[i]), tables.starts[i]
        if tables.crossed[i]:
            for t in range(n):
                k = start + np.uint64(codes[column, np.uint64(tables.first + rows[t])])
                slots[f, t] = of_value[k]
                hashes[f, t] = value_hashes[k]
                present[f, t] = value_present[k]
        elif in_order:
            first = np.uint64(tables.first + rows[0])
            for t in range(n):
                slots[f, t] = of_value[start + np.uint64(codes[column, first + np.uint64(t)])]
        else:
            for t in range(n):
                slots[f, t] = of_value[start + np.uint64(codes[column, np.uint64(tables.first + rows[t])])]
