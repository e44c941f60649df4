"""The crosses of a spec as arrays for the kernels, and how many features they can make of a row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ctr.features.spec import FeatureSpec
from ctr.features.text.hashing import hash_bytes
from ctr.features.transform.plan_kernels import CrossPlan, ListCrossPlan


def cross_plans(spec: FeatureSpec, names: Sequence[str]) -> tuple[CrossPlan, ListCrossPlan]:
    """Crosses of single values, and crosses with a list; `names`: the fields with a single value."""
    lists = [field.name for field in spec.all_fields if field.several]
    places = {name: f for f, name in enumerate(names)} | {name: -1 - b for b, name in enumerate(lists)}
    single = [cross for cross in spec.crosses if not set(lists) & set(cross.of)]
    several = [cross for cross in spec.crosses if set(lists) & set(cross.of)]
    arrays = []
    for crosses in (single, several):
        seeds = np.array([hash_bytes(cross.name.encode(), spec.seed) for cross in crosses], np.uint64)
        parts = np.array([places[part] for cross in crosses for part in cross.of], np.int64)
        arrays.append((seeds, parts, np.array([0, *accumulate(len(c.of) for c in crosses)], np.int64)))
    behind = np.array(
        [cross.of[i + 1 :].count(p) for cross in several for i, p in enumerate(cross.of)], np.int64
    )
    seeds, parts, starts = arrays[1]
    return CrossPlan(*arrays[0]), ListCrossPlan(seeds, parts, behind, starts)


def names_as_written(spec: FeatureSpec) -> list[str]:
    """The names of fields and crosses in the order in which the kernels write their features."""
    lists = {field.name for field in spec.all_fields if field.several}
    parts = [(field.name, field.several) for field in spec.all_fields]
    parts += [(cross.name, not lists.isdisjoint(cross.of)) for cross in spec.crosses]
    return [name for name, several in parts if not several] + [name for name, several in parts if several]


def most_of_lists(plan: ListCrossPlan, bounds: NDArray[np.int64]) -> NDArray[np.float64]:
    """The most features that each row can have from the lists with these `bounds` and from their crosses.

    float64[rows], as an int64 may be too small.
    """
    sizes = np.diff(bounds).astype(np.float64)
    most: NDArray[np.float64] = sizes.sum(axis=0)
    for first, last in zip(plan.starts[:-1].tolist(), plan.starts[1:].tolist(), strict=True):
        combinations = np.ones_like(most)
        for i in range(first, last):
            if plan.parts[i] < 0:
                # Combinations of k of n values: n / 1 * (n - 1) / 2 * ...; here, the last factor comes first.
                choices = sizes[-1 - plan.parts[i]] - plan.behind[i]
                combinations *= np.maximum(choices, 0) / (plan.behind[i] + 1)
        most += combinations
    return most
