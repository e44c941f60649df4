"""`times_of`: a column of text as times."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.spec import UNIX, UNIX_MS, is_number, parts_of
from ctr.features.text import time_kernels as kernels
from ctr.features.text.column_kernels import TextColumn

_UNITS = {UNIX: 1e6, UNIX_MS: 1e3}  # microseconds
_PLACES = {"Y": 0, "y": 0, "m": 1, "b": 1, "d": 2, "H": 3, "M": 4, "S": 5, "f": 6, "z": 7}
_EXPECTED = {
    None: "2017-11-06 16:00:00 or 2017-11-06T16:00:00Z (ISO 8601)",
    UNIX: "whole or fractional seconds since 1970 (format: unix)",
    UNIX_MS: "milliseconds since 1970 (format: unix_ms)",
}


class Times(NamedTuple):
    """A column of times."""

    values: NDArray[np.int64]
    """int64[rows]: microseconds since 1970, in UTC; undefined where `present` is not set."""
    present: NDArray[np.bool_]
    """bool[rows]: whether there is a time."""
    problem: NDArray[np.uint8]
    """uint8[rows]: `RowStatus.TIME` where the text is not a time and not missing, else 0."""


def times_of(column: TextColumn, time_format: str | None) -> Times:
    """The times in a column.

    `time_format`: None for ISO 8601, `unix`, `unix_ms`, or directives that `parts_of` accepts.
    """
    rows = column[1].size
    times = Times(np.zeros(rows, np.int64), np.zeros(rows, np.bool_), np.zeros(rows, np.uint8))
    kernels.parse_times(column, *_program(time_format), *times)
    return times


def expected_time(time_format: str | None) -> str:
    """What a valid time looks like, for a message."""
    return _EXPECTED.get(time_format) or f"a time of the format {time_format}"


@lru_cache(maxsize=64)
def _program(time_format: str | None) -> tuple[int, float, NDArray[np.uint8]]:
    """A format as the arguments `kind`, `unit` and `program` of `parse_times`."""
    if time_format is None or time_format in _UNITS:
        kind = kernels.ISO if time_format is None else kernels.NUMERIC
        return kind, _UNITS.get(time_format or "", 1.0), np.empty((0, 3), np.uint8)
    program: list[tuple[int, int, int]] = []
    parts = parts_of(time_format)
    for i, part in enumerate(parts):
        if part[0] != "%" or part == "%":
            program += [(kernels.LITERAL, byte, 0) for byte in part.encode()]
            continue
        # Beside another number, without a separator, a number that lacks a digit would shift the others.
        alone = not any(is_number(other) for other in (*parts[max(i - 1, 0) : i], *parts[i + 1 : i + 2]))
        program.append((kernels.FREE if alone else kernels.PADDED, ord(part[1]), _PLACES[part[1]]))
    return kernels.WRITTEN, 1.0, np.array(program, np.uint8)
