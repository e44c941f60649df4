"""`join_stream`: joins rows and clicks from Redis to a stream of examples, as they arrive.

The result depends on the two streams of events alone, not on when they are read: a click belongs to a row if
it came within the window, by the clocks of the servers, and if its entry arrived within the window plus the
grace, by the clock of Redis. If the clock of a server is further off than the grace, the time of arrival
counts instead. Each chunk records how far both streams were joined, and where to start reading them again for
the rows and clicks of the open window. So the successor of a joiner that was killed continues from the last
chunk, and each row is in the stream exactly once.
"""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from time import monotonic
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ctr.errors import DataError, first_problem
from ctr.ps import RedisUrl, parse_redis_url
from ctr.stream.event_log import CLICKS, IMPRESSIONS, IdTime, parse_event, time_of
from ctr.stream.event_stream import (
    KINDS,
    START,
    Arrivals,
    Entry,
    EntryId,
    EventReader,
    Gap,
    format_entry_id,
    parse_entry_id,
)
from ctr.stream.example_stream import ExampleStream
from ctr.stream.join import DROPPED, LABELLED, REPEATED, JoinSettings

POLL_S = 0.02
_FULL_S = 0.1
"""The time until a full lane is tried again."""

NO_EVENT, CLOCK = "no event", "clock"


class _State(BaseModel):
    """How far the stream has been joined, by entry of each kind."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Annotated[str, Field(pattern="^ctr join$")] = "ctr join"
    format_version: Annotated[int, Field(ge=2, le=2)] = 2
    settings: dict[str, Any]
    """Settings that must not change."""
    joiner: str
    """The id of the process, which distinguishes two processes that append the same chunk."""
    done: dict[str, str]
    """The last entry whose rows or clicks are in the stream, or were counted."""
    needed: dict[str, str]
    """The first entry whose rows or clicks may still be needed; the last entry if there is none."""
    complete_ms: int = 0
    """Clicks without rows were dropped up to this time: milliseconds since 1970 by the clock of Redis."""
    rows: int = 0
    clicked: int = 0
    dropped: dict[str, int] = {}
    bad: dict[str, int] = {}


@dataclass(slots=True)
class StreamJoinResult:
    """The totals of a stream since its first event."""

    rows: int = 0
    """Each row counts once, although it is written twice if it is clicked later."""
    clicked: int = 0
    chunks: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of dropped clicks by reason."""
    bad: Counter[str] = field(default_factory=Counter)
    """Number of invalid events by reason; also of rows whose time of arrival counts, see `_time`."""
    open_rows: int = 0
    """Rows in memory that may still be clicked."""
    behind_s: float = 0.0
    """All events that arrived longer ago than this are joined."""
    is_waiting: bool = False
    """Whether training is too far behind for a chunk to be appended."""


@dataclass(slots=True)
class _Row:
    """A row that may be clicked."""

    line: bytes
    """JSON with label 0."""
    entry: EntryId
    served: IdTime
    is_clicked: bool = False


@dataclass(frozen=True, slots=True)
class _Click:
    """A click on a row."""

    entry: EntryId
    time: IdTime


@dataclass(slots=True)
class _RowEntry:
    """The rows of an entry."""

    id: EntryId
    rows: dict[str, _Row] = field(default_factory=dict)
    bad: Counter[str] = field(default_factory=Counter)


