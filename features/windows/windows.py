"""`Windows`: the earlier rows that the windows of a spec keep, and the features they give a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.columns import Buckets, Columns
from ctr.features.spec import FeatureSpec, Window
from ctr.features.text import Cells, RowStatus, Times
from ctr.features.transform import History, seed_of
from ctr.features.windows.pass_kernels import add_clicks, look, pass_by
from ctr.features.windows.row_kernels import NO_KEY, UNKNOWN, hash_key_part, read_clicks
from ctr.features.windows.table import WindowTable, layout_of


class ServedHistory(History, Protocol):
    """A history of rows to which events are added; see `Windows`."""

    def take_in(self, cells: Cells, columns: Sequence[str], until: int | None = None) -> int:
        """Adds rows whose clicks are not known yet; returns how many count."""

    def add_clicks(self, cells: Cells, columns: Sequence[str]) -> int:
        """Adds clicks on such rows; returns how many count."""


class WindowRows(NamedTuple):
    """What a window reads of rows."""

    keys: NDArray[np.uint64]
    """uint64[rows]; NO_KEY where a part of it is missing."""
    times: Times
    clicks: NDArray[np.int8]
    """int8[rows]: 1 for a click, 0 for none, UNKNOWN where the label is none of both."""

    @property
    def counts(self) -> NDArray[np.bool_]:
        """bool[rows]: those with a time that are sound; they count if they have a key, too."""
        known: NDArray[np.bool_] = self.clicks != UNKNOWN
        return self.times.present & known


def rows_of_windows(
    spec: FeatureSpec, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice
) -> Iterator[WindowRows]:
    """What each window of the spec reads of these rows of `cells`."""
    # Windows see rows of a source, chosen or not.
    status = np.where(status == RowStatus.ELSEWHERE, np.uint8(0), status)
    read, label = Columns(cells, status, rows, columns), spec.label or ""
    for window in spec.windows:
        keys, times = _keys(read, window, seed_of(window.name, spec)), _times(read, window)
        clicks = np.zeros(keys.size, np.int8)
        if label in columns:
            read_clicks(read[label].text, clicks)
        yield WindowRows(keys, times, clicks)


class Windows:
    """The rows added so far, as far as the windows of `spec` look back.

    Any number of threads may use it; each call sees the rows of others completely or not at all.
    """

    def __init__(self, spec: FeatureSpec, tables: Sequence[WindowTable] | None = None) -> None:
        """With the rows in `tables`, one for each window; None: no rows."""
        self.spec = spec
        self.tables = tables or [WindowTable(layout_of(window)) for window in spec.windows]
        self._seeds = [seed_of(window.name, spec) for window in spec.windows]
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

        They depend on the rows added before. With `take_in`, each row is added once its features are known,
        with its label if `columns` has that, and so counts for the rows after it. Bad rows are left out; a
        row that is earlier than the slack allows has `RowStatus.LATE` as its problem.
        """
        features: list[Buckets] = []
        read = rows_of_windows(self.spec, cells, status, columns, rows)
        with self._lock:
            for window, table, (keys, times, clicks) in zip(
                self.spec.windows, self.tables, read, strict=True
            ):
                buckets = np.zeros((len(window.fields), keys.size), np.uint64)
                present = np.zeros(buckets.shape, np.bool_)
                if take_in:
                    late = np.zeros(keys.size, np.bool_)
                    pass_by(
                        table.layout, table.ready(keys.size), keys, times.values, times.present, clicks,
                        buckets, present, late,
                    )  # fmt: skip
                else:
                    look(table.layout, table.records, keys, times.values, times.present, buckets, present)
                    late = times.present & (times.values < table.end - table.layout.numbers.slack)
                problem = np.where(late, np.uint8(RowStatus.LATE), times.problem)
                features += [Buckets(buckets[f], present[f], problem) for f in range(buckets.shape[0])]
        return features

    def take_in(self, cells: Cells, columns: Sequence[str], until: int | None = None) -> int:
        """Adds rows whose clicks are not known yet; returns how many have a key and a time for a window.

        All are added, or none. Raises DataError when a time is invalid, later than `until`, in microseconds
        since 1970, or earlier than a row before it by more than the slack.
        """
        read = Columns(cells, np.zeros(len(cells), np.uint8), slice(None), columns)
        counted = np.zeros(len(cells), np.bool_)
        with self._lock:
            for window, table in zip(self.spec.windows, self.tables, strict=True):
                self._require_sound(read, window, table, until)
            for window, table, seed in zip(self.spec.windows, self.tables, self._seeds, strict=True):
                keys, times = _keys(read, window, seed), _times(read, window)
                counted |= (keys != NO_KEY) & times.present
                shape = (len(window.fields), keys.size)
                pass_by(
                    table.layout, table.ready(keys.size), keys, times.values, times.present,
                    np.zeros(keys.size, np.int8), np.empty(shape, np.uint64), np.zeros(shape, np.bool_),
                    np.zeros(keys.size, np.bool_),
                )  # fmt: skip
        return int(np.count_nonzero(counted))

    def _require_sound(self, read: Columns, window: Window, table: WindowTable, until: int | None) -> None:
        """Raise DataError for the first row whose time does not allow to add it."""
        times = _times(read, window)
        latest = np.where(times.present, times.values, np.iinfo(np.int64).min)
        before = np.maximum.accumulate(latest) if table.latest is None else np.maximum(
            np.maximum.accumulate(latest), table.latest
        )  # fmt: skip
        late = times.present & (times.values < before - table.layout.numbers.slack)
        ahead = times.present & (times.values > (until or np.iinfo(np.int64).max))
        for bad, problem in (
            (times.problem != 0, "is not a time; write it as the training data has it"),
            (ahead, "is later than the server's clock says; send events when they have happened"),
            (
                late,
                f"is earlier than an event before it by more than {window.slack}, the slack of window"
                f" {window.name!r}; send events in the order of time, or raise that slack in the spec",
            ),
        ):
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                raise DataError(f"rows[{row}].{window.time}: {read[window.time].shown(row)!r} {problem}.")

    def add_clicks(self, cells: Cells, columns: Sequence[str]) -> int:
        """Adds clicks to rows that were added without; returns how many of them have a known key."""
        read = Columns(cells, np.zeros(len(cells), np.uint8), slice(None), columns)
        added = 0
        with self._lock:
            for window, table, seed in zip(self.spec.windows, self.tables, self._seeds, strict=True):
                if window.with_clicks:
                    keys, times = _keys(read, window, seed), _times(read, window)
                    records = table.ready(keys.size)
                    added = max(added, add_clicks(table.layout, records, keys, times.values, times.present))
        return added

    def keys_in(
        self, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice
    ) -> list[NDArray[np.uint64]]:
        """The keys of rows, each once, for each window: uint64[k]."""
        read = Columns(cells, status, rows, columns)
        keys_by_window = [
            np.unique(_keys(read, window, seed))
            for window, seed in zip(self.spec.windows, self._seeds, strict=True)
        ]
        return [keys[keys != NO_KEY] for keys in keys_by_window]

    def arrays(self, k: int) -> dict[str, NDArray[Any]]:
        """The content of the window numbered `k`; `restore` reads it back."""
        with self._lock:
            return self.tables[k].arrays()

    def restore(self, k: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the content of that window. Raises ValueError for arrays of another window."""
        with self._lock:
            self.tables[k].restore(arrays)

    @property
    def keys(self) -> int:
        """How many keys all windows together have."""
        return sum(table.keys for table in self.tables)

    @property
    def bytes(self) -> int:
        """How much memory they take."""
        return sum(table.bytes for table in self.tables)


def _keys(read: Columns, window: Window, seed: int) -> NDArray[np.uint64]:
    """uint64[rows]; NO_KEY where a part of it is missing."""
    keys = np.full(len(read[window.time]), max(seed, 1), np.uint64)
    for name in window.key:
        hash_key_part(read[name].text, keys)
    return keys


def _times(read: Columns, window: Window) -> Times:
    """Those of the rows."""
    return read[window.time].times(window.format)
