"""`StreamWriter`: events as entries of a Redis stream."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

import orjson

from ctr.errors import StoreError
from ctr.ps import RedisUrl
from ctr.ps.wire import Connection, Write, connect
from ctr.stream.event_log import EventIds
from ctr.stream.event_stream import key_of

logger = logging.getLogger(__name__)

_ENTRY_EVENTS = 256
"""The most events of an entry; requests with more rows become several entries."""
_BATCH_BYTES = 1 << 20
_QUEUE_BYTES = 64 << 20
"""The most bytes of events that wait for Redis; further rows are not stored."""
_TIMEOUT_S, _PATIENCE_S = 2.0, 1.0
"""Short, as a client that sends clicks must soon learn that they were not stored."""
_PAUSE_S = 1.0
"""The time between two attempts while Redis is unreachable or refuses, and between two trims."""
_CLOSE_S = 5.0


class StreamWriter:
    """Appends events of one kind to the stream `url.stream`. Thread-safe.

    A background thread sends new events, each exactly once, so that nobody waits for Redis.
    """

    def __init__(self, url: RedisUrl, kind: str, kept_s: float) -> None:
        self._url, self._kept_s = url, kept_s
        self._key, self._kept_key = key_of(url, kind), key_of(url, "kept")
        self._ids = EventIds()
        self._batches_key = key_of(url, f"writer:{self._ids.writer}")
        self._batches = 0
        self._changed = threading.Condition()
        """Guards the queue; notified when there is something to send, and on close."""
        self._queue: deque[bytes] = deque()
        self._queue_bytes = 0
        self._is_closing = threading.Event()
        self._problem = ""
        """Why Redis refused the last batch; empty if it did not."""
        self._thread: threading.Thread | None = None
        self._connecting = threading.Lock()
        self._connection: Connection | None = None
        self._refused_at = self._trimmed_at = -float("inf")

    def write_new(self, events: Sequence[dict[str, Any]]) -> list[str]:
        """Queue events with new ids, which are returned. Raises OSError if too much waits for Redis."""
        with self._changed:
            identified = self._ids.identified(events)
            entries = _entries(identified)
            size = sum(map(len, entries))
            if self._queue_bytes + size > _QUEUE_BYTES:
                raise OSError(self._problem or f"{self._url}: stores rows more slowly than they are served")
            self._queue.extend(entries)
            self._queue_bytes += size
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="events", daemon=True)
                self._thread.start()
            self._changed.notify()
        return [event["id"] for event in identified]

    def write(self, events: Sequence[dict[str, Any]]) -> None:
        """Append events that have ids. Raises OSError if Redis fails; some may have been written then."""
        if monotonic() - self._refused_at < _PAUSE_S:  # otherwise, many threads would wait for a server
            raise OSError(f"{self._url}: Redis cannot be reached, or refuses")
        try:
            connection = self._connected()
            self._trim(connection)
            appends = [("XADD", self._key, "*", "events", entry) for entry in _entries(events)]
            if appends:
                connection.ask(*appends, ("SET", self._kept_key, str(self._kept_s)))
        except StoreError as error:
            self._refused_at = monotonic()
            raise OSError(str(error)) from None

    def close(self) -> None:
        """Wait up to 5 s until everything is in Redis."""
        with self._changed:
            self._is_closing.set()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
            if self._queue:
                logger.error("%d requests with rows that were served are not stored", len(self._queue))
        if self._connection is not None:
            self._connection.close()

    def _send(self) -> None:
        batch: list[bytes] = []
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing.is_set())
                # A failed attempt may have appended it, so it is repeated with the same entries.
                batch = batch or self._next_batch()
            if not batch:
                return
            is_last_try = self._is_closing.is_set()
            try:
                connection = self._connected()
                self._trim(connection)
                self._append(connection, batch)
            except StoreError as error:
                if not self._problem:
                    logger.error("rows that were served wait for Redis: %s", error)
                self._problem = str(error)
                if is_last_try:
                    return
                self._is_closing.wait(_PAUSE_S)
                continue
            self._problem = ""
            with self._changed:
                for entry in batch:
                    self._queue.popleft()
                    self._queue_bytes -= len(entry)
            batch = []

    def _next_batch(self) -> list[bytes]:
        batch, size = [], 0
        for entry in self._queue:
            if size >= _BATCH_BYTES:
                break
            batch.append(entry)
            size += len(entry)
        return batch

    def _append(self, connection: Connection, batch: list[bytes]) -> None:
        """Append a batch, unless an earlier attempt did so and its answer was lost."""

        def decide(answers: list[Any]) -> Write[None]:
            if int(answers[0] or 0) > self._batches:
                return (), None
            appends = [("XADD", self._key, "*", "events", entry) for entry in batch]
            counted = ("SET", self._batches_key, self._batches + 1, "EX", max(round(self._kept_s), 1))
            return [*appends, counted, ("SET", self._kept_key, str(self._kept_s))], None

        connection.update([self._batches_key], [("GET", self._batches_key)], decide)
        self._batches += 1

    def _trim(self, connection: Connection) -> None:
        """Remove old entries, by the clock of Redis; separately, as Redis allows that when memory is full."""
        if monotonic() - self._trimmed_at < _PAUSE_S:
            return
        _, (seconds, _) = connection.ask(("EXISTS", self._key), ("TIME",))
        oldest_ms = round((int(seconds) - self._kept_s) * 1_000)
        connection.ask(("XTRIM", self._key, "MINID", "~", f"{max(oldest_ms, 0)}-0"))
        self._trimmed_at = monotonic()

    def _connected(self) -> Connection:
        with self._connecting:
            if self._connection is None:
                nodes = connect(self._url, _TIMEOUT_S)
                self._connection = Connection(
                    nodes, patience_s=_PATIENCE_S, purpose="the stream of events", remedy=""
                )
            return self._connection


def _entries(events: Sequence[dict[str, Any]]) -> list[bytes]:
    lines = [orjson.dumps(event) for event in events]
    return [b"\n".join(lines[i : i + _ENTRY_EVENTS]) for i in range(0, len(lines), _ENTRY_EVENTS)]
