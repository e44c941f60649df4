"""`join`: labels served rows by their clicks, each row once."""

from __future__ import annotations

import fcntl
import heapq
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ctr.errors import DataError, first_problem
from ctr.outputs import replace_file
from ctr.stream.event_log import CLICKS, IMPRESSIONS, IdTime, Segment, now, segments, time_of

STATE = ".join.json"
"""Hidden, as the folder is an input of training."""

DROPPED = ("repeated", "too late", "unknown")
"""Why a click is dropped."""
LABELLED, REPEATED, CLICKED_EARLY, CLICKED_AHEAD = (
    "label's column",
    "repeated",
    "clicked early",
    "clicked ahead",
)
"""Why a row is left out. The last two: by the clocks of two servers, its click came before it; by those of a
server and of this machine, its click is still to come."""

_FEWEST = 20
"""Fewer clicks do not show that clocks are wrong."""
_MOST_EARLY, _MOST_LATE = 0.05, 0.9
"""The largest shares of clicks before their rows, and of a server's clicks after the window."""

Late = Literal["wait", "importance"]
"""`wait`: a row is written when its window has ended. `importance`: at once as not clicked, and again as
clicked when its click arrives (fake negatives; Ktena et al., Addressing Delayed Feedback for Continuous
Training with Neural Networks in CTR prediction, RecSys 2019)."""


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """How rows and clicks are joined. The last three are for streams."""

    window_s: float
    """A click counts until this long after its row was served."""
    label: str = "click"
    grace_s: float = 10.0
    """How far the clocks of servers may differ, and how long an event may take to reach the log."""
    late: Late = "importance"
    chunk_rows: int = 4_096
    """A chunk ends at this many rows, but never within a request, or at this age:"""
    chunk_s: float = 0.5

    def is_late(self, served: IdTime, clicked: IdTime) -> bool:
        """Whether a click came after the window of its row."""
        return clicked - served > round(self.window_s * 1e6)


