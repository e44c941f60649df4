"""`RecordStore`: records by name and one head, in one Redis, which several processes change together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Lock
from typing import Any

from ctr.errors import StoreError
from ps.records.creation import Beginning, Record, open_records, writes
from ps.records.outage import Outage
from ps.wire import (
    BROKEN,
    Command,
    Decision,
    Keys,
    Nodes,
    Patience,
    RecordsPart,
    RedisUrl,
    ServerError,
    Transactions,
    connect,
    eviction_policies,
    rights_hint,
)

TIMEOUT_S, PATIENCE_S = 1.0, 1.0
"""How long a server may be silent, and how long it is asked again: somebody waits for the answer."""
_CREATING_TIMEOUT_S, _CREATING_PATIENCE_S = 10.0, 30.0
_TURN_MS, _TURN_S = 3_000, 10.0
"""How long a turn lasts at most, and how long it is waited for."""
_PAUSE_S, _LONGEST_PAUSE = 0.001, 20
_REMEMBERED_S = 60
"""How long Redis knows which of a writer's changes was the last; longer than any is tried."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is written."""

    head: bytes
    records: Sequence[Record]


Decide = Callable[[bytes, list[bytes | None]], Change | None]
"""What to write, given the head and the values of records; None for nothing. May be asked several times."""


class RecordStore:
    """What is in Redis of the name `url.model`, by default `default`. For any number of threads.

    Everything is on one node, and every change writes the head, which it has watched: so changes come one
    after the other, each as a whole, and a reader sees what is between two of them. A writer whom others have
    forestalled takes a turn, during which these wait: so a large change comes through among many small ones.
    Each is made once, as Redis knows the number of a writer's last one.
    """

    def __init__(
        self,
        url: RedisUrl,
        facts: Mapping[str, str],
        begin: Callable[[], Beginning],
        differ: Callable[[str, str, str], str],
    ) -> None:
        """Open what is there, or create it with what `begin` gives; see `open_records`. Raises StoreError."""
        self.url, self._keys = url, Keys(url.model or "default")
        self._head = self._keys.of_windows(RecordsPart.HEAD)
        self._turn = self._keys.of_windows(RecordsPart.TURN)
        with (
            closing(connect(url, self._keys, _CREATING_TIMEOUT_S)) as nodes,
            closing(self._transactions_of(nodes, _CREATING_PATIENCE_S)) as line,
        ):
            self._require_no_eviction(nodes)
            self._incarnation, self.created = open_records(line, url, self._keys, facts, begin, differ)
        self._nodes = connect(url, self._keys, TIMEOUT_S)
        self._transactions = self._transactions_of(self._nodes, PATIENCE_S)
        self._id = secrets.token_hex(8).encode()
        self._writer = self._keys.of_windows(RecordsPart.WRITER) + self._id
        self._number = 0
        self._writing = Lock()
        self._outage = Outage()

    def read(self, names: Sequence[bytes]) -> tuple[bytes, list[bytes | None]]:
        """The head and the values of records, None where there is none; all of one moment.

        Raises StoreError when Redis is away, and when it has lost them.
        """
        with self._outage.guard():
            return self._checked(self._transactions.ask(self._head, [self._get(names)])[0])

    def change(self, names: Sequence[bytes], decide: Decide) -> None:
        """Read as `read` does, and write what `decide` says, if nothing was changed in between; or again.

        Raises StoreError as `read` does, and says so if nobody knows whether it was written.
        """
        with self._writing:
            self._number += 1
            attempt = _Attempt(self, names, decide)
            try:
                while not self._try(attempt):
                    self._take_turn()
            except StoreError as error:
                if attempt.is_sent and not isinstance(error.__cause__, ServerError):
                    raise StoreError(f"{error} It may have been written all the same.") from error
                raise

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._transactions.close()
        self._nodes.close()

    def _transactions_of(self, nodes: Nodes, patience_s: float) -> Transactions:
        return Transactions(nodes, self.url, patience_s=patience_s, of="the windows", then="")

    def _require_no_eviction(self, nodes: Nodes) -> None:
        try:
            policies = eviction_policies(self.url, nodes.client())
        except BROKEN as error:
            raise StoreError(f"{self.url}: cannot be used ({error}){rights_hint(error)}.") from error
        if others := policies - {"noeviction", ""}:
            raise StoreError(
                f"{self.url}: deletes keys when its memory is full (maxmemory-policy {min(others)}), and so "
                "what windows know; set maxmemory-policy to noeviction."
            )

    def _get(self, names: Sequence[bytes]) -> Command:
        begin = self._keys.of_windows(RecordsPart.RECORD) + self._incarnation
        return (b"MGET", self._head, *[begin + name for name in names])

    def _checked(self, found: list[bytes | None]) -> tuple[bytes, list[bytes | None]]:
        head, *values = found
        if head is None or not head.startswith(self._incarnation):
            raise StoreError(
                f"{self.url}: the windows {self._keys.model!r} are gone, or were created anew (did Redis "
                "restart empty, or were they deleted?); start the server again, which creates them or takes "
                "the new ones."
            )
        return head[len(self._incarnation) :], values

    def _try(self, attempt: _Attempt) -> bool:
        with self._outage.guard():
            return self._transactions.update([self._head], attempt.reads, attempt.decide)

    def _take_turn(self) -> None:
        """Wait until nobody else has the turn, and take it."""
        patience = Patience(_TURN_S, _PAUSE_S, longest=_LONGEST_PAUSE)
        while not self._has_turn():
            patience.pause(self._no_turn)  # outside of the guard: who waits has met a server that answers

    def _has_turn(self) -> bool:
        take = (b"SET", self._turn, self._id, b"NX", b"PX", b"%d" % _TURN_MS)
        with self._outage.guard():
            found = self._transactions.ask(self._turn, [take, (b"GET", self._turn)])
        return bool(found[1] == self._id)

    def _no_turn(self) -> StoreError:
        return StoreError(
            f"{self.url}: others have changed the windows for {_TURN_S:g} s, so that nothing could be "
            "written; send more events in one request, so that there are fewer changes."
        )


class _Attempt:
    """A change, from the first attempt until it is written."""

    def __init__(self, store: RecordStore, names: Sequence[bytes], decide: Decide) -> None:
        self._store, self._wanted = store, decide
        self.reads: list[Command] = [(b"GET", store._turn), (b"GET", store._writer), store._get(names)]
        self.is_sent = False
        """Whether it was, without an answer so far."""
        self._tries = 0

    def decide(self, found: list[Any]) -> Decision[bool]:
        """What to write; the result is False where a turn is needed first."""
        store, (turn, number, values) = self._store, found
        self.is_sent = False
        if number == b"%d" % store._number:
            return [], lambda _: True  # it was written, and the answer was lost
        self._tries += 1
        mine = turn == store._id
        if not mine and (turn is not None or self._tries > 1):
            self._tries = 0
            return [], lambda _: False
        change = self._wanted(*store._checked(values))
        commands: list[Command] = [(b"DEL", store._turn)] if mine else []
        if change is not None:
            commands += writes(store._keys, store._incarnation, change.records)
            commands.append((b"SET", store._head, store._incarnation + change.head))
            commands.append((b"SET", store._writer, b"%d" % store._number, b"EX", b"%d" % _REMEMBERED_S))
            self.is_sent = True
        return commands, lambda _: True
