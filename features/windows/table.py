"""`WindowTable`: what one window knows of its keys, in arrays that grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.spec import PARTS, Window, microseconds
from features.text import LOG_CELLS, log_cells
from features.windows.ring_kernels import (
    CLICKS,
    COUNT,
    LENGTH,
    RATE,
    RING,
    START,
    TOTALS,
    Layout,
    Numbers,
    Records,
)
from features.windows.table_kernels import keep_later

_BEGINNING = -(1 << 61)
"""The latest time, in microseconds, before there was a row."""
_FULL = 0.7
"""Share of the places of the hash table that may be taken."""
_GROWTH = 1.25
_LEAST = 1 << 12
_SWEEPS = 8
"""So many times in the time that a key is kept, those that have expired are dropped."""
_NARROW = 256
_NAMES = ("keys", "last", "counters")


class WindowTable:
    """Records by key: see `ring_kernels`. Not for several threads at the same time."""

    layout: Layout

    def __init__(self, window: Window) -> None:
        self.layout = layout_of(window)
        self._counters = int(self.layout.spans[:, RING].sum()) * (2 if window.with_clicks else 1)
        self._sizes = np.array([0, 0, TOTALS + 1, _BEGINNING], np.int64)
        self._new_table(2 * _LEAST)
        self._narrow = (
            np.zeros(0, np.uint64),
            np.zeros(0, np.int64),
            np.zeros((0, self._counters), np.uint8),
        )
        self._wide = (
            np.zeros(TOTALS + 1, np.uint64),
            np.full(TOTALS + 1, _BEGINNING, np.int64),
            np.zeros((TOTALS + 1, self._counters), np.uint32),
        )
        self._overall = np.full((len(self.layout.spans), 3), _BEGINNING, np.int64)
        self._swept = _BEGINNING

    @property
    def records(self) -> Records:
        """For kernels that take in nothing: see `ready`."""
        return Records(self._sizes, self._table, self._at, *self._narrow, *self._wide, self._overall)

    @property
    def latest(self) -> int | None:
        """The time of the latest row, in microseconds; None before the first."""
        found = int(self._sizes[3])
        return None if found == _BEGINNING else found

    @property
    def keys(self) -> int:
        """How many it knows, expired ones that have not been dropped yet among them."""
        return int(self._sizes[0])

    @property
    def bytes(self) -> int:
        """How much memory its arrays take."""
        return sum(array.nbytes for array in (self._table, self._at, *self._narrow, *self._wide))

    def ready(self, rows: int) -> Records:
        """Its arrays with room for so many more rows, whatever their keys."""
        span = self.layout.numbers.expires // _SWEEPS
        if self._sizes[3] - self._swept > span or not self._has_room(rows):
            self._sweep()
            while self._sizes[0] + rows > 0.5 * self._table.size:
                self._new_table(2 * self._table.size)
                self._enter()
        self._narrow = _with_room(self._narrow, int(self._sizes[1]) + rows)
        self._wide = _with_room(self._wide, int(self._sizes[2]) + min(rows, int(self._sizes[1]) + rows))
        return self.records

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that it knows, the same whenever the same rows have been taken in; `restore` reads it back."""
        self._sweep()
        end = int(self._sizes[2])
        small = self._wide[2][:end].max(axis=1, initial=0) < _NARROW
        small[TOTALS] = False
        of_narrow: list[NDArray[Any]] = [array[: int(self._sizes[1])] for array in self._narrow]
        if small.any():  # they were more before
            of_narrow = [
                np.concatenate([array, wide[:end][small].astype(array.dtype)])
                for array, wide in zip(of_narrow, list[NDArray[Any]](self._wide), strict=True)
            ]
        found: dict[str, NDArray[Any]] = {"latest": self._sizes[3:].copy()}
        of_wide: list[NDArray[Any]] = [array[:end][~small] for array in self._wide]
        for size, arrays in (("narrow", of_narrow), ("wide", of_wide)):
            order = np.argsort(arrays[0])
            found |= {f"{size}.{name}": array[order] for name, array in zip(_NAMES, arrays, strict=True)}
        return found

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Knows what `arrays` of a table of the same window were made of; any others raise ValueError."""
        if _kinds(arrays) != _kinds(self.arrays()):
            raise ValueError("its arrays are not those of this window")
        narrow = [arrays[f"narrow.{name}"] for name in _NAMES]
        wide = [arrays[f"wide.{name}"] for name in _NAMES]
        every = np.sort(np.concatenate([narrow[0], wide[0]]))
        latest = int(arrays["latest"].max(initial=_BEGINNING))
        if (
            arrays["latest"].shape != (1,)
            or any(len({len(array) for array in part}) > 1 for part in (narrow, wide))
            or every[:1].tolist() != [0]  # the key of the totals
            or wide[0][TOTALS] != 0
            or (every[1:] == every[:-1]).any()
            or (np.concatenate([narrow[1], wide[1]]) > latest).any()
        ):
            raise ValueError("its arrays do not fit together")
        self._sizes[:] = [0, narrow[0].size, wide[0].size, latest]
        # Copies, because these arrays have to grow.
        self._narrow = tuple(np.array(array) for array in narrow)  # type: ignore[assignment]
        self._wide = tuple(np.array(array) for array in wide)  # type: ignore[assignment]
        self._overall[:] = _BEGINNING
        size = self._table.size
        while every.size > 0.5 * size:
            size *= 2
        self._new_table(size)
        self._sweep()

    def _has_room(self, rows: int) -> bool:
        return bool(
            self._sizes[0] + rows <= _FULL * self._table.size
            and self._sizes[1] + rows <= len(self._narrow[0])
        )

    def _new_table(self, size: int) -> None:
        self._table, self._at = np.zeros(size, np.uint64), np.zeros(size, np.int32)

    def _sweep(self) -> None:
        """Drop the keys that have expired."""
        self._swept = int(self._sizes[3])
        self._table[:] = 0
        self._enter()

    def _enter(self) -> None:
        # A row that comes late by the slack may still look at a key that has expired for the others.
        oldest = max(
            int(self._sizes[3]) - int(self.layout.numbers.expires + self.layout.numbers.slack), _BEGINNING
        )
        keep_later(self.records, oldest)


def layout_of(window: Window) -> Layout:
    """`window` as numbers."""
    lengths = np.array([microseconds(span) // PARTS for span in window.spans], np.int64)
    delay, slack = microseconds(window.delay or "0s"), microseconds(window.slack)
    # The parts that a row looks at, those that the latest rows may be ahead of it, and those whose clicks are
    # not known yet.
    rings = PARTS + -(-slack // lengths) + (1 - (-delay // lengths) if window.with_clicks else 0)
    ends = np.cumsum(rings) * (2 if window.with_clicks else 1)
    places: dict[tuple[str, str | None], int] = {
        (field.kind, field.span): f for f, field in enumerate(window.fields)
    }
    spans = np.empty((lengths.size, 6), np.int64)
    spans[:, LENGTH], spans[:, RING] = lengths, rings
    spans[:, START] = [0, *ends[:-1]][: lengths.size]
    for column, kind in ((COUNT, "count"), (CLICKS, "clicks"), (RATE, "rate")):
        spans[:, column] = [places.get((kind, span), -1) for span in window.spans]
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
    )
    return Layout(numbers, spans, np.array(window.rate_edges, np.float64), lowest, threshold)


def _kinds(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}


def _with_room(arrays: Any, rows: int) -> Any:
    """The same arrays, or longer ones."""
    if rows > len(arrays[0]):
        rows = max(int(_GROWTH * len(arrays[0])), rows, _LEAST)
        for array in arrays:
            # Where there is nothing else that looks at them, memory is moved by the system and not copied.
            array.resize((rows, *array.shape[1:]), refcheck=False)
    return arrays
