"""`time_order`: whether rows are in the order of their times, with advice if they are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ctr.features.block import Block
from ctr.features.columns import Columns
from ctr.features.inputs import InputFile
from ctr.features.readers import RawFiles
from ctr.features.spec import SERVED, FeatureSpec, TimeField, Window, column_of, microseconds
from ctr.features.text import Times

_NEARLY = 0.01  # of the period from the first time to the last: too little to matter for a hold-out
_SECOND_US = 1_000_000


@dataclass(slots=True)
class TimeOrder:
    """The order of the times in a column, among the rows that have one."""

    column: str
    format: str | None
    read_by: list[str]
    """The fields and windows that read it."""
    rows: int
    """How many rows have a time."""
    back: int
    """How many of them are earlier than a row before them."""
    furthest_back_s: float
    """By how many seconds at most."""
    first: str | None
    """The earliest time, in ISO 8601 and UTC; None without any."""
    last: str | None
    """The latest time."""
    period_s: float
    """Seconds from the earliest time to the latest."""
    warnings: list[str] = field(default_factory=list)

    @property
    def in_order(self) -> bool:
        """Whether no row is earlier than a row before it."""
        return self.back == 0


def time_order(spec: FeatureSpec, files: Sequence[InputFile], rows: int) -> list[TimeOrder]:
    """The order of the first `rows` rows by each column that time fields and windows of `spec` read.

    Raises DataError as reading does. Rows without a valid time are ignored.
    """
    passes: dict[tuple[str, str | None], _Pass] = {}
    for each in spec.fields:
        if isinstance(each, TimeField):
            passes.setdefault((column_of(each), each.format), _Pass([], {})).read_by.append(each.name)
    served = bool(spec.windows) and RawFiles(files, spec).any_has(SERVED)
    for window in spec.windows:
        pass_ = passes.setdefault((window.time, window.format), _Pass([], {}))
        pass_.read_by.append(window.name)
        if not served:  # otherwise, rows need no order
            pass_.late[window] = 0
    if not passes:
        return []
    names = list(dict.fromkeys(column for column, _ in passes))
    for block, count in _first(spec, files, names, rows):
        columns = Columns(block.cells, block.status, slice(0, count), names)
        for (name, time_format), pass_ in passes.items():
            pass_.add(columns[name].times(time_format))
    return _with_advice(spec, [pass_.order(*which) for which, pass_ in passes.items()])


@dataclass(slots=True)
class _Pass:
    """The times of one column in the rows so far, in microseconds since 1970."""

    read_by: list[str]
    late: dict[Window, int]
    """By window, how many rows are late by more than its slack."""
    rows: int = 0
    back: int = 0
    furthest_us: int = 0
    first: int = np.iinfo(np.int64).max
    latest: int = np.iinfo(np.int64).min

    def add(self, times: Times) -> None:
        """Adds the times of the next rows."""
        values = times.values[times.present & (times.problem == 0)]
        if not values.size:
            return
        # No difference overflows: `latest` is at least the first time.
        latest = np.maximum.accumulate(np.maximum(values, self.latest))
        behind = latest - values
        self.rows += values.size
        self.back += int(np.count_nonzero(behind))
        self.furthest_us = max(self.furthest_us, int(behind.max()))
        self.first, self.latest = min(self.first, int(values.min())), int(latest[-1])
        for window in self.late:
            self.late[window] += int(np.count_nonzero(behind > microseconds(window.slack)))

    def order(self, column: str, time_format: str | None) -> TimeOrder:
        """The result for all rows so far."""
        some = self.rows > 0
        return TimeOrder(
            column=column,
            format=time_format,
            read_by=self.read_by,
            rows=self.rows,
            back=self.back,
            furthest_back_s=self.furthest_us / _SECOND_US,
            first=_text(self.first) if some else None,
            last=_text(self.latest) if some else None,
            period_s=(self.latest - self.first) / _SECOND_US if some else 0.0,
            warnings=self._of_windows(column),
        )

    def _of_windows(self, column: str) -> list[str]:
        """A warning per group of windows with the same number of late rows, with the slack that they need."""
        by_count: dict[tuple[int, str], list[Window]] = {}
        for window, late in self.late.items():
            if late:
                by_count.setdefault((late, window.slack), []).append(window)
        enough = f"{-(-self.furthest_us // _SECOND_US)}s"
        warnings = []
        for (late, slack), windows in by_count.items():
            names = ", ".join(repr(window.name) for window in windows)
            of, its = ("window", "its") if len(windows) == 1 else ("windows", "their")
            instead = (
                f", or set slack: {enough}" if all(_may_have(window, enough) for window in windows) else ""
            )
            warnings.append(
                f"{of} {names}: {late:,} of {self.rows:,} rows are earlier than a row before them by"
                f" more than {its} slack, {slack}, and so are bad rows; sort the rows by {column!r}{instead}"
            )
        return warnings


def _may_have(window: Window, slack: str) -> bool:
    """Whether the window may have this slack: all its spans must be longer."""
    try:
        Window.model_validate(window.model_dump() | {"slack": slack})
    except ValueError:
        return False
    return True


def _first(
    spec: FeatureSpec, files: Sequence[InputFile], names: Sequence[str], rows: int
) -> Iterator[tuple[Block, int]]:
    """Blocks with these columns, and how many rows of each are among the first `rows`."""
    for block in RawFiles(files, spec).blocks(names):
        yield block, min(len(block.cells), rows)
        rows -= len(block.cells)
        if rows <= 0:
            return


def _with_advice(spec: FeatureSpec, orders: list[TimeOrder]) -> list[TimeOrder]:
    """Adds a warning about hold-outs to each column, unless rows are nearly in the order of one of them."""
    if spec.windows or any(each.furthest_back_s <= _NEARLY * each.period_s for each in orders if each.rows):
        return orders
    advice = (
        "column {!r}: {:,} of {:,} rows are earlier than a row before them; if it is the time of the rows,"
        " --holdout-fraction would not keep out the latest: sort the rows by it, or keep out a period with"
        " --holdout-where"
    )
    return [
        replace(each, warnings=[*each.warnings, advice.format(each.column, each.back, each.rows)])
        if each.rows
        else each
        for each in orders
    ]


def _text(microseconds_since_1970: int) -> str:
    unit = "us" if microseconds_since_1970 % _SECOND_US else "s"
    return f"{np.datetime64(microseconds_since_1970, 'us').astype(f'datetime64[{unit}]')}Z"
