"""`WindowTable`: the records of one window by key, in arrays that grow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.spec import PARTS, Window, microseconds
from ctr.features.text import LOG_CELLS, log_cells
from ctr.features.windows.pass_kernels import add_clicks, look, pass_by
from ctr.features.windows.record_kernels import keep_later, move_totals
from ctr.features.windows.ring_kernels import (
    CLICKS,
    COUNT,
    DECAYS,
    KEY,
    LAST,
    LENGTH,
    LOOKED,
    RATE,
    RING,
    START,
    SUMS,
    TOTALS,
    Layout,
    Now,
    Numbers,
    Records,
    Rows,
)
from ctr.features.windows.row_kernels import WindowRows

Features = tuple[NDArray[np.uint64], NDArray[np.bool_], NDArray[np.bool_]]
"""Feature buckets of rows, uint64[f, n]; which features are present, bool[f, n]; which rows are late."""

_BEGINNING = -(1 << 61)
"""The latest time, in microseconds, before the first row."""
_FULL = 0.7
"""The share of the hash table that may be in use."""
_GROWTH = 1.25
_LEAST = 1 << 12
_SWEEPS = 8
"""How often expired keys are dropped within the time after which a key expires."""
_NARROW = 256
_NAMES = ("keys", "last", "rows", "clicks", "sums")


class WindowTable:
    """Records by key: see `ring_kernels`. Not thread-safe."""

    layout: Layout

    def __init__(self, layout: Layout, least: int = _LEAST) -> None:
        """An empty table, which grows by at least `least` keys at a time."""
        self.layout = layout
        numbers, spans = layout.numbers, len(layout.spans)
        counters = int(numbers.plane) * (2 if numbers.with_clicks else 1)
        last = layout.spans[:, [COUNT, CLICKS, RATE]].max(initial=numbers.since_last)
        self._features = int(last) + 1
        self._least = least
        self._head = int(numbers.head)
        self._sizes = np.array([0, 0, LOOKED + 1, _BEGINNING], np.int64)
        self._table = np.zeros(2 * least, np.uint64)
        self._narrow = np.zeros((0, self._head + counters // 8), np.int64)
        self._wide = np.zeros((LOOKED + 1, self._head + counters // 2), np.int64)
        self._wide[:, LAST] = _BEGINNING
        self._of_time = (np.zeros((spans, 7), np.int64), np.zeros((spans, 2, int(numbers.plane)), np.uint8))
        self._of_all = (np.full(spans, _BEGINNING, np.int64), np.zeros(spans, np.float64))
        self._sums = np.zeros((spans, 3), np.float64)
        self._swept = _BEGINNING

    def features(self, rows: WindowRows, *, take_in: bool) -> Features:
        """The features of rows. With `take_in`, each row is added after that, before the next row."""
        size, seen = rows.keys.size, (rows.keys, rows.times, rows.timed)
        buckets = np.zeros((self._features, size), np.uint64)
        present = np.zeros((self._features, size), np.bool_)
        if take_in:
            late = np.zeros(size, np.bool_)
            pass_by(self.layout, self._ready(size), *seen, rows.clicks, buckets, present, late)
        else:
            look(self.layout, self._records, *seen, buckets, present)
            late = rows.timed & (rows.times < self.end - self.layout.numbers.slack)
        return buckets, present, late

    def add_clicks(self, rows: WindowRows) -> int:
        """Adds a click to rows that were added without; returns how many of them have a known key."""
        return int(add_clicks(self.layout, self._ready(rows.keys.size), rows.keys, rows.times, rows.timed))

    @property
    def _records(self) -> Records:
        """The arrays, for kernels that add no key; for others, see `_ready`."""
        head, (clock, masks) = self._head, self._of_time
        return Records(
            self._sizes,
            self._table,
            _rows(self._narrow, np.uint8, 8 * head),
            _rows(self._wide, np.uint32, 2 * head),
            Now(clock, masks, masks.view(np.uint64)),
            self._sums,
            *self._of_all,
        )

    @property
    def latest(self) -> int | None:
        """The time of the latest row, in microseconds; None before the first."""
        return None if self.end == _BEGINNING else self.end

    @property
    def end(self) -> int:
        """As `latest`; before the first row, a time before all others."""
        return int(self._sizes[3])

    @property
    def keys(self) -> int:
        """The number of keys, including expired ones that are not dropped yet."""
        return int(self._sizes[0])

    @property
    def bytes(self) -> int:
        """The memory of its arrays."""
        return self._table.nbytes + self._narrow.nbytes + self._wide.nbytes

    def _ready(self, rows: int) -> Records:
        """The arrays, with space for `rows` more rows with any keys."""
        if self._sizes[3] - self._swept > self.layout.numbers.expires // _SWEEPS:
            self._sweep()
        size = self._table.size
        while self._sizes[0] + rows > _FULL * size:
            size *= 2
        if size > self._table.size:
            self._enter(size)
        self._narrow = self._grown(self._narrow, int(self._sizes[1]) + rows)
        self._wide = self._grown(self._wide, int(self._sizes[2]) + min(rows, int(self._sizes[1]) + rows))
        return self._records

    def _grown(self, records: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
        """`records`, enlarged if necessary."""
        if rows > len(records):
            # With nothing else that refers to it, the system moves memory without a copy.
            size = max(int(_GROWTH * len(records)), rows, self._least)
            records.resize((size, records.shape[1]), refcheck=False)
        return records

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its content, which depends only on the rows that were added; `restore` reads it back."""
        self._sweep()
        wide = self._read(self._wide[: int(self._sizes[2])], np.uint32)
        small = np.maximum.reduce([array.max(axis=1, initial=0) for array in wide[2:4]]) < _NARROW
        small[: LOOKED + 1] = False  # `small` are those that need not be wide any more
        narrow = self._read(self._narrow[: int(self._sizes[1])], np.uint8)
        if small.any():
            narrow = [
                np.concatenate([array, more[small].astype(array.dtype)])
                for array, more in zip(narrow, wide, strict=True)
            ]
        small[LOOKED] = True
        arrays_by_name: dict[str, NDArray[Any]] = {"latest": self._sizes[3:].copy()}
        for size, arrays in (("narrow", narrow), ("wide", [array[~small] for array in wide])):
            order = np.argsort(arrays[0])
            arrays_by_name |= {
                f"{size}.{name}": array[order] for name, array in zip(_NAMES, arrays, strict=True)
            }
        return arrays_by_name

    def _read(self, records: NDArray[np.int64], counter: type[np.unsignedinteger[Any]]) -> list[NDArray[Any]]:
        """Records as arrays: keys, times, counters of rows and of clicks, sums."""
        counters, plane = records[:, self._head :].view(counter), int(self.layout.numbers.plane)
        return [
            records[:, KEY].view(np.uint64),
            records[:, LAST],
            counters[:, :plane],
            counters[:, plane:],
            records[:, SUMS : self._head].view(np.float64),
        ]

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replaces the content by `arrays` of a table of the same window. Raises ValueError for others."""
        if _kinds(arrays) != _kinds(self.arrays()):
            raise ValueError("its arrays are not those of this window")
        narrow, wide = ([arrays[f"{size}.{name}"] for name in _NAMES] for size in ("narrow", "wide"))
        keys = np.sort(np.concatenate([narrow[0], wide[0]]))
        latest = int(arrays["latest"].max(initial=_BEGINNING))
        if (
            arrays["latest"].shape != (1,)
            or any(len({len(array) for array in part}) > 1 for part in (narrow, wide))
            or keys[:1].tolist() != [0]  # the key of the totals
            or wide[0][TOTALS] != 0
            or (keys[1:] == keys[:-1]).any()
            or (np.concatenate([narrow[1], wide[1]]) > latest).any()
        ):
            raise ValueError("its arrays do not fit together")
        in_narrow = np.empty((narrow[0].size, self._narrow.shape[1]), np.int64)
        in_wide = np.empty((wide[0].size + LOOKED, self._wide.shape[1]), np.int64)
        rows = np.flatnonzero(np.arange(len(in_wide)) != LOOKED)
        for to, array in zip(self._read(in_narrow, np.uint8), narrow, strict=True):
            to[:] = array
        for to, array in zip(self._read(in_wide, np.uint32), wide, strict=True):
            to[rows] = array
        self.adopt(latest, in_narrow, in_wide)

    @property
    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of `Records.narrow`, where a row with key 0 is unused, and those of `Records.wide`."""
        return self._narrow[: int(self._sizes[1])], self._wide[: int(self._sizes[2])]

    def adopt(self, latest: int, narrow: NDArray[np.int64], wide: NDArray[np.int64]) -> None:
        """Replaces the content by these rows, whose keys are distinct; expired ones are dropped."""
        self._sizes[:] = [0, len(narrow), len(wide), latest]
        self._narrow, self._wide = narrow, wide
        self._of_all[0][:] = _BEGINNING
        size = self._table.size
        while len(narrow) + len(wide) > _FULL * size:
            size *= 2
        self._enter(size)
        self._swept = latest

    def reach(self, latest: int) -> None:
        """Notes that there was a row at this time, of any key."""
        self._sizes[3] = max(int(self._sizes[3]), latest)

    def move_totals(self, time: int) -> None:
        """Moves the record of all keys on to this time, unless it ends later."""
        move_totals(self.layout, self._records, np.int64(time))

    def _sweep(self) -> None:
        """Drops expired keys."""
        self._swept = int(self._sizes[3])
        self._enter(self._table.size)

    def _enter(self, size: int) -> None:
        """Rebuilds the hash table with this size, without expired keys."""
        if size == self._table.size:
            self._table[:] = 0
        else:
            self._table = np.zeros(size, np.uint64)
        # A row that is late, within the slack, may still need a key that has expired for others.
        numbers = self.layout.numbers
        oldest = max(int(self._sizes[3]) - int(numbers.expires + numbers.slack), _BEGINNING)
        keep_later(self._sizes, self._table, self._narrow, self._wide, oldest)


