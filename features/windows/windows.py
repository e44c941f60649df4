"""`Windows`: the earlier rows that the windows of a spec remember, and the features that they give a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.columns import Buckets, Columns
from ctr.features.spec import FeatureSpec, Window
from ctr.features.text import Cells, RowStatus
from ctr.features.transform import History, seed_of
from ctr.features.windows.row_kernels import NO_KEY, WindowRows, hash_key_part, read_clicks
from ctr.features.windows.table import WindowTable, layout_of


class ServedHistory(History, Protocol):
    """A history to which events are added while it serves; see `Windows`."""

    def take_in(self, cells: Cells, columns: Sequence[str], until: int | None = None) -> int:
        """Adds rows whose clicks are not known yet; returns how many count."""

    def add_clicks(self, cells: Cells, columns: Sequence[str]) -> int:
        """Adds clicks on such rows; returns how many count."""


def rows_of_windows(
    spec: FeatureSpec, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice
) -> Iterator[WindowRows]:
    """What each window of the spec reads of these rows of `cells`."""
    # Windows see all rows of a source, chosen or not.
    status = np.where(status == RowStatus.ELSEWHERE, np.uint8(0), status)
    read, label = Columns(cells, status, rows, columns), spec.label or ""
    for window in spec.windows:
        keys = _keys(read, window, spec)
        clicks = np.zeros(keys.size, np.int8)
        if label in columns:
            read_clicks(read[label].text, clicks)
        yield WindowRows(keys, *read[window.time].times(window.format), clicks)


class Windows:
    """The rows added so far, as far back as the windows of `spec` look.

    Threads may share it; each call sees the rows of other calls completely or not at all.
    """

    def __init__(self, spec: FeatureSpec, tables: Sequence[WindowTable] | None = None) -> None:
        """With the rows in `tables`, one for each window; None: no rows."""
        self.spec = spec
        self.tables = tables or [WindowTable(layout_of(window)) for window in spec.windows]
        self._lock = Lock()

    def copy(self) -> Windows:
        """An independent copy."""
        other = Windows(self.spec)
        for k in range(len(self.tables)):
            other.restore(k, self.arrays(k))
        return other

    def buckets(
        self, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice, *, take_in: bool
    ) -> list[Buckets]:
        """The features of these rows of `cells`, in the order of the spec's window fields.

        They depend on the rows added before. With `take_in`, each row is added after its features are known,
        with its label if `columns` has it, and so counts for later rows. Bad rows are skipped; a row that is
        earlier than the slack allows has the problem `RowStatus.LATE`.
        """
        features: list[Buckets] = []
        with self._lock:
            rows_by_window = rows_of_windows(self.spec, cells, status, columns, rows)
            for of_window, table in zip(rows_by_window, self.tables, strict=True):
                buckets, present, late = table.features(of_window, take_in=take_in)
                problem = np.where(late, np.uint8(RowStatus.LATE), of_window.problem)
                features += [Buckets(*of_field, problem) for of_field in zip(buckets, present, strict=True)]
        return features

    def take_in(self, cells: Cells, columns: Sequence[str], until: int | None = None) -> int:
        """Adds rows whose clicks are not known yet; returns how many have a key and a time for some window.

        Adds all or none. Raises DataError if a time is invalid, later than `until` (in microseconds since
        1970), or earlier than a row before it by more than the slack.
        """
        counted = np.zeros(len(cells), np.bool_)
        with self._lock:
            rows_by_window = list(self._all_rows(cells, columns))
            for window, table, rows in zip(self.spec.windows, self.tables, rows_by_window, strict=True):
                row, problem = _unsound(window, table, rows, until)
                if problem:
                    text = cells.text(row, columns.index(window.time))
                    raise DataError(f"rows[{row}].{window.time}: {text!r} {problem}.")
            for table, rows in zip(self.tables, rows_by_window, strict=True):
                counted |= (rows.keys != NO_KEY) & rows.timed
                table.features(rows._replace(clicks=np.zeros_like(rows.clicks)), take_in=True)
        return int(np.count_nonzero(counted))

    def add_clicks(self, cells: Cells, columns: Sequence[str]) -> int:
        """Adds clicks to rows that were added without; returns how many of them have a known key."""
        added = 0
        with self._lock:
            rows_by_window = self._all_rows(cells, columns)
            for window, table, rows in zip(self.spec.windows, self.tables, rows_by_window, strict=True):
                if window.with_clicks:
                    added = max(added, table.add_clicks(rows))
        return added

    def _all_rows(self, cells: Cells, columns: Sequence[str]) -> Iterator[WindowRows]:
        return rows_of_windows(self.spec, cells, np.zeros(len(cells), np.uint8), columns, slice(None))

    def keys_in(
        self, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice
    ) -> list[NDArray[np.uint64]]:
        """The distinct keys of rows, for each window: uint64[k]."""
        read = Columns(cells, status, rows, columns)
        keys_by_window = [np.unique(_keys(read, window, self.spec)) for window in self.spec.windows]
        return [keys[keys != NO_KEY] for keys in keys_by_window]

    def arrays(self, k: int) -> dict[str, NDArray[Any]]:
        """The content of window number `k`; `restore` reads it back."""
        with self._lock:
            return self.tables[k].arrays()

    def restore(self, k: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replaces the content of that window. Raises ValueError for arrays of another window."""
        with self._lock:
            self.tables[k].restore(arrays)

    @property
    def keys(self) -> int:
        """The number of keys of all windows together."""
        return sum(table.keys for table in self.tables)

    @property
    def bytes(self) -> int:
        """How much memory they take."""
        return sum(table.bytes for table in self.tables)


def _keys(read: Columns, window: Window, spec: FeatureSpec) -> NDArray[np.uint64]:
    """uint64[rows]; NO_KEY if a part of the key is missing."""
    keys = np.full(len(read[window.key[0]]), max(seed_of(window.name, spec), 1), np.uint64)
    for name in window.key:
        hash_key_part(read[name].text, keys)
    return keys


def _unsound(window: Window, table: WindowTable, rows: WindowRows, until: int | None) -> tuple[int, str]:
    """The first row whose time is not acceptable, and why; an empty reason if all rows can be added."""
    latest = np.where(rows.timed, rows.times, np.iinfo(np.int64).min)
    before = np.maximum(np.maximum.accumulate(latest), table.end)
    late = rows.timed & (rows.times < before - table.layout.numbers.slack)
    ahead = rows.timed & (rows.times > (until or np.iinfo(np.int64).max))
    for bad, problem in (
        (rows.problem != 0, "is not a time; write it as the training data has it"),
        (ahead, "is later than the server's clock says; send events when they have happened"),
        (
            late,
            f"is earlier than an event before it by more than {window.slack}, the slack of window"
            f" {window.name!r}; send events in the order of time, or raise that slack in the spec",
        ),
    ):
        if bad.any():
            return int(np.flatnonzero(bad)[0]), problem
    return 0, ""
