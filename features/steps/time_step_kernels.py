"""The buckets of times: hours and days in a time zone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.row_status import RowStatus
from ctr.jit import njit

BAD_SINCE = RowStatus.SINCE.value

HOUR, WEEKDAY, HOUR_OF_WEEK, DAY = range(4)

_SECOND_US = 1_000_000
_DAY_S, _HOUR_S = 86_400, 3_600
_THURSDAY = 3  # 1970-01-01 was one


@njit(nogil=True, cache=True)
def bucket_times(
    micros: NDArray[np.int64],
    present: NDArray[np.bool_],
    by: int,
    begins: NDArray[np.int64],
    offsets: NDArray[np.int64],
    buckets: NDArray[np.int64],
) -> None:
    """Writes the bucket of each time that is present.

    `by` is HOUR, WEEKDAY, HOUR_OF_WEEK or DAY (of the month). From `begins[j]` seconds since 1970 on, local
    time is `offsets[j]` seconds ahead of UTC (both int64[k]; `begins[0]` is before all times).
    """
    last = begins.size - 1
    at = last
    for i in range(micros.size):
        if not present[i]:
            continue
        second = micros[i] // _SECOND_US
        # Consecutive times mostly have the same offset.
        if second < begins[at] or (at < last and second >= begins[at + 1]):
            at = np.searchsorted(begins, second, side="right") - 1
        local = second + offsets[at]
        day = local // _DAY_S
        hour = (local - day * _DAY_S) // _HOUR_S
        weekday = (day + _THURSDAY) % 7
        if by == HOUR:
            buckets[i] = hour
        elif by == WEEKDAY:
            buckets[i] = weekday
        elif by == HOUR_OF_WEEK:
            buckets[i] = 24 * weekday + hour
        else:
            buckets[i] = _day_of_month(day)


@njit(nogil=True, cache=True)
def _day_of_month(day: np.int64) -> np.int64:
    """Of a day since 1970-01-01 (Hinnant 2013, "chrono-compatible low-level date algorithms")."""
    of_era = (day + 719_468) % 146_097
    of_era_year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * of_era_year + of_era_year // 4 - of_era_year // 100)
    return of_year - (153 * ((5 * of_year + 2) // 153) + 2) // 5 + 1
