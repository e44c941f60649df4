"""`join`: rows that were served, each once, with whether they were clicked."""

from __future__ import annotations

import fcntl
import heapq
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ctr.errors import DataError, first_problem
from ctr.outputs import replace_file
from ctr.stream.event_log import CLICKS, IMPRESSIONS, IdTime, Segment, now, segments, time_of

STATE = ".join.json"
"""Hidden, as the folder is an input of training."""
GRACE_S = 10.0
"""How long events may take from the moment that they tell to the log, and how far clocks may differ."""

DROPPED = ("repeated", "too late", "before the impression", "unknown")
"""Why a click tells nothing."""


def why_dropped(served: IdTime, clicked: IdTime, window_s: float, grace_s: float) -> str | None:
    """Why a click tells nothing of a row that was served then; None if it may."""
    if clicked - served > round(window_s * 1e6):
        return "too late"
    return "before the impression" if clicked < served - round(grace_s * 1e6) else None


class _State(BaseModel):
    """What has been joined until now."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Annotated[str, Field(pattern="^ctr join$")] = "ctr join"
    format_version: Annotated[int, Field(ge=1, le=1)] = 1
    label: str
    window_s: float
    until: IdTime = 0
    """Rows that were served before have been joined."""
    parts: int = 0
    read: dict[str, int] = {}
    """Of each file of impressions, how many bytes."""
    counted: dict[str, int] = {}
    """The same of clicks. They are read again for rows that are joined later."""


@dataclass(slots=True)
class Joined:
    """What came of a run."""

    rows: int = 0
    clicked: int = 0
    file: Path | None = None
    """With the rows, in the order of time; None without any."""
    late_rows: int = 0
    """Of them, those that others were joined before, which were served later."""
    until: IdTime = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DROPPED, 0))
    """Clicks that tell nothing, by why."""


def join(
    log: Path,
    out: Path,
    *,
    window_s: float,
    label: str = "click",
    grace_s: float = GRACE_S,
    until: IdTime | None = None,
) -> Joined:
    """Add to the folder `out` a file with the rows of a log whose window has ended: `{label: 0 or 1, **row}`.

    A row's label is 1 if a click came at most `window_s` seconds after it was served. `until`: as if it were
    that moment. Each row is joined once: what the state says to have been read decides, a file gets its name
    when it counts, and a run that was killed is finished or repeated by the next. Raises DataError for a log
    that is torn, an `out` that was made with other settings, and a row that has a column of the label's name.
    """
    segments(log, IMPRESSIONS)  # which says if there are none
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one run at a time
        return _join(log, out, _read_state(out, label, window_s), grace_s, now() if until is None else until)


def _join(log: Path, out: Path, state: _State, grace_s: float, moment: IdTime) -> Joined:
    _show(out, state)
    label, window = state.label, round(state.window_s * 1e6)
    ends = moment - window - round(grace_s * 1e6)
    impressions = segments(log, IMPRESSIONS)
    clicks = segments(log, CLICKS) if (log / CLICKS).is_dir() else []
    open_from = min((_next_time(each, state) for each in impressions), default=ends)
    joined = Joined(until=max(ends, state.until))
    by_id = _clicks(clicks, state, min(open_from, state.until or open_from), window, joined)
    place = _part(out, state.parts)
    with replace_file(_hidden(place), "the joined rows") as draft, draft.open("wb") as file:
        served = (_served(each, state, ends) for each in impressions)
        for event in heapq.merge(*served, key=lambda each: str(each["id"])):
            event_id, row = event["id"], event["row"]
            if label in row:
                raise DataError(
                    f"{log}: a row has the column {label!r} already; give another name with --label."
                )
            clicked = by_id.pop(event_id, None) is not None
            file.write(orjson.dumps({label: int(clicked), **row}, option=orjson.OPT_APPEND_NEWLINE))
            joined.rows += 1
            joined.clicked += clicked
            joined.late_rows += (time_of(event_id) or 0) < state.until
        file.flush()
        os.fsync(file.fileno())
    # What is left was for no row, or for one that is not joined yet.
    joined.dropped["unknown"] += sum((time_of(event_id) or 0) < ends for event_id in by_id)
    if joined.rows:
        joined.file = place
        state.parts += 1
    state.until = joined.until
    with replace_file(out / STATE, "what was joined") as draft:
        draft.write_bytes(state.model_dump_json(indent=1).encode())
    _show(out, state)
    return joined


def _part(out: Path, number: int) -> Path:
    return out / f"part-{number:06d}.jsonl"


def _hidden(part: Path) -> Path:
    """Where a part is until it counts."""
    return part.with_name(f".{part.name}")


def _show(out: Path, state: _State) -> None:
    """Give the last part that counts its name, and remove one that does not."""
    if state.parts and (last := _part(out, state.parts - 1)) and _hidden(last).exists():
        os.replace(_hidden(last), last)
    _hidden(_part(out, state.parts)).unlink(missing_ok=True)


def _read_state(out: Path, label: str, window_s: float) -> _State:
    try:
        state = _State.model_validate_json((out / STATE).read_bytes())
    except FileNotFoundError:
        if any(not each.name.startswith(".") for each in out.iterdir()):
            raise DataError(f"{out}: holds something else than joined rows; give another folder.") from None
        return _State(label=label, window_s=window_s)
    except ValidationError as error:
        where, problem = first_problem(error)
        raise DataError(f"{out / STATE}: is torn ({where}: {problem}); restore it.") from None
    if (state.label, state.window_s) != (label, window_s):
        raise DataError(
            f"{out}: was joined with --label {state.label} --window {state.window_s:g}s; repeat these, or"
            " give another folder."
        )
    return state


def _next_time(segment: Segment, state: _State) -> IdTime:
    """When the first row that is not joined yet was served; the far future if there is none."""
    for event, _ in segment.events(state.read.get(segment.name, 0)):
        return time_of(event["id"]) or 0
    return 1 << 62


def _served(segment: Segment, state: _State, ends: IdTime) -> Iterator[dict[str, Any]]:
    """The rows of a file that are to be joined now; notes how far it was read."""
    for event, position in segment.events(state.read.get(segment.name, 0)):
        if (time_of(event["id"]) or 0) >= ends:
            return
        state.read[segment.name] = position
        yield event


def _clicks(
    files: list[Segment], state: _State, open_from: IdTime, window: IdTime, joined: Joined
) -> dict[str, IdTime]:
    """The first click for each row that may be joined now or later, by id; counts what tells nothing."""
    by_id: dict[str, IdTime] = {}
    for segment in files:
        counted = state.counted.get(segment.name, 0)
        position = 0
        for event, position in segment.events():
            event_id, clicked = event["id"], int(event.get("time", 0))
            served = time_of(event_id) or 0
            is_new = position > counted
            if served < open_from or clicked - served > window:
                joined.dropped["too late"] += is_new
            elif clicked < served - round(GRACE_S * 1e6):
                joined.dropped["before the impression"] += is_new
            elif event_id in by_id:
                joined.dropped["repeated"] += is_new
            else:
                by_id[event_id] = clicked
        state.counted[segment.name] = position
    return by_id
