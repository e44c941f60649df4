"""What fields of numbers learn in a first pass: the scaling of `zscore` and `minmax`, or quantiles."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.columns import Arrays, Column
from ctr.features.spec import NumberField, column_of
from ctr.features.steps.moments import Moments
from ctr.features.steps.numbers import after_steps
from ctr.features.steps.quantile_sketch import QuantileSketch


def fit_of_numbers(field: NumberField) -> ScalingFit | QuantilesFit:
    """A new first pass for a field that learns."""
    return QuantilesFit(field) if field.transform == "quantiles" else ScalingFit(field)


class ScalingFit:
    """Mean and standard deviation, or smallest value and range, of the numbers that reach the learning step.

    The variance is divided by the count of the numbers, as in scikit-learn's StandardScaler.
    """

    def __init__(self, field: NumberField) -> None:
        self._field = field
        self._moments = Moments()

    def prepared(self, column: Column) -> NDArray[np.float64]:
        """The numbers that are present, after the steps before the learning one."""
        return _numbers_of(self._field, column, self._field.learnt_step)

    def add(self, numbers: NDArray[np.float64]) -> None:
        self._moments.add(numbers)

    def merge(self, other: ScalingFit) -> None:
        """See `Fit`."""
        self._moments.merge(other._moments)

    def learnt(self) -> Arrays:
        low, high = self._moments.smallest, self._moments.largest
        step = self._field.steps[self._field.learnt_step or 0]
        _require_several(self._field, step, self._moments.count, low, high)
        mean, deviation = self._moments.mean_and_deviation()
        spread = deviation if step == "zscore" else high - low
        if not 0 < spread < math.inf:
            raise DataError(
                f"{_place(self._field)}: the numbers lie from {low:g} to {high:g}, too far apart or too close"
                f" for `{step}` to divide by their spread; put a step such as `log` or clip before it."
            )
        return {"scaling": np.array([mean if step == "zscore" else low, spread])}


class QuantilesFit:
    """The edges of buckets that have equally many numbers each, estimated by a `QuantileSketch`."""

    def __init__(self, field: NumberField, before: int = 0) -> None:
        """`before`: how many earlier numbers are added to other fits."""
        self._field = field
        self._sketch = QuantileSketch(before)

    def prepared(self, column: Column) -> NDArray[np.float64]:
        """The numbers that are present, after all steps."""
        return _numbers_of(self._field, column)

    def add(self, numbers: NDArray[np.float64]) -> None:
        self._sketch.add(numbers)

    @property
    def count(self) -> int:
        """How many numbers were added."""
        return self._sketch.count

    def after(self, before: int) -> QuantilesFit:
        """A new fit for the same field, whose numbers follow `before` others."""
        return QuantilesFit(self._field, before)

    def merge(self, other: QuantilesFit) -> None:
        """See `Fit`; `other` was created with `before`."""
        self._sketch.merge(other._sketch)

    def learnt(self) -> Arrays:
        field, sketch, buckets = self._field, self._sketch, self._field.buckets or 0
        _require_several(field, "transform: quantiles", sketch.count, sketch.smallest, sketch.largest)
        ranks = np.array([sketch.count * i // buckets for i in range(1, buckets)], np.int64)
        quantiles = sketch.values_at(ranks)
        edges = np.unique(quantiles)
        edges = edges[edges > sketch.smallest]  # nothing is below the smallest value
        if edges.size < quantiles.size and field.duplicates is None:
            values, times = np.unique(quantiles, return_counts=True)
            most = float(values[np.argmax(times)])
            raise DataError(
                f"{_place(field)}: {buckets} quantiles of {sketch.count:,} numbers coincide, most often at"
                f" {most:g}, so that only {edges.size + 1} buckets would differ; ask for fewer `buckets`, or"
                f" let those that coincide be one with `duplicates: drop`."
            )
        if not edges.size:
            edges = np.array([np.nextafter(sketch.smallest, math.inf)])  # one bucket for the smallest value
        return {"edges": edges}


def _numbers_of(field: NumberField, column: Column, stop: int | None = None) -> NDArray[np.float64]:
    """The numbers of a column after the first `stop` steps, or all, with the constant for missing ones."""
    present = _present_after(field, column, stop)
    if field.constant is None:
        return present
    numbers = column.numbers
    missing = np.count_nonzero((column.status == 0) & (numbers.problem == 0) & ~numbers.present)
    constant = _present_after(field, Column.of(field.constant), stop)
    return np.concatenate([present, np.repeat(constant, missing)])


def _present_after(field: NumberField, column: Column, stop: int | None) -> NDArray[np.float64]:
    values, present, _ = column.numbers
    return after_steps(field, values, present, {}, stop)[present]


def _require_several(field: NumberField, what: str, count: int, low: float, high: float) -> None:
    """Raises DataError unless there are two distinct numbers."""
    if count == 0:
        raise DataError(
            f"{_place(field)}: there is no number to learn from; see whether its column is right, or leave"
            f" the field out."
        )
    if low == high:
        raise DataError(
            f"{_place(field)}: `{what}` needs at least two distinct numbers, and all {count:,} are {low:g};"
            f" leave the field out, or give it another transform."
        )


def _place(field: NumberField) -> str:
    return f"field {field.name!r} (column {column_of(field)!r})"
