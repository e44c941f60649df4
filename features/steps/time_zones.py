"""`zone_of`: the offsets of a time zone from UTC, as a table that kernels read."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

_DAY_S = 86_400
_END = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp())


class Zone(NamedTuple):
    """Local time is so many seconds ahead of UTC from so many seconds since 1970 on."""

    begins: NDArray[np.int64]
    """int64[k], ascending; the first is before all times."""
    offsets: NDArray[np.int64]
    """int64[k], the seconds."""


@lru_cache(maxsize=32)
def zone_of(name: str | None) -> Zone:
    """The time zone of this name, as this machine's time zone database has it; None: UTC.

    What changes before 1970 and after 2099 is not in it: the offsets of their first and last moments stay.
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
    """The first second at which the offset is that of `after`, where it changes once in between."""
    wanted = _offset(zone, after)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(zone, middle) == wanted:
            after = middle
        else:
            before = middle
    return after
