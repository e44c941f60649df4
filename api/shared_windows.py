"""`SharedWindows`: windows in Redis that several servers share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError, StoreError
from ctr.features import FeatureSpec
from ctr.features.columns import Buckets
from ctr.features.text import Cells
from ctr.features.windows import WindowRecords, Windows, difference, identity_of
from ctr.ps import Change, Record, RecordStore, RedisUrl

_IDENTITY = "windows"
"""The fact that must match for servers to share windows."""


class SharedWindows:
    """The windows of `spec` in Redis, equivalent to `ctr.features.windows.Windows` in memory.

    A request reads the records of its keys and the totals of all keys in one round trip, and builds `Windows`
    from them, so features are bit-identical. Events that arrive during a write are written together
    afterwards. Thread-safe. All methods raise StoreError if Redis cannot be reached.
    """

    def __init__(self, url: RedisUrl, spec: FeatureSpec, known: Windows) -> None:
        """Open the windows at `url`, or create them from `known`.

        Raises StoreError if the windows there belong to another spec, or Redis refuses.
        """
        self._records = WindowRecords(spec)

        def initial() -> Change:
            return Change(self._records.totals(known), self._records.records(known))

        self.url = url
        self._store = RecordStore(url, {_IDENTITY: identity_of(spec)}, initial, _difference)
        self._waiting: deque[_Event] = deque()
        self._writing = Lock()

    @property
    def created(self) -> bool:
        """Whether this object has created them."""
        return self._store.created

    def buckets(
        self, cells: Cells, status: NDArray[np.uint8], columns: Sequence[str], rows: slice, *, take_in: bool
    ) -> list[Buckets]:
        """The features of these rows; see `Windows.buckets`. Never adds rows."""
        assert not take_in
        names = self._records.names_in(cells, status, columns, rows)
        windows, _ = self._windows(names, *self._store.read(names))
        return windows.buckets(cells, status, columns, rows, take_in=False)

    def take_in(self, cells: Cells, columns: Sequence[str], until: int | None = None) -> int:
        """See `Windows.take_in`."""
        return self._add(cells, columns, lambda windows: windows.take_in(cells, columns, until))

    def add_clicks(self, cells: Cells, columns: Sequence[str]) -> int:
        """See `Windows.add_clicks`."""
        return self._add(cells, columns, lambda windows: windows.add_clicks(cells, columns))

    def check(self) -> None:
        """Raise StoreError unless Redis has the windows."""
        self._store.read([])

    def close(self) -> None:
        """Close idle connections."""
        self._store.close()

    def _add(self, cells: Cells, columns: Sequence[str], act: Callable[[Windows], int]) -> int:
        status = np.zeros(len(cells), np.uint8)
        event = _Event(self._records.names_in(cells, status, columns, slice(None)), act)
        self._waiting.append(event)
        with self._writing:  # meanwhile, another thread may have written the event
            if not event.is_done:
                self._write([self._waiting.popleft() for _ in range(len(self._waiting))])
        if isinstance(event.outcome, BaseException):
            raise event.outcome
        return event.outcome

    def _write(self, events: list[_Event]) -> None:
        names = list(dict.fromkeys(name for event in events for name in event.names))

        def decide(head: bytes, values: list[bytes | None], others: list[Record]) -> Change | None:
            windows, before = self._windows(names, head, values)
            for event in events:
                event.apply(windows)
            totals, records = self._records.totals(windows), self._records.records(windows)
            changed = [(name, value) for name, value in records if before.get(name) != value]
            if not changed and totals == head:
                return None
            return Change(totals, changed, self._records.forgotten(totals, others))

        try:
            self._store.change(names, decide)
        except BaseException as error:
            for event in events:
                event.outcome = error
            raise
        finally:
            for event in events:
                event.is_done = True

    def _windows(
        self, names: Sequence[bytes], head: bytes, values: Sequence[bytes | None]
    ) -> tuple[Windows, dict[bytes, bytes]]:
        """The windows of these keys, and the records they were built from."""
        records = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        try:
            return self._records.windows(head, records), records
        except ValueError as error:
            raise StoreError(
                f"{self.url}: the windows there were not written by this version ({error}); delete them, or "
                "use another name (?model=NAME)."
            ) from error


@dataclass(slots=True)
class _Event:
    """A request to add rows or clicks."""

    names: Sequence[bytes]
    act: Callable[[Windows], int]
    outcome: int | BaseException = 0
    """The number of rows that count, or the reason why none does."""
    is_done: bool = False

    def apply(self, windows: Windows) -> None:
        """Apply the event; an error becomes its outcome, and leaves the windows unchanged."""
        try:
            self.outcome = self.act(windows)
        except DataError as error:
            self.outcome = error


def _difference(fact: str, there: str, here: str) -> str:
    if fact == _IDENTITY and there:
        return f"they belong to another spec ({difference(there, here)})"
    return f"their {fact} is {there or 'missing'}, and this version's {here}"
