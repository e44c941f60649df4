"""What a `Transform` hands to its kernels: the spec as arrays, and what steps outside of them made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.batches import field_id_dtype
from ctr.features.columns import Arrays, Bag, Hashes, Words
from ctr.features.spec import FeatureSpec, InputField, NumberField, column_of
from ctr.features.steps import STEPS
from ctr.features.text import LOG_CELLS, log_cells
from ctr.features.text.hashing import hash_bytes
from ctr.features.transform.cross_kernels import BagCrossPlan, Combination
from ctr.features.transform.cross_plan import cross_plans, names_as_written
from ctr.features.transform.field_kernels import TILE
from ctr.features.transform.missing import missing_hash
from ctr.features.transform.step_kernels import (
    CategoryPlan,
    CrossPlan,
    FeatureLists,
    NumberPlan,
    Plan,
    Scratch,
    StepFeatures,
)


def seed_of(name: str, spec: FeatureSpec) -> int:
    """The seed of the hashes of the field or cross of this name."""
    return hash_bytes(name.encode(), spec.seed)


def plan_of(
    spec: FeatureSpec, columns: Sequence[str], learnt: Mapping[str, Arrays], *, with_label: bool
) -> Plan:
    """The arrays of `spec`, for cells of these columns; `learnt`: by field, what it has learnt.

    Without label, label and weight are not read, though columns may have them.

    Raises SpecError if a constant that stands for missing values is no value.
    """
    fields = [field for field in spec.all_fields if not field.several]
    index = {column: i for i, column in enumerate(columns)}
    names = [field.name for field in fields]
    seeds = [seed_of(name, spec) for name in names]
    missing = [
        missing_hash(field, seed, learnt[field.name]) for field, seed in zip(fields, seeds, strict=True)
    ]
    crosses, bag_crosses = cross_plans(spec, names)
    written = names_as_written(spec)
    ids = {name: number for number, name in enumerate(spec.names, 1)}
    targets = index if with_label else {}
    return Plan(
        label_column=targets.get(spec.label_column or "", -1),
        weight_column=targets.get(spec.weight_column or "", -1),
        bias=spec.bias,
        mask=np.uint64((1 << spec.bits) - 1),
        seeds=np.array(seeds, np.uint64),
        keeps_missing=np.array([hashed is not None for hashed in missing], np.bool_),
        missing_hashes=np.array([hashed or 0 for hashed in missing], np.uint64),
        categories=CategoryPlan(*_places(fields, index, "category")),
        numbers=_numbers(fields, index),
        by_steps=np.array([f for f, field in enumerate(fields) if STEPS[field.step].make], np.int64),
        coded=np.empty(0, np.int64),
        others=np.arange(len(fields)),
        crosses=crosses,
        bag_crosses=bag_crosses,
        scales=np.array([spec.scales.get(name, 1) for name in written], np.float32),
        ids=np.array([ids[name] for name in written]).astype(field_id_dtype(len(written))),
    )


Step = tuple[int, Words | Hashes | Bag]
"""What a step made of some rows, and the column that it read."""


def step_features(first: int, rows: int, steps: Sequence[Step]) -> StepFeatures | None:
    """What steps made of the rows from `first` on, in the order of the fields; None without steps."""
    if not steps:
        return None
    single = [found for _, found in steps if not isinstance(found, Bag)]
    problem, bad_column = np.zeros(rows, np.uint8), np.zeros(rows, np.int32)
    for column, found in reversed(steps):  # of several, the first field's is told
        bad = np.flatnonzero(found.problem)
        problem[bad], bad_column[bad] = found.problem[bad], column
    return StepFeatures(
        first=first,
        words=np.array([found.words for found in single], np.uint64).reshape(len(single), rows),
        present=np.array([found.present for found in single], np.bool_).reshape(len(single), rows),
        hashed=np.array([isinstance(found, Hashes) for found in single], np.bool_),
        problem=problem,
        bad_column=bad_column,
    )


def feature_lists(first: int, steps: Sequence[Step]) -> FeatureLists | None:
    """And of the fields with any number of features; None without such fields."""
    bags = [found for _, found in steps if isinstance(found, Bag)]
    if not bags:
        return None
    sizes = [0, *accumulate(int(bag.bounds[-1]) for bag in bags)]
    return FeatureLists(
        first=first,
        bounds=np.array([bag.bounds + start for bag, start in zip(bags, sizes, strict=False)], np.int64),
        hashes=_joined([bag.hashes[: bag.bounds[-1]] for bag in bags], np.uint64),
        values=_joined([bag.values[: bag.bounds[-1]] for bag in bags], np.float32),
    )


def plan_of_others(plan: Plan, coded: Sequence[int]) -> Plan:
    """`plan`, but that what these fields make of values has been worked out before."""
    categories, numbers = plan.categories, plan.numbers
    kept = ~np.isin(categories.fields, coded)
    return plan._replace(
        categories=CategoryPlan(categories.fields[kept], categories.columns[kept]),
        numbers=_some_numbers(numbers, np.flatnonzero(~np.isin(numbers.fields, coded))),
        by_steps=plan.by_steps[~np.isin(plan.by_steps, coded)],
        coded=np.array(coded, np.int64),
        others=plan.others[~np.isin(plan.others, coded)],
    )


def plan_of_texts(plan: Plan, field: int) -> Plan:
    """`plan` for this field alone, and cells of its column alone."""
    only, place, nothing = slice(field, field + 1), np.zeros(1, np.int64), np.empty(0, np.int64)
    numbers = _some_numbers(plan.numbers, np.flatnonzero(plan.numbers.fields == field))
    count = int(field in plan.categories.fields)
    crosses = (np.empty(0, np.uint64), nothing)
    return plan._replace(
        label_column=-1,
        weight_column=-1,
        seeds=plan.seeds[only],
        keeps_missing=plan.keeps_missing[only],
        missing_hashes=plan.missing_hashes[only],
        categories=CategoryPlan(place[:count], np.zeros(count, np.uint64)),
        numbers=numbers._replace(
            fields=np.zeros_like(numbers.fields), columns=np.zeros_like(numbers.columns)
        ),
        by_steps=place[: int(field in plan.by_steps)],
        others=place,
        crosses=CrossPlan(*crosses, place),
        bag_crosses=BagCrossPlan(*crosses, nothing, place),
    )


def scratch_of(plan: Plan) -> Scratch:
    """Room for the tiles of `plan`."""
    fields, crosses = plan.seeds.size, plan.crosses.seeds.size
    starts = (plan.crosses.starts, plan.bag_crosses.starts)
    widest = max((int(size) for each in starts for size in np.diff(each)), default=0)
    return Scratch(
        numbers=np.empty(TILE, np.int64),
        at=np.empty(TILE, np.uint64),
        hashes=np.zeros((fields + crosses, TILE), np.uint64),
        present=np.zeros((fields + crosses, TILE), np.bool_),
        lengths=np.zeros((fields, TILE), np.uint64),
        negative=np.zeros((fields, TILE), np.bool_),
        others=np.zeros((fields, TILE), np.uint64),
        slow=np.zeros(fields, np.bool_),
        pointed=np.zeros(fields, np.bool_),
        combination=Combination(np.empty(widest, np.uint64), *np.empty((2, widest), np.int64)),
    )


def _joined(arrays: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, dtype), *arrays])


def _places(
    fields: Sequence[InputField], index: dict[str, int], *steps: str
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Which of the fields have one of these steps, and the columns that they read."""
    found = [f for f, field in enumerate(fields) if field.step in steps]
    return np.array(found, np.int64), np.array([index[column_of(fields[f])] for f in found], np.uint64)


def _numbers(fields: Sequence[InputField], index: dict[str, int]) -> NumberPlan:
    places, columns = _places(fields, index, "log", "edges")
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


def _some_numbers(plan: NumberPlan, places: NDArray[np.int64]) -> NumberPlan:
    """Of `plan` the fields at these places."""
    edges = [plan.edges[plan.edge_starts[i] : plan.edge_starts[i + 1]] for i in places]
    return plan._replace(
        fields=plan.fields[places],
        columns=plan.columns[places],
        logarithmic=plan.logarithmic[places],
        edges=np.concatenate([np.empty(0), *edges]),
        edge_starts=np.array([0, *accumulate(each.size for each in edges)], np.int64),
    )


@cache
def _log_tables() -> tuple[NDArray[np.uint16], NDArray[np.uint32]]:
    lowest, threshold = np.empty(LOG_CELLS, np.uint16), np.empty(LOG_CELLS, np.uint32)
    log_cells(lowest, threshold)
    return lowest, threshold
