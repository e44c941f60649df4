"""What a `Transform` passes to its kernels: the spec as arrays, and features made column by column."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.batches import field_id_dtype, slot_dtype
from ctr.features.columns import Buckets, HashedTokens, TokenCounts
from ctr.features.spec import FeatureSpec, InputField, NumberField, column_of
from ctr.features.text import LOG_CELLS, TILE, log_cells
from ctr.features.text.hashing import hash_bytes
from ctr.features.transform.cross_plan import cross_plans, names_as_written
from ctr.features.transform.field_features import FieldFeatures
from ctr.features.transform.plan_kernels import (
    CategoryPlan,
    ColumnFeatures,
    Combination,
    FeatureLists,
    NumberPlan,
    Plan,
    Scratch,
)

TILED = frozenset({"category", "log", "edges"})
"""The steps that kernels run tile by tile, as fast as they read cells; all others run by column."""


def seed_of(name: str, spec: FeatureSpec) -> int:
    """The seed of the hashes of the field or cross of this name."""
    return hash_bytes(name.encode(), spec.seed)


def plan_of(
    spec: FeatureSpec,
    every: Sequence[FieldFeatures],
    columns: Sequence[str],
    coded: frozenset[str],
    *,
    with_label: bool,
) -> Plan:
    """The arrays of `spec`, for cells with these columns except the `coded` ones.

    `every`: the fields with at most one feature. Without label, neither label nor weight is read, even if
    `columns` has them.
    """
    fields = [each.field for each in every]
    cells = [column for column in columns if column not in coded]
    index = {column: i for i, column in enumerate(cells)}
    uncoded = [f for f, field in enumerate(fields) if column_of(field) not in coded]
    tiled = [f for f in uncoded if fields[f].step in TILED]
    crosses, list_crosses = cross_plans(spec, [field.name for field in fields])
    written = names_as_written(spec)
    ids = {name: number for number, name in enumerate(spec.names, 1)}
    targets = index if with_label else {}
    return Plan(
        columns=np.array([columns.index(column) for column in cells], np.int32),
        label_column=targets.get(spec.label_column or "", -1),
        weight_column=targets.get(spec.weight_column or "", -1),
        bias=spec.bias,
        mask=np.uint64((1 << spec.bits) - 1),
        seeds=np.array([each.seed for each in every], np.uint64),
        keeps_missing=np.array([each.missing.size > 0 for each in every], np.bool_),
        missing_hashes=np.array([each.missing[0] if each.missing.size else 0 for each in every], np.uint64),
        categories=CategoryPlan(*_places(fields, tiled, index, "category")),
        numbers=_numbers(fields, tiled, index),
        tiled=np.array(tiled, np.int64),
        by_column=np.array([f for f in uncoded if f not in tiled], np.int64),
        crosses=crosses,
        list_crosses=list_crosses,
        scales=np.array([spec.scales.get(name, 1) for name in written], np.float32),
        ids=np.array([ids[name] for name in written]).astype(field_id_dtype(len(written))),
    )


class Step(NamedTuple):
    """The features that a field makes of some rows."""

    field: FieldFeatures
    column: int
    """The column that it read."""
    features: Buckets | HashedTokens | TokenCounts
    """Of lists, including the features of missing values."""


def column_features(first: int, rows: int, steps: Sequence[Step]) -> ColumnFeatures:
    """Features of the rows from `first` on, for fields with at most one; problems of all fields."""
    single = [(field, features) for field, _, features in steps if not isinstance(features, TokenCounts)]
    hashes, present = np.empty((len(single), rows), np.uint64), np.empty((len(single), rows), np.bool_)
    for k, (field, features) in enumerate(single):
        field.write(features, hashes[k], present[k])
    problem, bad_column = np.zeros(rows, np.uint8), np.zeros(rows, np.int32)
    # In reverse, so that of several bad columns in a row, the first field's is reported.
    for _, column, field_features in reversed(steps):
        bad = np.flatnonzero(field_features.problem)
        problem[bad], bad_column[bad] = field_features.problem[bad], column
    return ColumnFeatures(first, hashes, present, problem, bad_column)


def feature_lists(first: int, steps: Sequence[Step]) -> FeatureLists | None:
    """Features of the same rows, for fields with any number of them; None without such fields."""
    lists = [features for _, _, features in steps if isinstance(features, TokenCounts)]
    if not lists:
        return None
    sizes = [0, *accumulate(int(each.bounds[-1]) for each in lists)]
    return FeatureLists(
        first=first,
        bounds=np.array([each.bounds + start for each, start in zip(lists, sizes, strict=False)], np.int64),
        hashes=_joined([each.hashes[: each.bounds[-1]] for each in lists]),
        values=_joined([each.values[: each.bounds[-1]] for each in lists]),
    )


def scratch_of(plan: Plan) -> Scratch:
    """Scratch for the tiles of `plan`."""
    fields, crosses = plan.seeds.size, plan.crosses.seeds.size
    starts = (plan.crosses.starts, plan.list_crosses.starts)
    widest = max((int(size) for each in starts for size in np.diff(each)), default=0)
    return Scratch(
        numbers=np.empty(TILE, np.int64),
        at=np.empty(TILE, np.uint64),
        hashes=np.zeros((fields + crosses, TILE), np.uint64),
        present=np.zeros((fields + crosses, TILE), np.bool_),
        slots=np.zeros((fields + crosses, TILE), slot_dtype(int(plan.mask).bit_length())),
        lengths=np.zeros((fields, TILE), np.uint64),
        negative=np.zeros((fields, TILE), np.bool_),
        others=np.zeros((fields, TILE), np.uint64),
        slow=np.zeros(fields, np.bool_),
        pointed=np.zeros(fields, np.bool_),
        combination=Combination(np.empty(widest, np.uint64), *np.empty((2, widest), np.int64)),
    )


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _places(
    fields: Sequence[InputField], tiled: Sequence[int], index: dict[str, int], *steps: str
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Which of the `tiled` fields have one of these steps, and the columns that they read."""
    places = [f for f in tiled if fields[f].step in steps]
    return np.array(places, np.int64), np.array([index[column_of(fields[f])] for f in places], np.uint64)


def _numbers(fields: Sequence[InputField], tiled: Sequence[int], index: dict[str, int]) -> NumberPlan:
    places, columns = _places(fields, tiled, index, "log", "edges")
    edges = [field.edges for f in places if isinstance(field := fields[f], NumberField)]
    lowest, threshold = _log_tables()
    return NumberPlan(
        fields=places,
        columns=columns,
        logarithmic=np.array([fields[f].step == "log" for f in places], np.bool_),
        edges=np.array([edge for of_field in edges for edge in of_field], np.float64),
        edge_starts=np.array([0, *accumulate(map(len, edges))], np.int64),
        log_lowest=lowest,
        log_threshold=threshold,
    )


@cache
def _log_tables() -> tuple[NDArray[np.uint16], NDArray[np.uint32]]:
    lowest, threshold = np.empty(LOG_CELLS, np.uint16), np.empty(LOG_CELLS, np.uint32)
    log_cells(lowest, threshold)
    return lowest, threshold
