"""Differences between two models: their weights side by side, and their feature specs in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from ctr.errors import DataError, named
from ctr.features import FeatureSpec
from ctr.features.spec import learnt_of

Keys = NDArray[np.int64] | NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """Two models' weights side by side."""

    compared_by: Literal["slot", "feature"]
    """Weights are matched by slot or, if the models hash differently, by text."""
    rows: pa.Table
    """Columns: `feature`, `before` and `after` (float32, null if a model has no such weight), `change` (null
    counts as 0) and, if compared by slot, `slot`."""
    left_out: tuple[int, int]
    """The number of weights of each model without a text, if weights are compared by text."""

    @property
    def both(self) -> pa.Table:
        """The weights that both models have, the largest change first."""
        in_both = compute.and_(compute.is_valid(self.rows["before"]), compute.is_valid(self.rows["after"]))
        return _by_change(self.rows.filter(in_both))

    @property
    def gained(self) -> pa.Table:
        """The weights that only the second model has, the largest first."""
        return _by_change(self.rows.filter(compute.is_null(self.rows["before"])))

    @property
    def lost(self) -> pa.Table:
        """The weights that only the first model has, the largest first."""
        return _by_change(self.rows.filter(compute.is_null(self.rows["after"])))

    @property
    def correlation(self) -> float:
        """Pearson's correlation of the weights that both models have; NaN if it is undefined."""
        both = self.both
        before, after = (both[name].to_numpy().astype(np.float64) for name in ("before", "after"))
        if before.size < 2 or not before.std() or not after.std():
            return nan
        return float(np.corrcoef(before, after)[0, 1])

    def to_json(self, rows: int) -> dict[str, Any]:
        """The difference as JSON, with at most `rows` weights of each kind."""
        both, gained, lost = self.both, self.gained, self.lost
        correlation = self.correlation
        return {
            "compared_by": self.compared_by,
            "in_both": both.num_rows,
            "gained": gained.num_rows,
            "lost": lost.num_rows,
            "left_out": list(self.left_out),
            "correlation": None if isnan(correlation) else correlation,
            "largest_changes": both.slice(0, rows).to_pylist(),
            "largest_gained": gained.slice(0, rows).to_pylist(),
            "largest_lost": lost.slice(0, rows).to_pylist(),
        }


def difference(first: pa.Table, second: pa.Table, *, by_slot: bool) -> WeightDifference:
    """The difference of two tables of `weight_table`, by slot, or by the texts of features.

    Raises DataError for a comparison by texts if one of the tables has none, except for the bias.
    """
    left_out = 0, 0
    if not by_slot:
        with_texts = [each.filter(compute.is_valid(each["feature"])) for each in (first, second)]
        if any(each.num_rows < 2 for each in with_texts):
            raise DataError(
                "the models hash to different slots, and not both have texts of features, so their weights "
                f"cannot be compared; {named('values')} names the features of raw rows."
            )
        left_out = first.num_rows - with_texts[0].num_rows, second.num_rows - with_texts[1].num_rows
        first, second = with_texts
    keys = [each["slot" if by_slot else "feature"].combine_chunks() for each in (first, second)]
    union = compute.unique(pa.concat_arrays(keys))
    union = union.take(compute.sort_indices(union))
    before, after = (
        _at(union, table_keys, each["weight"]) for table_keys, each in zip(keys, (first, second), strict=True)
    )
    change = compute.subtract(compute.fill_null(after, 0.0), compute.fill_null(before, 0.0))
    columns = {"before": before, "after": after, "change": change}
    if by_slot:
        texts = [
            _at(union, table_keys, each["feature"])
            for table_keys, each in zip(keys, (first, second), strict=True)
        ]
        columns = {"slot": union, "feature": compute.coalesce(*texts), **columns}
    else:
        columns = {"feature": union, **columns}
    return WeightDifference("slot" if by_slot else "feature", pa.table(columns), left_out)


def same_slots(first: FeatureSpec, second: FeatureSpec) -> bool:
    """True if each feature has the same slot under both specs."""
    return (first.bits, first.seed) == (second.bits, second.seed)


def _at(union: pa.Array, keys: pa.Array, column: pa.ChunkedArray) -> pa.Array:
    """The values of `column`, whose rows have `keys`, for all of `union`; null for missing keys."""
    return column.combine_chunks().take(compute.index_in(union, value_set=keys))


def _by_change(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(np.argsort(-np.abs(rows["change"].to_numpy()), kind="stable")))


_ENTRIES = ("label", "weight", "bits", "seed", "bias", "most_features")


def spec_changes(first: FeatureSpec, second: FeatureSpec) -> list[str]:
    """A line for each difference between the specs that affects features."""
    one, other = first.model_dump(mode="json"), second.model_dump(mode="json")
    lines = [f"{key}: {one[key]} -> {other[key]}" for key in _ENTRIES if one[key] != other[key]]
    for kind, singular in (("fields", "field"), ("windows", "window"), ("crosses", "cross")):
        lines += _of_named(singular, _named(one[kind]), _named(other[kind]))
    lines += [
        f"scale of {name!r}: {before:g} -> {after:g}"
        for name in dict.fromkeys([*first.scales, *second.scales])
        if (before := first.scales.get(name, 1)) != (after := second.scales.get(name, 1))
    ]
    if not lines and first.fingerprint != second.fingerprint:
        learnt = learnt_of(first) or learnt_of(second)
        lines.append("what its steps have learnt from data" if learnt else "the way rows are read")
    return lines


def _named(parts: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {part["name"]: part for part in parts}


def _of_named(kind: str, one: Mapping[str, dict[str, Any]], other: Mapping[str, dict[str, Any]]) -> list[str]:
    lines = [f"{kind} {name!r} is only in the first" for name in one if name not in other]
    lines += [f"{kind} {name!r} is only in the second" for name in other if name not in one]
    for name, part in one.items():
        after = other.get(name, part)
        keys = [key for key in {**part, **after} if part.get(key) != after.get(key)]
        lines += [f"{kind} {name!r}, {key}: {part.get(key)} -> {after.get(key)}" for key in keys]
    return lines
