"""What the kernels of a `Transform` share: a spec as arrays, features made before they run, and scratch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.column_kernels import TileCells


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
    """The crosses of single values; cross `x` has row `f + x` of a tile's hashes."""

    seeds: NDArray[np.uint64]
    """uint64[x]."""
    parts: NDArray[np.int64]
    """The fields of all crosses one after the other."""
    starts: NDArray[np.int64]
    """int64[x + 1], into `parts`."""


class ListCrossPlan(NamedTuple):
    """The crosses with at least one field that has several values."""

    seeds: NDArray[np.uint64]
    """uint64[y]."""
    parts: NDArray[np.int64]
    """The fields of all crosses one after the other: row `f` of a tile's hashes, or `-1 - b` for list `b`."""
    behind: NDArray[np.int64]
    """int64, as long as `parts`: how many of the cross's parts after this one are the same list."""
    starts: NDArray[np.int64]
    """int64[y + 1], into `parts`."""


class Plan(NamedTuple):
    """A spec as arrays, with `f` fields that have at most one feature per example."""

    columns: NDArray[np.int32]
    """int32[columns of the cells]: the index of each among all columns, for `bad_column`."""
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
    tiled: NDArray[np.int64]
    """The fields of `categories` and `numbers`: kernels read their cells tile by tile."""
    by_column: NDArray[np.int64]
    """int64[p]: the fields in `ColumnFeatures`, whose features are made column by column."""
    crosses: CrossPlan
    list_crosses: ListCrossPlan
    scales: NDArray[np.float32]
    """float32[f + x + b + y]: of fields and crosses of single values, then of lists and their crosses."""
    ids: NDArray[Any]
    """uint8|uint16[f + x + b + y]: their field ids (see `Batch.fields`), in the same order."""


class ValueTables(NamedTuple):
    """The features that `c` fields make of the distinct texts of their columns, and each cell's text."""

    fields: NDArray[np.int64]
    """int64[c]: which of the plan's fields they are."""
    codes: NDArray[np.int32]
    """int32[columns, rows]."""
    first: int
    """The row of `codes` that is row 0 of the block."""
    columns: NDArray[np.int64]
    """int64[c]: which row of `codes` each field reads."""
    starts: NDArray[np.uint64]
    """uint64[c]: where each field's entries begin in `slots`, `hashes` and `present`."""
    slots: NDArray[Any]
    """uint32|uint64: 0 where a text has no feature."""
    crossed: NDArray[np.bool_]
    """bool[c]: whether a field is in a cross, which needs `hashes` and `present`: empty if no field is."""
    hashes: NDArray[np.uint64]
    present: NDArray[np.bool_]


class ColumnFeatures(NamedTuple):
    """Features of `n` rows, made column by column: of `p` fields with at most one per row."""

    first: int
    """The row of the block that is row 0 here."""
    hashes: NDArray[np.uint64]
    """uint64[p, n], and bool[p, n]: see `columns.HashedTokens`."""
    present: NDArray[np.bool_]
    problem: NDArray[np.uint8]
    """uint8[n]: the RowStatus of bad rows, for any field, and the column that is bad."""
    bad_column: NDArray[np.int32]


class FeatureLists(NamedTuple):
    """Features of the same rows: of `b` fields with any number per row."""

    first: int
    bounds: NDArray[np.int64]
    """int64[b, n + 1], into `hashes` and `values`: see `columns.TokenCounts`."""
    hashes: NDArray[np.uint64]
    values: NDArray[np.float32]


class Tile(NamedTuple):
    """Up to TILE rows of a block."""

    cells: TileCells
    numbers: NDArray[np.int64]
    """int64[rows]: the rows' numbers in the block."""
    status: NDArray[np.uint8]
    """Of all rows of the block: a RowStatus."""
    bad_column: NDArray[np.int32]
    """Of all rows of the block."""
    columns: NDArray[np.int32]
    """See `Plan`."""


class Combination(NamedTuple):
    """Scratch for one combination of values, as wide as the widest cross."""

    hashes: NDArray[np.uint64]
    """Of the values."""
    at: NDArray[np.int64]
    """The places of the values in the lists."""
    stop: NDArray[np.int64]
    """The exclusive bounds of `at`."""


class Scratch(NamedTuple):
    """Buffers for the rows of a tile and their cells."""

    numbers: NDArray[np.int64]
    """int64[TILE]: see `Tile`."""
    at: NDArray[np.uint64]
    """uint64[TILE]: see `TileCells`."""
    hashes: NDArray[np.uint64]
    """uint64[f + x, TILE]: text, then numbers, then buckets, and finally hashes."""
    present: NDArray[np.bool_]
    """bool[f + x, TILE]: whether there is a feature."""
    slots: NDArray[Any]
    """uint32|uint64[f + x, TILE]: 0 where there is none."""
    lengths: NDArray[np.uint64]
    """uint64[f, TILE], of numbers: how many digits they have."""
    negative: NDArray[np.bool_]
    """bool[f, TILE], of numbers: whether they have a minus."""
    others: NDArray[np.uint64]
    """uint64[f, TILE], of numbers: not 0 if a cell is not just a few digits."""
    slow: NDArray[np.bool_]
    """bool[f]: whether some cells of the tile are not of the most frequent kind."""
    pointed: NDArray[np.bool_]
    """bool[f], of categories: whether some cells have a decimal point."""
    combination: Combination


class Examples(NamedTuple):
    """The arrays of a `BatchBuilder`."""

    indptr: NDArray[np.int64]
    slots: NDArray[Any]
    values: NDArray[np.float32]
    fields: NDArray[Any]
    labels: NDArray[np.float32]
    no_click: NDArray[np.int8]
    weights: NDArray[np.float32]