def join_stream(
    events: str,
    out: str,
    settings: JoinSettings,
    *,
    follow: bool,
    until_ms: int | None = None,
    stop: Event | None = None,
    on_progress: Callable[[StreamJoinResult], None] = lambda _: None,
    progress_s: float = 10.0,
    on_gap: Callable[[Gap], None] = lambda _: None,
    on_empty: Callable[[], None] = lambda: None,
) -> StreamJoinResult:
    """Append the events of the stream `events` to the stream of examples `out`, as `{label: 0 or 1, **row}`.

    Both are URLs: `redis://host:port/0?stream=NAME`. Runs until `stop` is set if `follow`, else until the
    present events are joined. `until_ms`: the time to join at (milliseconds since 1970); None: now. `on_gap`
    is called when events may have been trimmed unread; `on_empty` if no event was ever written, and `follow`.

    Raises DataError for such a stream without `follow` and `until_ms`, if events are not kept for the whole
    window, and for an `out` of other settings; StoreError if Redis cannot be reached, or another process
    appends to `out`.
    """
    reported = monotonic()

    def report() -> None:
        nonlocal reported
        if monotonic() - reported > progress_s:
            reported = monotonic()
            on_progress(joiner.joined)

    is_empty = False
    joiner = _Joiner(parse_redis_url(events), parse_redis_url(out), settings, stop or Event(), report)
    try:
        while not joiner.stop.is_set():
            arrivals = joiner.read(until_ms)
            for gap in arrivals.gaps:
                on_gap(gap)
            if not arrivals.exists and not follow and until_ms is None:
                raise DataError(
                    f"{parse_redis_url(events).public}: nothing was ever written to this stream; correct "
                    "?stream=NAME, or start `ctr serve --feedback-log` with this URL."
                )
            if not arrivals.exists and follow and not is_empty:
                is_empty = True
                on_empty()
            report()
            if not follow and until_ms is None:
                until_ms = arrivals.now_ms - 1
            if not arrivals.is_behind:
                if not follow:
                    break
                joiner.stop.wait(POLL_S)
        joiner.cut()
    except _StoppedError:
        joiner.forget_chunk()
    finally:
        joiner.close()
    return joiner.joined


class _StoppedError(Exception):
    """`stop` is set, and a chunk cannot be appended now."""


