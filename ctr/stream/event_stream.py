"""`EventReader`: events in Redis, in order of arrival.

    ctr:{events:NAME}:impressions       entries {"events": lines of JSON, as in the files of a log}
    ctr:{events:NAME}:clicks            the same
    ctr:{events:NAME}:kept              how many seconds they are kept
    ctr:{events:NAME}:writer:WRITER     number of batches that this writer has appended

The ids of entries are times of Redis, which decide order and age, as the clocks of servers may differ. Keys
share a hash tag, so that one request can read, and one transaction write, several of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import merge
from typing import Any

from ctr.ps import RedisUrl
from ctr.ps.wire import PATIENCE_S, Connection, connect, eviction_policies, pairs, require_no_eviction
from ctr.stream.event_log import CLICKS, IMPRESSIONS

KINDS = (IMPRESSIONS, CLICKS)
_ENTRIES = 200
"""The most entries of one kind per read; each has at most 256 events."""
_TIMEOUT_S = 10.0
_GAP_MS = 1_000
"""A reader that reads at least this often sees each entry before it is trimmed."""

EntryId = tuple[int, int]
"""Milliseconds since 1970 by the clock of Redis, and a number within the millisecond."""
START: EntryId = (0, 0)


def key_of(url: RedisUrl, name: str) -> bytes:
    """The key of this name of the event stream `url.stream` (default: `default`)."""
    return f"ctr:{{events:{url.stream or 'default'}}}:{name}".encode()


def parse_entry_id(text: str | bytes) -> EntryId:
    """Parse an id such as `1526919030474-55`."""
    milliseconds, number = (text.encode() if isinstance(text, str) else text).split(b"-")
    return int(milliseconds), int(number)


def format_entry_id(entry_id: EntryId) -> str:
    """The id as Redis writes it."""
    return f"{entry_id[0]}-{entry_id[1]}"


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """Events that arrived together."""

    id: EntryId
    kind: str
    lines: list[bytes] = field(compare=False)
    """One event per line; empty for an entry of another writer."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A period (milliseconds since 1970) in which entries of one kind may have been trimmed unread."""

    kind: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The result of a read."""

    entries: list[Entry]
    """Entries of both kinds, in order of arrival."""
    complete_ms: int
    """Everything that arrived until then has been read; milliseconds since 1970."""
    now_ms: int
    """The time of Redis."""
    kept_s: float | None
    """How long entries are kept; None before the first is written."""
    gaps: list[Gap]
    exists: bool
    """Whether any event was ever written."""

    @property
    def is_behind(self) -> bool:
        """Whether more may be available at once."""
        return bool(self.entries) or self.complete_ms < self.now_ms - 1


class EventReader:
    """Reads the event stream `url.stream` from given positions. All methods raise StoreError."""

    def __init__(self, url: RedisUrl, starts: Mapping[str, EntryId]) -> None:
        """`starts`: the first entry to read of each kind, which should still exist; START: the oldest one."""
        self._keys = {kind: key_of(url, kind) for kind in KINDS}
        self._kept_key = key_of(url, "kept")
        self._positions = dict(starts)
        self._complete_ms = {kind: starts[kind][0] for kind in KINDS}
        self._ahead: dict[str, deque[Entry]] = {kind: deque() for kind in KINDS}
        """Entries that may be later than unread ones of the other kind."""
        self._clock_ms = 0
        self._is_started: set[str] = set()
        self._connection = Connection(
            connect(url, _TIMEOUT_S), patience_s=PATIENCE_S, purpose="the stream of events", remedy=""
        )
        require_no_eviction(url, eviction_policies(self._connection))

    def read(self, until_ms: int | None = None) -> Arrivals:
        """The entries that have arrived since the last call, or some of them. Does not wait.

        `until_ms`: read only entries up to this time.
        """
        behind_ms = min(self._complete_ms.values())
        kinds = [kind for kind in KINDS if self._complete_ms[kind] == behind_ms]
        end = "+" if until_ms is None else str(until_ms)
        # Starts with the last entry that was read: if it is gone, others may have been trimmed, too.
        ranges = [
            ("XRANGE", self._keys[kind], format_entry_id(self._positions[kind]), end, "COUNT", _ENTRIES + 1)
            for kind in kinds
        ]
        kept, (seconds, microseconds), *answers = self._connection.ask(
            ("GET", self._kept_key), ("TIME",), *ranges, together=True
        )
        now_ms = int(seconds) * 1_000 + int(microseconds) // 1_000
        now_ms = now_ms if until_ms is None else min(now_ms, until_ms + 1)
        read = {
            kind: [_entry(kind, raw) for raw in answer] for kind, answer in zip(kinds, answers, strict=True)
        }
        latest_ms = max((entries[-1].id[0] for entries in read.values() if entries), default=0)
        # More may arrive in this millisecond, and the clock of Redis may have been set back.
        self._clock_ms = max(self._clock_ms, latest_ms if latest_ms > now_ms else now_ms - 1)
        gaps = []
        for kind, entries in read.items():
            is_all, last = len(entries) <= _ENTRIES, self._positions[kind]
            if entries and entries[0].id == last:
                if kind in self._is_started:
                    del entries[0]
            elif last != START:
                gap_end = entries[0].id[0] if entries else now_ms
                if gap_end - self._complete_ms[kind] > _GAP_MS:
                    gaps.append(Gap(kind, self._complete_ms[kind], gap_end))
            self._is_started.add(kind)
            if entries:
                self._ahead[kind].extend(entries)
                self._positions[kind] = entries[-1].id
            self._complete_ms[kind] = self._clock_ms if is_all else self._positions[kind][0] - 1
        complete_ms = min(self._complete_ms.values())
        ready = (_pop_until(self._ahead[kind], complete_ms) for kind in KINDS)
        kept_s = None if kept is None else float(kept)
        exists = kept is not None or any(position != START for position in self._positions.values())
        return Arrivals(list(merge(*ready)), complete_ms, now_ms, kept_s, gaps, exists)

    def close(self) -> None:
        self._connection.close()


def _entry(kind: str, raw: Any) -> Entry:
    content = pairs(raw[1]).get(b"events", b"")
    return Entry(parse_entry_id(raw[0]), kind, content.splitlines())


def _pop_until(entries: deque[Entry], end_ms: int) -> list[Entry]:
    ready = []
    while entries and entries[0].id[0] <= end_ms:
        ready.append(entries.popleft())
    return ready