class _State(BaseModel):
    """What has been joined so far."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Annotated[str, Field(pattern="^ctr join$")] = "ctr join"
    format_version: Annotated[int, Field(ge=1, le=1)] = 1
    label: str
    window_s: float
    until: IdTime = 0
    """Rows that were served before this have been joined."""
    parts: int = 0
    read: dict[str, int] = {}
    """Bytes read of each file of impressions."""
    counted: dict[str, int] = {}
    """The same for files of clicks, which are read again for later rows."""


@dataclass(slots=True)
class JoinResult:
    """The outcome of a run."""

    rows: int = 0
    clicked: int = 0
    file: Path | None = None
    """The rows in time order; None if there are none."""
    late_rows: int = 0
    """Those of the rows that were served before rows of earlier runs."""
    open_rows: int = 0
    """Rows whose window has not ended."""
    until: IdTime = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DROPPED, 0))
    """Number of dropped clicks by reason."""
    bad: Counter[str] = field(default_factory=Counter)
    """Number of rows that are left out by reason."""


def join(log: Path, out: Path, settings: JoinSettings, *, until: IdTime | None = None) -> JoinResult:
    """Add a file to the folder `out` with the rows of a log whose window has ended: `{label: 0 or 1, **row}`.

    A row has label 1 if a click came within the window. `until`: the time to join at; None: now. Each row is
    joined once: the state records what was read, a file gets its name when the state includes it, and the
    next run finishes or repeats a run that was killed. Raises DataError for a damaged log, and an `out` of
    other settings.
    """
    segments(log, IMPRESSIONS)  # raises DataError if there are none
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one run at a time
        return _join(log, out, settings, now() if until is None else until)


def _join(log: Path, out: Path, settings: JoinSettings, moment: IdTime) -> JoinResult:
    state, label = _read_state(out, settings), settings.label
    _publish(out, state)
    end = moment - round(settings.window_s * 1e6) - round(settings.grace_s * 1e6)
    impressions = segments(log, IMPRESSIONS)
    clicks = segments(log, CLICKS) if (log / CLICKS).is_dir() else []
    firsts = {segment: first for segment in impressions if (first := _next_id(segment, state)) is not None}
    open_from = min((time_of(first) or 0 for first in firsts.values()), default=end)
    joined = JoinResult(until=max(end, state.until))
    clocks = _Clocks(log)
    clicked = _clicked(clicks, state, min(open_from, state.until or open_from), settings, joined, clocks)
    clocks.require_right()
    place = _part(out, state.parts)
    with replace_file(_hidden(place), "the joined rows") as draft, draft.open("wb") as file:
        for event in _without_repeated(_in_order(firsts, state, end), joined):
            event_id, row = event["id"], event["row"]
            if label in row:
                joined.bad[LABELLED] += 1
                continue
            is_clicked = event_id in clicked
            if is_clicked and (problem := clicked.pop(event_id)):
                joined.bad[problem] += 1
                continue
            file.write(orjson.dumps({label: int(is_clicked), **row}, option=orjson.OPT_APPEND_NEWLINE))
            joined.rows += 1
            joined.clicked += is_clicked
            joined.late_rows += (time_of(event_id) or 0) < state.until
        file.flush()
        os.fsync(file.fileno())
    # The remaining clicks are for unknown rows, or for rows that are not joined yet.
    joined.dropped["unknown"] += sum((time_of(event_id) or 0) < end for event_id in clicked)
    if joined.rows:
        joined.file = place
        state.parts += 1
    state.until = joined.until
    joined.open_rows = sum(segment.lines(state.read.get(segment.name, 0)) for segment in firsts)
    with replace_file(out / STATE, "what was joined") as draft:
        draft.write_bytes(state.model_dump_json(indent=1).encode())
    _publish(out, state)
    return joined


def _part(out: Path, number: int) -> Path:
    return out / f"part-{number:06d}.jsonl"


def _hidden(part: Path) -> Path:
    """The path of a part until the state includes it."""
    return part.with_name(f".{part.name}")


def _publish(out: Path, state: _State) -> None:
    """Give the last part of the state its name, and remove a part that the state does not include."""
    if state.parts and (last := _part(out, state.parts - 1)) and _hidden(last).exists():
        os.replace(_hidden(last), last)
    _hidden(_part(out, state.parts)).unlink(missing_ok=True)


def _read_state(out: Path, settings: JoinSettings) -> _State:
    try:
        state = _State.model_validate_json((out / STATE).read_bytes())
    except FileNotFoundError:
        if any(not path.name.startswith(".") for path in out.iterdir()):
            raise DataError(f"{out}: holds something else than joined rows; give another folder.") from None
        return _State(label=settings.label, window_s=settings.window_s)
    except ValidationError as error:
        raise DataError(f"{out / STATE}: is damaged ({first_problem(error)}); restore it.") from None
    if (state.label, state.window_s) != (settings.label, settings.window_s):
        raise DataError(
            f"{out}: was joined with --label {state.label} --window {state.window_s:g}s; repeat these, or"
            " give another folder."
        )
    return state


def _next_id(segment: Segment, state: _State) -> str | None:
    """The id of the first row that is not yet joined; None if there is none."""
    for event, _ in segment.events(state.read.get(segment.name, 0)):
        return str(event["id"])
    return None


def _in_order(firsts: Mapping[Segment, str], state: _State, end: IdTime) -> Iterator[dict[str, Any]]:
    """The rows to join now, in order of their ids; `firsts`: the first id of each file.

    A file is opened when its first row is due: a log may have more files than a process may open.
    """
    files = [_served(segment, state, end) for segment in firsts]
    due: list[tuple[str, int, dict[str, Any] | None]] = [
        (first, i, None) for i, first in enumerate(firsts.values())
    ]
    heapq.heapify(due)
    while due:
        _, i, event = due[0]
        if event is not None:
            yield event
        if (event := next(files[i], None)) is None:
            heapq.heappop(due)
        else:
            heapq.heapreplace(due, (event["id"], i, event))


def _without_repeated(events: Iterator[dict[str, Any]], joined: JoinResult) -> Iterator[dict[str, Any]]:
    """The rows without those of a copied file; counts these."""
    # Numbers, as text, do not ascend, so repeated ids of one time need not be neighbours.
    time, ids = "", set[str]()
    for event in events:
        event_id = event["id"]
        if not event_id.startswith(f"{time}-"):
            time, ids = event_id.partition("-")[0], set()
        if event_id in ids:
            joined.bad[REPEATED] += 1
            continue
        ids.add(event_id)
        yield event


def _served(segment: Segment, state: _State, end: IdTime) -> Iterator[dict[str, Any]]:
    """The rows of a file to join now; records in the state how far the file was read."""
    for event, position in segment.events(state.read.get(segment.name, 0)):
        if (time_of(event["id"]) or 0) >= end:
            return
        state.read[segment.name] = position
        yield event


@dataclass(slots=True)
class _Clocks:
    """Counts clicks on rows that are not joined yet, to notice clocks that are wrong."""

    log: Path
    late: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """By kind of files and process: the number of clicks, and of those after the window."""
    early: Counter[str] = field(default_factory=Counter)
    """Clicks before their rows, by the two processes."""
    clicks: int = 0

    def count(self, row_writer: str, click_writer: str, *, is_late: bool, is_early: bool) -> None:
        """Count a click."""
        self.clicks += 1
        for process in ((CLICKS, click_writer), (IMPRESSIONS, row_writer)):
            counts = self.late.setdefault(process, [0, 0])
            counts[0] += 1
            counts[1] += is_late
        if is_early:
            self.early[f"{CLICKS}/*-{click_writer}.jsonl and {IMPRESSIONS}/*-{row_writer}.jsonl"] += 1

    def require_right(self) -> None:
        """Raise DataError if so many clicks are early or late that rows would get wrong labels."""
        early = self.early.total()
        if early >= _FEWEST and early > _MOST_EARLY * self.clicks:
            raise DataError(
                f"{self.log}: {early:,} of {self.clicks:,} clicks came before their rows, by the clocks of "
                f"two servers, most of them those of {self.early.most_common(1)[0][0]}; set the clocks "
                "right, and give a longer --grace for what is in the log."
            )
        for (kind, writer), (count, late) in self.late.items():
            if late >= _FEWEST and late > _MOST_LATE * count:
                of = "stored in" if kind == CLICKS else "on the rows of"
                raise DataError(
                    f"{self.log}: {late:,} of {count:,} clicks {of} {kind}/*-{writer}.jsonl came after the "
                    "window, so their rows would count as not clicked: set the server's clock right and "
                    "remove these files, or give a longer --window if clicks do come that late."
                )


def _clicked(
    files: list[Segment],
    state: _State,
    open_from: IdTime,
    settings: JoinSettings,
    joined: JoinResult,
    clocks: _Clocks,
) -> dict[str, str]:
    """Rows with clicks that may be joined now or later, by id; why the row is left out, or "" to label it 1.

    Counts dropped clicks.
    """
    clicked: dict[str, str] = {}
    grace = round(settings.grace_s * 1e6)
    latest = now() + grace
    for segment in files:
        counted = state.counted.get(segment.name, 0)
        position = 0
        for event, position in segment.events():
            event_id, moment = event["id"], event["time"]
            served = time_of(event_id) or 0
            is_late, is_early = settings.is_late(served, moment), moment < served - grace
            if served >= open_from:
                writer = segment.path.stem.partition("-")[2]
                clocks.count(event_id.split("-")[1], writer, is_late=is_late, is_early=is_early)
            if served >= open_from and moment > latest:
                clicked.setdefault(event_id, CLICKED_AHEAD)
            elif served < open_from or is_late:
                joined.dropped["too late"] += position > counted
            elif clicked.get(event_id) == "":
                joined.dropped["repeated"] += position > counted
            else:
                clicked[event_id] = CLICKED_EARLY if is_early else ""
        state.counted[segment.name] = position
    return clicked
