"""`WindowRecords`: what windows know, key by key as bytes, for whoever keeps it outside of this process."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ctr.features.spec import FeatureSpec
from ctr.features.text import Cells
from ctr.features.windows.ring_kernels import KEY, LAST, LOOKED, TOTALS, Layout
from ctr.features.windows.table import WindowTable, layout_of
from ctr.features.windows.windows import Windows

_ROOM = 16
"""For so many keys there is room in a table at first."""
_AT_A_TIME = 1 << 16
_TIME = struct.Struct("<q")


class WindowRecords:
    """How the records of a spec's windows are written, and read as `Windows` that know some of their keys.

    A record is the time of a key's last row, the sums of a half-life, if any, and the counters (see
    `ring_kernels`), which take a byte each, or four if one is above 255. Its name is two bytes for the
    window, and the key. The totals are of each window the latest time and the record of all keys, with
    counters of four bytes. Whoever has the totals, and the records of all keys of some rows, has `Windows`
    for these rows.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self._layouts = [layout_of(window) for window in spec.windows]
        self._nothing = Windows(spec, [WindowTable(layout, _ROOM) for layout in self._layouts])
        self._forms = [
            _Form(layout, table) for layout, table in zip(self._layouts, self._nothing.tables, strict=True)
        ]

    def names_in(
        self, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice
    ) -> list[bytes]:
        """Of the records that the features of these rows come from, and that they change."""
        return [
            name
            for k, keys in enumerate(self._nothing.keys_in(cells, status, columns, rows))
            for name in _names(k, keys)
        ]

    def forgotten(self, totals: bytes, records: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
        """The names of those records that no row to come finds anything in, as of the time in `totals`.

        It is the time of events: these may pause for any time, and come at any speed.
        """
        oldest, at = [], 0
        for form, layout in zip(self._forms, self._layouts, strict=True):
            (latest,) = _TIME.unpack_from(totals, at)
            oldest.append(latest - int(layout.numbers.expires + layout.numbers.slack))
            at += form.totals_bytes
        return [name for name, value in records if _TIME.unpack_from(value)[0] < oldest[_window_of(name)]]

    def windows(self, totals: bytes, records: Mapping[bytes, bytes]) -> Windows:
        """Windows that know these keys alone. Raises ValueError for what was not written for this spec."""
        spec = self._nothing.spec
        found: list[dict[bytes, bytes]] = [{} for _ in self._forms]
        for name, value in records.items():
            found[_window_of(name)][name] = value
        if len(totals) != sum(form.totals_bytes for form in self._forms):
            raise ValueError("the totals are not those of these windows")
        tables, at = [], 0
        for form, layout, of_window in zip(self._forms, self._layouts, found, strict=True):
            table = WindowTable(layout, _ROOM)
            form.load(table, totals[at : at + form.totals_bytes], of_window)
            at += form.totals_bytes
            tables.append(table)
        return Windows(spec, tables)

    def totals(self, windows: Windows) -> bytes:
        """What is known of all keys together."""
        return b"".join(map(_totals_of, windows.tables))

    def records(self, windows: Windows) -> Iterator[tuple[bytes, bytes]]:
        """Name and value, for all keys that these windows know; the same of windows that know the same."""
        for k, (form, table) in enumerate(zip(self._forms, windows.tables, strict=True)):
            yield from form.records(k, table)


class _Form:
    """How many bytes the records of a window have."""

    def __init__(self, layout: Layout, table: WindowTable) -> None:
        narrow, wide = table.rows
        self._head = int(layout.numbers.head)
        self._columns = narrow.shape[1], wide.shape[1]
        self.totals_bytes = 8 * wide.shape[1]

    def load(self, table: WindowTable, totals: bytes, records: Mapping[bytes, bytes]) -> None:
        """Make the table know these."""
        small, large = (8 * (columns - 1) for columns in self._columns)
        narrow = {name: value for name, value in records.items() if len(value) == small}
        wide = {name: value for name, value in records.items() if len(value) == large and large != small}
        if len(narrow) + len(wide) < len(records):
            raise ValueError("a record is not one of this window")
        rows = np.empty((LOOKED + 1 + len(wide), self._columns[1]), np.int64)
        rows[: LOOKED + 1] = 0
        rows[TOTALS, LAST:] = np.frombuffer(totals, np.int64, offset=8)
        _fill(rows[LOOKED + 1 :], wide)
        bytes_ = np.empty((len(narrow), self._columns[0]), np.int64)
        _fill(bytes_, narrow)
        (latest,) = _TIME.unpack_from(totals)
        table.adopt(latest, bytes_, rows)

    def records(self, k: int, table: WindowTable) -> Iterator[tuple[bytes, bytes]]:
        """Name and value of each."""
        narrow, wide = table.rows
        for rows in _blocks(narrow):
            yield from _values(k, rows[rows[:, KEY] != 0])
        for rows in _blocks(wide[LOOKED + 1 :]):
            counters = rows[:, self._head :].view(np.uint32)
            is_small = counters.max(axis=1, initial=0) < 256  # those that were wide only for some time
            counters = counters[is_small].astype(np.uint8).view(np.int64)
            yield from _values(k, np.concatenate([rows[is_small, : self._head], counters], axis=1))
            yield from _values(k, rows[~is_small])


def _window_of(name: bytes) -> int:
    return int.from_bytes(name[:2], "big")


def _totals_of(table: WindowTable) -> bytes:
    _, wide = table.rows
    return _TIME.pack(table.end) + wide[TOTALS, LAST:].tobytes()


def _fill(rows: NDArray[np.int64], records: Mapping[bytes, bytes]) -> None:
    """Write records as rows."""
    if records:
        names = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), 10)
        rows[:, KEY] = np.ascontiguousarray(names[:, 2:]).view(np.int64)[:, 0]
        rows[:, LAST:] = np.frombuffer(b"".join(records.values()), np.int64).reshape(len(records), -1)


def _blocks(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (rows[first : first + _AT_A_TIME] for first in range(0, len(rows), _AT_A_TIME))


def _values(k: int, rows: NDArray[np.int64]) -> Iterator[tuple[bytes, bytes]]:
    """Rows as records."""
    content, size = rows[:, LAST:].tobytes(), 8 * (rows.shape[1] - 1)
    names = _names(k, rows[:, KEY])
    return ((name, content[i * size : (i + 1) * size]) for i, name in enumerate(names))


def _names(k: int, keys: NDArray[np.uint64] | NDArray[np.int64]) -> list[bytes]:
    content, window = keys.tobytes(), k.to_bytes(2, "big")
    return [window + content[i : i + 8] for i in range(0, len(content), 8)]
