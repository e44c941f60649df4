"""What fields of times make of a column: hours, days and ages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.columns import Arrays, Column, Words
from ctr.features.spec import TimeField
from ctr.features.steps.time_step_kernels import BAD_SINCE, DAY, HOUR, HOUR_OF_WEEK, WEEKDAY, bucket_times
from ctr.features.steps.time_zones import zone_of
from ctr.features.text import Times

_BY = {"hour": HOUR, "weekday": WEEKDAY, "hour_of_week": HOUR_OF_WEEK, "day": DAY}
_DAY_US = 86_400_000_000


def words_of_times(field: TimeField, column: Column, seed: int, learnt: Arrays) -> Words:
    """The bucket of each time."""
    times = column.times(field.format)
    if field.transform == "age_days":
        return _ages(field, column, times)
    buckets = np.zeros(len(column), np.int64)
    bucket_times(times.values, times.present, _BY[field.transform], *zone_of(field.zone), buckets)
    return Words(buckets.view(np.uint64), times.present, times.problem)


def _ages(field: TimeField, column: Column, times: Times) -> Words:
    """The whole days, rounded down, from one time to the other; missing where one of them is."""
    values, present, problem = times
    if field.since_column is None:
        since: NDArray[np.int64] | int = field.since_us
    else:
        assert column.beside is not None
        other = column.beside[field.since_column].times(field.format)
        since, present = other.values, present & other.present
        problem = np.where((problem == 0) & (other.problem != 0), np.uint8(BAD_SINCE), problem)
    days = (values - since) // _DAY_US
    if field.edges:
        days = np.searchsorted(np.array(field.edges), days, side="right")
    return Words(days.astype(np.int64).view(np.uint64), present, problem)