class _Joiner:
    """The rows of the open window, and the next chunk."""

    def __init__(
        self,
        events: RedisUrl,
        out: RedisUrl,
        settings: JoinSettings,
        stop: Event,
        report: Callable[[], None],
    ) -> None:
        """`report` is called regularly."""
        self.stop = stop
        self._report = report
        self._settings = settings
        self._events = events
        self._window_ms = round((settings.window_s + settings.grace_s) * 1e3)
        """An entry with a click may arrive this long after its row."""
        self._grace_ms = round(settings.grace_s * 1e3)
        self._label_0, self._label_1 = (orjson.dumps({settings.label: label})[:-1] for label in (0, 1))
        self._out = ExampleStream(out)
        self._number, state = self._out.last()
        self._resumed = self._state_of(state)
        """The state when this process started."""
        done = {kind: parse_entry_id(self._resumed.done[kind]) for kind in KINDS}
        self._resumed_done, self._done = done, dict(done)
        needed = {kind: parse_entry_id(self._resumed.needed[kind]) for kind in KINDS}
        self._reader = EventReader(events, needed)
        self.joined = StreamJoinResult(chunks=self._number)
        self._appended = self._resumed
        self._count_from(self._resumed)
        self._complete_ms = self._resumed.complete_ms
        self._rows: dict[str, _Row] = {}
        """By id. Rows stay for another grace period after their window, to detect repetitions."""
        self._entries: deque[_RowEntry] = deque()
        """The entries of these rows, in order of arrival."""
        self._waiting: deque[_RowEntry] = deque()
        """Entries whose rows wait for the end of their window."""
        self._clicks: deque[EntryId] = deque()
        """Entries with clicks that may belong to rows in memory."""
        self._early: dict[str, list[_Click]] = {}
        """Clicks whose row has not arrived yet, or whose window has ended, by the row's id."""
        self._early_ids: deque[tuple[_Click, str]] = deque()
        """The same in order of arrival, with some whose row has arrived since."""
        self._chunk: list[bytes] = []
        self._chunk_began = 0.0

    def read(self, until_ms: int | None) -> Arrivals:
        """Join events that have arrived, and append chunks that are full or old enough."""
        arrivals = self._reader.read(until_ms)
        self._require_kept(arrivals.kept_s)
        for entry in arrivals.entries:
            self._drop_early(entry.id[0])
            if entry.kind == IMPRESSIONS:
                self._open(entry)
            else:
                self._click(entry)
            self._cut_full()
        self._end(arrivals.complete_ms)
        if self._chunk and monotonic() - self._chunk_began > self._settings.chunk_s:
            self.cut()
        self.joined.open_rows = len(self._rows)
        self.joined.behind_s = (arrivals.now_ms - arrivals.complete_ms) / 1e3
        return arrivals

    def cut(self) -> None:
        """Append the joined rows as a chunk. Raises _StoppedError if stopped while its lane is full."""
        if not self._chunk:
            return
        is_weighted = self._settings.late == "importance"
        state = self._state()
        written = state.model_dump()
        while not self._out.append(self._number, self._chunk, written, is_weighted=is_weighted):
            self.joined.is_waiting = True
            self._report()
            if self.stop.wait(_FULL_S):
                raise _StoppedError
        self.joined.is_waiting = False
        self._appended = state
        self._number += 1
        self._chunk = []
        self.joined.chunks = self._number

    def forget_chunk(self) -> None:
        """Reset `joined` to what is in the stream; the next joiner joins the rest again."""
        self._count_from(self._appended)

    def close(self) -> None:
        self._reader.close()
        self._out.close()

    def _open(self, entry: Entry) -> None:
        """Take in rows that were served."""
        opened = _RowEntry(entry.id)
        early = []
        for line in entry.lines or [b""]:
            event = parse_event(line, IMPRESSIONS)
            if event is None:
                opened.bad[NO_EVENT] += 1
                continue
            event_id, row = event["id"], event["row"]
            if event_id in self._rows:
                opened.bad[REPEATED] += 1
                continue
            if self._settings.label in row:
                opened.bad[LABELLED] += 1
                continue
            claimed = time_of(event_id) or 0
            served = self._time(claimed, entry.id)
            opened.bad[CLOCK] += served != claimed
            text = orjson.dumps(row)
            unclicked = self._label_0 + (b"," if row else b"") + text[1:]
            self._rows[event_id] = opened.rows[event_id] = _Row(unclicked, entry.id, served)
            if event_id in self._early:
                early.append(event_id)
        self._entries.append(opened)
        if self._settings.late == "wait":
            self._waiting.append(opened)
        else:
            self._write(opened)
        for event_id in early:
            for click in self._early.pop(event_id):
                self._match(self._rows[event_id], click)

    def _time(self, claimed: IdTime, arrived: EntryId) -> IdTime:
        """The time of an event: of its arrival if its server's clock is wrong, or if it was delayed."""
        is_near = abs(arrived[0] - claimed // 1_000) <= self._grace_ms
        return claimed if is_near else arrived[0] * 1_000

    def _write(self, opened: _RowEntry) -> None:
        """Write the rows of an entry, unless an earlier process has written them."""
        if opened.id <= self._resumed_done[IMPRESSIONS]:
            return
        self._done[IMPRESSIONS] = opened.id
        for row in opened.rows.values():
            is_clicked = row.is_clicked and self._settings.late == "wait"
            self._add(self._clicked(row) if is_clicked else row.line)
            self.joined.clicked += is_clicked
        self.joined.rows += len(opened.rows)
        self.joined.bad += opened.bad

    def _click(self, entry: Entry) -> None:
        """Take in clicks."""
        is_new = entry.id > self._resumed_done[CLICKS]
        for line in entry.lines or [b""]:
            event = parse_event(line, CLICKS)
            if event is None:
                self.joined.bad[NO_EVENT] += is_new
                continue
            event_id, click = event["id"], _Click(entry.id, self._time(event["time"], entry.id))
            row = self._rows.get(event_id)
            if row is not None and entry.id[0] - row.entry[0] <= self._window_ms:
                self._match(row, click)
            else:
                self._early.setdefault(event_id, []).append(click)
                self._early_ids.append((click, event_id))
        self._clicks.append(entry.id)
        if is_new:
            self._done[CLICKS] = entry.id

    def _match(self, row: _Row, click: _Click) -> None:
        is_new = click.entry > self._resumed_done[CLICKS]
        if click.entry[0] < row.entry[0] - self._grace_ms:
            self.joined.dropped["unknown"] += is_new
        elif self._settings.is_late(row.served, click.time):
            self.joined.dropped["too late"] += is_new
        elif row.is_clicked:
            self.joined.dropped["repeated"] += is_new
        else:
            row.is_clicked = True
            is_written = not is_new and row.entry <= self._resumed_done[IMPRESSIONS]
            if self._settings.late == "importance" and not is_written:
                self._add(self._clicked(row))
                self.joined.clicked += 1

    def _drop_early(self, complete_ms: int) -> None:
        """Drop clicks without a row after the grace, once all earlier arrivals are joined."""
        while self._early_ids and self._early_ids[0][0].entry[0] + self._grace_ms < complete_ms:
            click, event_id = self._early_ids.popleft()
            clicks = self._early.get(event_id, [])
            if click not in clicks:  # its row has arrived
                continue
            clicks.remove(click)
            if not clicks:
                del self._early[event_id]
            latest_ms = (time_of(event_id) or 0) // 1_000 + self._window_ms
            is_new = click.entry[0] + self._grace_ms >= self._resumed.complete_ms
            self.joined.dropped["too late" if click.entry[0] > latest_ms else "unknown"] += is_new
        self._complete_ms = max(self._complete_ms, complete_ms)

    def _end(self, complete_ms: int) -> None:
        """Write and forget settled rows and clicks, as all arrivals until `complete_ms` are joined."""
        self._drop_early(complete_ms)
        while self._waiting and self._waiting[0].id[0] + self._window_ms < complete_ms:
            self._write(self._waiting.popleft())
            self._cut_full()
        while self._entries and self._entries[0].id[0] + self._window_ms + self._grace_ms < complete_ms:
            for event_id in self._entries.popleft().rows:
                del self._rows[event_id]
        first_ms = self._entries[0].id[0] if self._entries else complete_ms
        while self._clicks and self._clicks[0][0] + self._grace_ms < first_ms:
            self._clicks.popleft()

    def _add(self, line: bytes) -> None:
        if not self._chunk:
            self._chunk_began = monotonic()
        self._chunk.append(line)

    def _cut_full(self) -> None:
        if len(self._chunk) >= self._settings.chunk_rows:
            self.cut()

    def _clicked(self, row: _Row) -> bytes:
        return self._label_1 + row.line[len(self._label_0) :]

    def _require_kept(self, kept_s: float | None) -> None:
        """Raise DataError if rows of an open window could expire before a new joiner reads them again."""
        settings = self._settings
        needed_s = settings.window_s + 4 * settings.grace_s
        if kept_s is not None and needed_s > kept_s:
            raise DataError(
                f"{self._events.public}: keeps events for {kept_s:g} s, and a window of "
                f"{settings.window_s:g} s with a grace of {settings.grace_s:g} s needs {needed_s:g} s; "
                "start servers with a longer --feedback-keep, or give a shorter --window."
            )

    def _count_from(self, state: _State) -> None:
        self.joined.rows, self.joined.clicked = state.rows, state.clicked
        self.joined.dropped = Counter(dict.fromkeys(DROPPED, 0) | state.dropped)
        self.joined.bad = Counter(state.bad)

    def _state(self) -> _State:
        needed = {
            IMPRESSIONS: self._entries[0].id if self._entries else self._done[IMPRESSIONS],
            CLICKS: self._clicks[0] if self._clicks else self._done[CLICKS],
        }
        return self._resumed.model_copy(
            update={
                "done": {kind: format_entry_id(entry) for kind, entry in self._done.items()},
                "needed": {kind: format_entry_id(entry) for kind, entry in needed.items()},
                "complete_ms": self._complete_ms,
                "rows": self.joined.rows,
                "clicked": self.joined.clicked,
                "dropped": dict(self.joined.dropped),
                "bad": dict(self.joined.bad),
            }
        )

    def _state_of(self, saved: dict[str, Any]) -> _State:
        """The state in the last chunk. Raises DataError if it has other settings."""
        current = {
            "events": self._events.stream or "default",
            **{name: getattr(self._settings, name) for name in ("window_s", "late", "label", "grace_s")},
        }
        joiner = secrets.token_hex(8)
        start = format_entry_id(START)
        if not saved:
            starts = dict.fromkeys(KINDS, start)
            return _State(settings=current, joiner=joiner, done=starts, needed=starts)
        try:
            state = _State.model_validate(saved)
        except ValidationError as error:
            raise DataError(
                f"{self._out.url.public}: its last chunk was not written by `ctr join` "
                f"({first_problem(error)}); give another ?stream=NAME."
            ) from None
        if state.settings != current:
            earlier = state.settings
            raise DataError(
                f"{self._out.url.public}: was joined from the stream {earlier['events']} with --label "
                f"{earlier['label']} --window {earlier['window_s']:g}s --grace {earlier['grace_s']:g}s "
                f"--late {earlier['late']}; repeat these, or give another ?stream=NAME."
            )
        return state.model_copy(update={"joiner": joiner})
