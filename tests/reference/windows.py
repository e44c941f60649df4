"""What a window says of a row, in plain Python: it looks at every row before, one by one."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from ctr.features.spec import Window, microseconds


class Row(NamedTuple):
    key: object
    """None if it is missing."""
    time: int | None
    """In microseconds."""
    click: bool


@dataclass
class PlainWindow:
    """Rows one after the other, all of which are kept."""

    window: Window
    latest: int | None = None
    rows: list[Row] = field(default_factory=list)

    def is_late(self, row: Row) -> bool:
        slack = microseconds(self.window.slack)
        return row.time is not None and self.latest is not None and row.time < self.latest - slack

    def take_in(self, row: Row) -> None:
        assert not self.is_late(row)
        if row.time is not None:
            self.latest = row.time if self.latest is None else max(row.time, self.latest)
            if row.key is not None:
                self.rows.append(row)

    def features(self, row: Row) -> dict[str, int]:
        """By name, the buckets; those that are not there are left out."""
        if row.key is None or row.time is None:
            return {}
        own = self._remembered(row)
        found: dict[str, int] = {}
        for feature in self.window.fields:
            if feature.kind == "since_last":
                if own:
                    since = max(row.time - max(other.time for other in own), 0)
                    found[feature.name] = log_bucket(since / 1e6)
                continue
            if feature.span.startswith("half_"):
                found |= self._decayed(feature.name, feature.kind, row.time, own)
                continue
            part = microseconds(feature.span) // 16
            if feature.kind == "count":
                last = row.time // part
                found[feature.name] = log_bucket(len(within(own, part, last)))
                continue
            last = (row.time - microseconds(self.window.delay)) // part - 1
            known, every = within(own, part, last), within(self.rows, part, last)
            if feature.kind == "clicks":
                found[feature.name] = log_bucket(sum(other.click for other in known))
            elif every:
                overall = sum(other.click for other in every) / len(every)
                strength = self.window.strength
                rate = (sum(o.click for o in known) + strength * overall) / (len(known) + strength)
                found[feature.name] = bisect_right(self.window.rate_edges, rate)
        return found

    def _decayed(self, name: str, kind: str, time: int, own: list[Row]) -> dict[str, int]:
        """A feature of the half-life."""
        part = microseconds(self.window.half_life or "") // 16
        now, known = time // part, (time - microseconds(self.window.delay or "0s")) // part - 1

        def total(rows: list[Row], last: int) -> float:
            parts = [row.time // part for row in rows if row.time is not None]
            return sum(2 ** -((now - at) / 16) for at in parts if at <= last)

        if kind == "count":
            return {name: log_bucket(10 * total(own, now))}
        clicks = total([row for row in own if row.click], known)
        if kind == "clicks":
            return {name: log_bucket(10 * clicks)}
        rows = total(self.rows, known)
        if not rows:
            return {}
        overall = total([row for row in self.rows if row.click], known) / rows
        rate = (clicks + self.window.strength * overall) / (total(own, known) + self.window.strength)
        return {name: bisect_right(self.window.rate_edges, rate)}

    def _remembered(self, row: Row) -> list[Row]:
        """The rows of its key since that was last forgotten."""
        own: list[Row] = []
        last: int | None = None
        for other in self.rows:
            if other.key == row.key:
                if last is not None and other.time - last > self.window.expires:
                    own = []
                own.append(other)
                last = max(other.time for other in own)
        return own if last is not None and row.time - last <= self.window.expires else []


def within(rows: list[Row], part: int, last: int) -> list[Row]:
    """Those in the 16 parts that end with the one numbered `last`."""
    return [row for row in rows if last - 16 < row.time // part <= last]


def log_bucket(value: float) -> int:
    return math.floor(value) if value <= 2 else 2 + math.floor(math.log(value) ** 2)
