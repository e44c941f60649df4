"""`EventWriter` and `segments`: events as lines of JSON in the files of a folder.

    impressions/<time>-<writer>.jsonl    {"id", "model", "prediction", "row"}
    clicks/<time>-<writer>.jsonl         {"id", "time"}

Any number of processes append, each to its own files. An id is `<time>-<writer>-<number>` in hexadecimal: the
time when a row was served, in microseconds since 1970, the process, and the number of the row. So ids are
unique without coordination, and sort by time.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time_ns
from typing import Any

import orjson

from ctr.errors import DataError

IMPRESSIONS, CLICKS = "impressions", "clicks"
SEGMENT_BYTES, SEGMENT_S = 64 << 20, 600.0
"""A file is closed, and the next one started, at this size or age."""
SYNC_S = 1.0
"""A machine that fails loses at most this; a process that fails loses nothing."""
_ID = re.compile(r"([0-9a-f]{14})-[0-9a-f]{8}-[0-9a-f]{1,12}")
_SEGMENT = re.compile(r"[0-9a-f]{14}-[0-9a-f]{8}\.jsonl")

IdTime = int
"""Microseconds since 1970, UTC."""


def now() -> IdTime:
    return time_ns() // 1_000


def time_of(event_id: str) -> IdTime | None:
    """When the row of an id was served; None for an invalid id."""
    parts = _ID.fullmatch(event_id)
    return None if parts is None else int(parts[1], 16)


class EventIds:
    """Makes the ids of one process. Not thread-safe."""

    def __init__(self) -> None:
        self.writer = secrets.token_hex(4)
        """The part of the ids that stands for this process."""
        self._latest: IdTime = 0
        self._number = 0

    def identified(self, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The events, each with an id."""
        # Never earlier than previous ids, even if the clock was set back.
        self._latest = max(self._latest, now())
        first, self._number = self._number, self._number + len(events)
        prefix = f"{self._latest:014x}-{self.writer}-"
        return [{"id": f"{prefix}{number:x}", **event} for number, event in enumerate(events, first)]


def parse_event(line: bytes, kind: str) -> dict[str, Any] | None:
    """The event in a line of JSON; None if it is not an event of this kind."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    is_event = (
        isinstance(event, dict)
        and isinstance(event.get("id"), str)
        and (isinstance(event.get("row"), dict) if kind == IMPRESSIONS else type(event.get("time")) is int)
        and time_of(event["id"]) is not None
    )
    return event if is_event else None


class EventWriter:
    """Appends events of one kind to files. Thread-safe.

    Each batch of lines is written by one call, so a killed process leaves whole lines.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        """Raises DataError if the folder is not writable."""
        self._folder, self._ids = folder / kind, EventIds()
        # On a thread, as a disk may be slow.
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._lock = threading.Lock()
        self._file: int | None = None
        self._opened_at, self._synced_at, self._bytes = 0.0, 0.0, 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self._folder}: the log cannot be written ({error.strerror}).") from None

    def write_new(self, events: Sequence[dict[str, Any]]) -> list[str]:
        """Append events with new ids, which are returned. Raises OSError; then no event was written."""
        with self._lock:
            identified = self._ids.identified(events)
            self._append(identified)
        return [event["id"] for event in identified]

    def write(self, events: Sequence[dict[str, Any]]) -> None:
        """Append events that have ids. Raises OSError as `write_new` does."""
        with self._lock:
            self._append(events)

    def _append(self, events: Sequence[dict[str, Any]]) -> None:
        content = b"".join(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE) for event in events)
        file, moment = self._open(), monotonic()
        written = os.write(file, content)
        if written != len(content):
            with suppress(OSError):
                os.ftruncate(file, self._bytes)
            self._close()
            raise OSError("the disk is full")
        self._bytes += written
        if moment - self._synced_at > SYNC_S:
            self._synced_at = moment
            self._syncing.submit(_sync, os.dup(file))

    def close(self) -> None:
        """Close the file after everything is on disk."""
        with self._lock:
            self._close()
        self._syncing.shutdown()

    def _open(self) -> int:
        if self._file is not None and (
            self._bytes >= SEGMENT_BYTES or monotonic() - self._opened_at >= SEGMENT_S
        ):
            self._close()
        if self._file is None:
            name = f"{now():014x}-{self._ids.writer}.jsonl"
            self._file = os.open(
                self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640
            )
            self._opened_at = self._synced_at = monotonic()
            self._bytes = 0
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = None


def _sync(file: int) -> None:
    with suppress(OSError):
        os.fsync(file)
    os.close(file)


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of events; the ids of impressions ascend."""

    path: Path
    kind: str

    @property
    def name(self) -> str:
        """Unique among the files of its kind."""
        return self.path.name

    def events(self, start: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
        """The events from byte `start` on, each with the position after it. Skips an unfinished last line.

        Raises DataError for a line that is not an event.
        """
        position = start
        with self.path.open("rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                event = parse_event(line, self.kind)
                if event is None:
                    raise DataError(f"{self.path}, byte {position}: not an event of a log; restore the file.")
                position += len(line)
                yield event, position

    def lines(self, start: int) -> int:
        """The number of lines from byte `start` on."""
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read().count(b"\n")


def segments(folder: Path, kind: str) -> list[Segment]:
    """The files of one kind in order of name. Raises DataError if there is no log."""
    place = folder / kind
    if not place.is_dir():
        raise DataError(
            f"{folder}: there is no log of {kind}; `ctr serve --feedback-log {folder}` writes one."
        )
    return [Segment(path, kind) for path in sorted(place.iterdir()) if _SEGMENT.fullmatch(path.name)]
