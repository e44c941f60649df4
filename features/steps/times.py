"""From columns of times to buckets: hours and days in a time zone, and ages."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from ctr.features.columns import Arrays, Buckets, Column
from ctr.features.spec import TimeField
from ctr.features.steps.time_step_kernels import BAD_SINCE, DAY, HOUR, HOUR_OF_WEEK, WEEKDAY, bucket_times
from ctr.features.text import Times

_BY = {"hour": HOUR, "weekday": WEEKDAY, "hour_of_week": HOUR_OF_WEEK, "day": DAY}
_DAY_US = 86_400_000_000
_DAY_S = 86_400
_END = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp())


def buckets_of_times(field: TimeField, column: Column, seed: int, learnt: Arrays) -> Buckets:
    """The bucket of each time."""
    times = column.times(field.format)
    if field.transform == "age_days":
        return _ages(field, column, times)
    buckets = np.zeros(len(column), np.int64)
    bucket_times(times.values, times.present, _BY[field.transform], *zone_of(field.zone), buckets)
    return Buckets(buckets.view(np.uint64), times.present, times.problem)


def _ages(field: TimeField, column: Column, times: Times) -> Buckets:
    """The days from one time to the other, rounded down; missing where one of the times is."""
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
    return Buckets(days.astype(np.int64).view(np.uint64), present, problem)


class Zone(NamedTuple):
    """A time zone: from `begins[i]` on, local time is `offsets[i]` ahead of UTC."""

    begins: NDArray[np.int64]
    """int64[k]: seconds since 1970, ascending; the first is before all times."""
    offsets: NDArray[np.int64]
    """int64[k]: seconds."""


@lru_cache(maxsize=32)
def zone_of(name: str | None) -> Zone:
    """The time zone of this name in the machine's time zone database; None: UTC.

    Changes before 1970 and after 2099 are left out: the first and the last offset of these years apply.
    """
    begins, offsets = [np.iinfo(np.int64).min], [0]
    if name is not None:
        zone = ZoneInfo(name)
        offsets = [_offset(zone, 0)]
        for second in range(0, _END, _DAY_S):
            if (offset := _offset(zone, second + _DAY_S)) != offsets[-1]:
                begins.append(_change(zone, second, second + _DAY_S))
                offsets.append(offset)
    return Zone(np.array(begins, np.int64), np.array(offsets, np.int64))


def _offset(zone: ZoneInfo, second: int) -> int:
    offset = datetime.fromtimestamp(second, zone).utcoffset()
    assert offset is not None
    return offset.days * _DAY_S + offset.seconds


def _change(zone: ZoneInfo, before: int, after: int) -> int:
    """The first second with the offset of `after`; the offset changes once between the two."""
    offset = _offset(zone, after)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(zone, middle) == offset:
            after = middle
        else:
            before = middle
    return after
