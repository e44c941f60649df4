"""The steps of all fields over a tile of rows, as a `Plan` says: cells -> hashes of features."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.number_kernels import (
    BAD_NUMBER,
    GARBAGE,
    NUMBER,
    edge_bucket,
    log_bucket,
    parse_number,
)
from ctr.features.transform.cross_kernels import BagCrossPlan, Combination
from ctr.features.transform.field_kernels import (
    TILE,
    Tile,
    edge_buckets,
    find_points,
    hash_crosses,
    hash_other_categories,
    hash_pairs,
    hash_words,
    keep_missing,
    load_categories,
    load_numbers,
    log_buckets,
    parse_words,
)
from ctr.numba_cache import njit

_U0 = np.uint64(0)


class CategoryPlan(NamedTuple):
    """The fields with the step `category`."""

    fields: NDArray[np.int64]
    """int64[k]: which of the plan's fields they are."""
    columns: NDArray[np.uint64]
    """uint64[k]: the column that each reads."""


class NumberPlan(NamedTuple):
    """The fields with the steps `log` and `edges`."""

    fields: NDArray[np.int64]
    """int64[k]: which of the plan's fields they are."""
    columns: NDArray[np.uint64]
    """uint64[k]: the column that each reads."""
    logarithmic: NDArray[np.bool_]
    """bool[k]: whether the step is `log`."""
    edges: NDArray[np.float64]
    """The edges of all these fields one after the other."""
    edge_starts: NDArray[np.int64]
    """int64[k + 1], into `edges`."""
    log_lowest: NDArray[np.uint16]
    log_threshold: NDArray[np.uint32]
    """The tables of `log_bucket_of_whole`."""


class CrossPlan(NamedTuple):
    """The crosses of single values: the one with number `x` has row `f + x` of a tile's hashes."""

    seeds: NDArray[np.uint64]
    """uint64[x]."""
    parts: NDArray[np.int64]
    """The fields of all crosses one after the other."""
    starts: NDArray[np.int64]
    """int64[x + 1], into `parts`."""


class Plan(NamedTuple):
    """A spec as arrays, with `f` fields that have at most one feature of an example."""

    label_column: int
    """-1 without a label."""
    weight_column: int
    """-1 without a weight."""
    bias: bool
    mask: np.uint64
    """2**bits - 1."""
    seeds: NDArray[np.uint64]
    """uint64[f]."""
    keeps_missing: NDArray[np.bool_]
    """bool[f]: whether a missing value is a feature."""
    missing_hashes: NDArray[np.uint64]
    """uint64[f]: the hash of that feature."""
    categories: CategoryPlan
    numbers: NumberPlan
    by_steps: NDArray[np.int64]
    """int64[p]: the fields whose steps are no kernels here; they are in `StepFeatures`."""
    coded: NDArray[np.int64]
    """int64[c]: the fields whose values have been hashed, each once; they are in `Coded`."""
    others: NDArray[np.int64]
    """All fields but those."""
    crosses: CrossPlan
    bag_crosses: BagCrossPlan
    scales: NDArray[np.float32]
    """float32[f + x + b + y]: of fields and crosses of single values, then of bags and crosses with them."""
    ids: NDArray[Any]
    """uint8|uint16[f + x + b + y]: their field ids (see `Batch.fields`), in the same order."""


class Coded(NamedTuple):
    """What `c` fields make of the distinct texts of their columns, and which of the texts each cell is."""

    codes: NDArray[np.int32]
    """int32[columns, rows]."""
    first: int
    """The row there that is row 0 of the block."""
    columns: NDArray[np.int64]
    """int64[c]: which row of `codes` each field reads."""
    starts: NDArray[np.uint64]
    """uint64[c]: where in the two below the hashes of each field begin."""
    hashes: NDArray[np.uint64]
    present: NDArray[np.bool_]


class StepFeatures(NamedTuple):
    """What steps outside these kernels made of `n` rows: of `p` fields with at most one feature."""

    first: int
    """The row of the block that is row 0 here."""
    words: NDArray[np.uint64]
    """uint64[p, n], and bool[p, n]: see `columns.Words`."""
    present: NDArray[np.bool_]
    hashed: NDArray[np.bool_]
    """bool[p]: whether its words are hashes already: see `columns.Hashes`."""
    problem: NDArray[np.uint8]
    """uint8[n]: the RowStatus of rows that are bad, whatever the field, and the column."""
    bad_column: NDArray[np.int32]


class FeatureLists(NamedTuple):
    """And of `b` fields with any number of features."""

    first: int
    bounds: NDArray[np.int64]
    """int64[b, n + 1], into the two below: see `columns.Bag`."""
    hashes: NDArray[np.uint64]
    values: NDArray[np.float32]


class Scratch(NamedTuple):
    """Room for what is known of the rows of a tile and their cells."""

    numbers: NDArray[np.int64]
    """int64[TILE]: see `Tile`."""
    at: NDArray[np.uint64]
    """uint64[TILE]: see `Tile`."""
    hashes: NDArray[np.uint64]
    """uint64[f + x, TILE]: text, then numbers, then buckets, and hashes in the end."""
    present: NDArray[np.bool_]
    """bool[f + x, TILE]: whether there is a feature."""
    lengths: NDArray[np.uint64]
    """uint64[f, TILE], of numbers: their digits."""
    negative: NDArray[np.bool_]
    """bool[f, TILE], of numbers: whether with a minus."""
    others: NDArray[np.uint64]
    """uint64[f, TILE], of numbers: not 0 where they are not just a few digits."""
    slow: NDArray[np.bool_]
    """bool[f]: whether some cells of the tile are not of the most frequent kind."""
    pointed: NDArray[np.bool_]
    """bool[f], of categories: whether some cells have a decimal point."""
    combination: Combination


