"""`RecordStore`: named records and one head in a Redis, which several processes change together."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from threading import Lock
from time import monotonic
from typing import Any

from ctr.errors import StoreError
from ctr.ps.records.creation import HEAD, Change, Record, open_records, write
from ctr.ps.wire import (
    INCARNATION,
    Command,
    Connection,
    Keys,
    Patience,
    RedisUrl,
    ServerError,
    Write,
    connect,
    eviction_policies,
    pairs,
)

TIMEOUT_S, PATIENCE_S = 1.0, 1.0
"""When a silent server counts as broken, and how long a request is retried; short, as users wait."""
_CREATING_TIMEOUT_S, _CREATING_PATIENCE_S = 10.0, 30.0
_TURN_MS, _TURN_S = 3_000, 10.0
"""How long a turn lasts at most, and how long a writer waits for one."""
_PAUSE_S, _LONGEST_PAUSE = 0.001, 20
_LEAST_OTHERS = 16
"""A change checks at least this many other records, or as many as it reads, for some to delete."""
_RETRY_S = 1.0
"""Between two requests to a server that is away. If all threads waited for it, none would be free for
requests that need no server."""

logger = logging.getLogger(__name__)


Decide = Callable[[bytes, list[bytes | None], list[Record]], Change | None]
"""Returns the change to write, or None, given the head, the values of records, and some other records, which
differ from call to call. May be called several times."""


class RecordStore:
    """The records of the windows `url.model` (default: `default`). Thread-safe.

    All records are one hash, which every change watches. So changes come one after the other, each as a
    whole, and a reader sees the records between two changes. Records have no time to live, because a step of
    the server's clock would delete many at once. A writer whose transaction failed takes a turn, during which
    the other writers wait: so a large change succeeds among many small ones. Redis keeps the number of each
    writer's last change, so every change is made once.
    """

    def __init__(
        self,
        url: RedisUrl,
        facts: Mapping[str, str],
        begin: Callable[[], Change],
        differ: Callable[[str, str, str], str],
    ) -> None:
        """Open the records, or create them from `begin`; see `open_records`. Raises StoreError."""
        self.url, self._keys = url, Keys(url.model or "default")
        self._turn = self._keys.windows.turn
        with closing(self._connect(_CREATING_TIMEOUT_S, _CREATING_PATIENCE_S)) as patient:
            self._require_no_eviction(patient)
            self._incarnation, self.created = open_records(patient, url, self._keys, facts, begin, differ)
        self._records = self._keys.windows.records(self._incarnation)
        self._connection = self._connect(TIMEOUT_S, PATIENCE_S)
        self._id = secrets.token_hex(8).encode()
        self._writers = self._keys.windows.writers
        self._number = 0
        self._cursor = b"%d" % secrets.randbits(32)
        """The position from which the next change checks other records."""
        self._writing = Lock()
        self._outage = Outage()

    def read(self, names: Sequence[bytes]) -> tuple[bytes, list[bytes | None]]:
        """The head and the values of records, None for absent ones, as of one moment.

        Raises StoreError if Redis is away, and if it has lost the records.
        """
        with self._outage.guard():
            return self._checked(*self._connection.ask(*self._get(names)))

    def change(self, names: Sequence[bytes], decide: Decide) -> None:
        """Read as `read` does, and write the change that `decide` returns; repeat if others wrote meanwhile.

        Raises StoreError as `read` does; its message says so if the change may have been written.
        """
        with self._writing:
            self._number += 1
            attempt = _Attempt(self, names, decide)
            watched = [self._records, self._keys.windows.facts]
            try:
                while True:
                    with self._outage.guard():
                        if self._connection.update(watched, attempt.reads, attempt.decide):
                            return
                    self._take_turn()
            except StoreError as error:
                if attempt.is_sent and not isinstance(error.__cause__, ServerError):
                    raise StoreError(f"{error} The change may nevertheless have been written.") from error
                raise

    def close(self) -> None:
        """Close the connections that are not in use."""
        if self._number:
            with suppress(StoreError):
                self._connection.ask(("HDEL", self._writers, self._id))
        self._connection.close()

    def _connect(self, timeout_s: float, patience_s: float) -> Connection:
        nodes = connect(self.url, timeout_s)
        return Connection(nodes, patience_s=patience_s, purpose="the windows", remedy="")

    def _require_no_eviction(self, connection: Connection) -> None:
        if others := eviction_policies(connection) - {"noeviction", ""}:
            raise StoreError(
                f"{self.url}: this server deletes keys when its memory is full (maxmemory-policy "
                f"{min(others)}), and so the contents of windows; set maxmemory-policy to noeviction."
            )

    def _get(self, names: Sequence[bytes]) -> list[Command]:
        return [("HGET", self._keys.windows.facts, INCARNATION), ("HMGET", self._records, HEAD, *names)]

    def _checked(
        self, incarnation: bytes | None, records: list[bytes | None]
    ) -> tuple[bytes, list[bytes | None]]:
        head, *values = records
        if incarnation != self._incarnation or head is None:
            raise StoreError(
                f"{self.url}: the windows {self._keys.model!r} are gone, or were created anew (did Redis "
                "restart empty, or were they deleted?); start the server again, which creates them or uses "
                "the new ones."
            )
        return head, values

    def _take_turn(self) -> None:
        """Wait until no other writer has the turn, and take it."""
        take: Command = ("SET", self._turn, self._id, "NX", "PX", _TURN_MS)
        patience = Patience(_TURN_S, _PAUSE_S, longest=_LONGEST_PAUSE)
        while True:
            with self._outage.guard():
                _, owner = self._connection.ask(take, ("GET", self._turn))
            if owner == self._id:
                return
            patience.pause(self._no_turn)  # outside of the guard: the server answers

    def _no_turn(self) -> StoreError:
        return StoreError(
            f"{self.url}: others kept changing the windows for {_TURN_S:g} s, so that nothing could be "
            "written; send more events in each request, for fewer changes."
        )


class _Attempt:
    """A change, which is attempted until it is written."""

    def __init__(self, store: RecordStore, names: Sequence[bytes], decide: Decide) -> None:
        self._store, self._decide = store, decide
        self._names = frozenset((HEAD, *names))
        others = max(len(names), _LEAST_OTHERS)
        self.reads: list[Command] = [
            ("GET", store._turn),
            ("HGET", store._writers, store._id),
            *store._get(names),
            ("HSCAN", store._records, store._cursor, "COUNT", others),
        ]
        self.is_sent = False
        """True if a transaction was sent and its answer has not arrived."""
        self._tries = 0

    def decide(self, answers: list[Any]) -> Write[bool]:
        """The commands to write; the result is False if the writer needs a turn first."""
        store, (turn, number, *values, (cursor, scanned)) = self._store, answers
        self.is_sent = False
        if number == b"%d" % store._number:
            return [], True  # it was written, and the answer was lost
        self._tries += 1
        has_turn = turn == store._id
        if not has_turn and (turn is not None or self._tries > 1):
            self._tries = 0
            return [], False
        others = [record for record in pairs(scanned).items() if record[0] not in self._names]
        change = self._decide(*store._checked(*values), others)
        commands: list[Command] = [("DEL", store._turn)] if has_turn else []
        if change is not None:
            commands.append(write(store._records, [(HEAD, change.head), *change.records]))
            if change.deleted:
                commands.append(("HDEL", store._records, *change.deleted))
            commands.append(("HSET", store._writers, store._id, store._number))
            self.is_sent = True
            store._cursor = cursor
        return commands, True


class Outage:
    """Makes requests fail immediately while a server is away, except one now and then that tries it.

    Thread-safe. Logs a line when an outage begins, and one when it ends.
    """

    def __init__(self) -> None:
        self._problem: str | None = None
        self._next_try = 0.0
        self._lock = Lock()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Guard a request: raises the last StoreError during an outage, unless it is time to try again."""
        self._require_try()
        try:
            yield
        except StoreError as error:
            self._note(str(error))
            raise
        except BaseException:  # says nothing about the server
            self._next_try = 0.0
            raise
        self._note(None)

    def _note(self, problem: str | None) -> None:
        with self._lock:
            if problem is not None and self._problem is None:
                logger.warning("%s", problem)
            elif problem is None and self._problem is not None:
                logger.warning("answers again, after: %s", self._problem)
            self._problem, self._next_try = problem, monotonic() + _RETRY_S

    def _require_try(self) -> None:
        with self._lock:
            if self._problem is None:
                return
            if monotonic() < self._next_try:
                raise StoreError(self._problem)
            self._next_try = float("inf")  # until this request has ended