def layout_of(window: Window) -> Layout:
    """`window` as numbers."""
    looks = [*window.spans, *filter(None, [window.half_life])]
    decays = np.arange(len(looks)) >= len(window.spans)
    lengths = np.array([microseconds(span) // PARTS for span in looks], np.int64)
    delay, slack = microseconds(window.delay or "0s"), microseconds(window.slack)
    # The parts that a row sees, those by which the latest rows may be ahead of it, and those whose clicks are
    # not known yet.
    rings = np.where(decays, 1, PARTS) + -(-slack // lengths)
    rings += 1 - (-delay // lengths) if window.with_clicks else 0
    places: dict[tuple[str, str | None], int] = {
        (field.kind, field.span): f for f, field in enumerate(window.fields)
    }
    spans = np.empty((lengths.size, 7), np.int64)
    spans[:, LENGTH], spans[:, RING], spans[:, DECAYS] = lengths, rings, decays
    spans[:, START] = [0, *np.cumsum(rings)[:-1]][: lengths.size]
    for column, kind in ((COUNT, "count"), (CLICKS, "clicks"), (RATE, "rate")):
        spans[:, column] = [places.get((kind, name), -1) for name in window.looks]
    lowest, threshold = np.empty(LOG_CELLS, np.uint16), np.empty(LOG_CELLS, np.uint32)
    log_cells(lowest, threshold)
    numbers = Numbers(
        parts=np.int64(PARTS),
        since_last=np.int64(places.get(("since_last", None), -1)),
        with_clicks=window.with_clicks,
        delay=np.int64(delay),
        expires=np.int64(window.expires),
        slack=np.int64(slack),
        strength=np.float64(window.strength),
        head=np.int64(SUMS + (2 if window.half_life else 0)),
        plane=np.int64(-(-rings.sum() // 8) * 8),
    )
    edges = np.array(window.rate_edges, np.float64)
    return Layout(numbers, spans, edges, lowest, threshold, _decay())


def _decay() -> NDArray[np.float64]:
    """float64[1024]: 2 ** (-k / 16), from square roots and products, which all machines compute alike."""
    decay = np.ones(64 * PARTS)
    root = 0.5
    for bit in (8, 4, 2, 1):
        root = math.sqrt(root)
        decay[np.arange(decay.size) & bit != 0] *= root
    return decay * 0.5 ** (np.arange(decay.size) // PARTS)


def _rows(records: NDArray[np.int64], counter: type[np.unsignedinteger[Any]], begin: int) -> Rows:
    return Rows(records, records.view(counter), records.view(np.float64), np.int64(begin))


def _kinds(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}