@njit(nogil=True, cache=True, forceinline=True)
def hash_fields(
    tile: Tile, plan: Plan, steps: StepFeatures | None, coded: Coded | None, scratch: Scratch
) -> None:
    """Fills `hashes` and `present`; marks rows in which a number is none.

    What a spec does not need is None: no code is made for it.
    """
    hashes, present, others, slow = scratch.hashes, scratch.present, scratch.others, scratch.slow
    n = tile.at.size
    categories, numbers, crosses = plan.categories, plan.numbers, plan.crosses
    for i in range(categories.fields.size):
        f = categories.fields[i]
        slow[f] = load_categories(tile, categories.columns[i], f, hashes, present)
    for i in range(numbers.fields.size):
        f = numbers.fields[i]
        load_numbers(tile, numbers.columns[i], f, hashes, present, scratch.lengths, scratch.negative, others)
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
    if steps is not None:
        for i in range(plan.by_steps.size):
            if not steps.hashed[i]:
                _load_steps(tile, steps, i, plan.by_steps[i], hashes, present)
    for f in plan.others:
        hash_words(f, plan.seeds[f], hashes)
    if steps is not None:
        for i in range(plan.by_steps.size):
            if steps.hashed[i]:
                _load_steps(tile, steps, i, plan.by_steps[i], hashes, present)
    for i in range(categories.fields.size):
        f = categories.fields[i]
        if slow[f] or scratch.pointed[f]:
            hash_other_categories(
                tile, categories.columns[i], f, plan.seeds[f], scratch.pointed[f], hashes, present
            )
    if coded is not None:
        for i in range(plan.coded.size):
            _load_coded(tile, coded, i, plan.coded[i], hashes, present)
    for f in plan.others:
        if plan.keeps_missing[f]:
            keep_missing(n, f, plan.missing_hashes[f], hashes, present)
    for x in range(crosses.seeds.size):
        members = crosses.parts[crosses.starts[x] : crosses.starts[x + 1]]
        row = plan.seeds.size + x
        if members.size == 2:
            hash_pairs(members[0], members[1], crosses.seeds[x], row, hashes, present)
        else:
            hash_crosses(n, members, crosses.seeds[x], row, hashes, present, scratch.combination.words)


@njit(nogil=True, cache=True)
def _other_numbers(
    tile: Tile,
    plan: NumberPlan,
    i: int,
    others: NDArray[np.uint64],
    buckets: NDArray[np.uint64],
    present: NDArray[np.bool_],
) -> None:
    """Buckets of the cells of the i-th number field that are not just a few digits."""
    f, column = plan.fields[i], plan.columns[i]
    edges = plan.edges[plan.edge_starts[i] : plan.edge_starts[i + 1]]
    for t in range(tile.at.size):
        if others[f, t] == _U0:
            continue
        k = tile.at[t] + column
        kind, value = parse_number(tile.buffer, np.uint64(tile.starts[k]), np.uint64(tile.ends[k]))
        present[f, t] = kind == NUMBER
        bucket = log_bucket(value) if plan.logarithmic[i] else edge_bucket(value, edges)
        buckets[f, t] = np.uint64(bucket)
        row = tile.numbers[t]
        if kind == GARBAGE and tile.status[row] == 0:
            tile.status[row] = BAD_NUMBER
            tile.bad_column[row] = column


@njit(nogil=True, cache=True)
def _load_steps(
    tile: Tile, steps: StepFeatures, i: int, f: int, words: NDArray[np.uint64], present: NDArray[np.bool_]
) -> None:
    """Loads the words of the i-th field that other steps have steps."""
    for t in range(tile.at.size):
        row = tile.numbers[t] - steps.first
        words[f, t] = steps.words[i, row]
        present[f, t] = steps.present[i, row]


@njit(nogil=True, cache=True)
def _load_coded(
    tile: Tile, coded: Coded, i: int, f: int, hashes: NDArray[np.uint64], present: NDArray[np.bool_]
) -> None:
    """Loads the hashes of the i-th field whose values have been hashed before."""
    codes, start = coded.codes[coded.columns[i]], coded.starts[i]
    for t in range(tile.at.size):
        k = start + np.uint64(codes[np.uint64(coded.first + tile.numbers[t])])
        hashes[f, t] = coded.hashes[k]
        present[f, t] = coded.present[k]


@njit(nogil=True, cache=True)
def hash_texts(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    status: NDArray[np.uint8],
    plan: Plan,
    steps: StepFeatures | None,
    scratch: Scratch,
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
) -> None:
    """What the only field of `plan` makes of each of these texts; a `status` other than 0: it is bad."""
    bad_column = np.zeros(starts.size, np.int32)
    for first in range(0, starts.size, TILE):
        n = min(TILE, starts.size - first)
        for t in range(n):
            scratch.numbers[t] = first + t
            scratch.at[t] = np.uint64(first + t)
        tile = Tile(buffer, starts, ends, scratch.at[:n], scratch.numbers[:n], status, bad_column)
        hash_fields(tile, plan, steps, None, scratch)
        hashes[first : first + n] = scratch.hashes[0, :n]
        present[first : first + n] = scratch.present[0, :n]
