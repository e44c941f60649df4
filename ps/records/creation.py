"""Records are created once, by the first process, and checked by every process that opens them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from time import sleep
from typing import Any

from ctr.errors import StoreError
from ctr.ps.wire import INCARNATION, Command, Connection, Keys, RedisUrl, Write, pairs

LAYOUT, LAYOUT_VERSION = "layout", "2"
_LEASE_MS, _PAUSE_S = 30_000, 0.05
"""How long the creator may be silent before another process tries, and how often the others check."""
_KEPT_S = 3_600
"""How long Redis keeps the records of a creator that died before it finished."""
_AT_A_TIME = 2_000
"""Records in one round trip."""

HEAD = b""
"""The field of the head among the records."""

Record = tuple[bytes, bytes]
"""A name and a value."""


@dataclass(frozen=True, slots=True)
class Change:
    """A new head, new values of records, and deletions."""

    head: bytes
    records: Iterable[Record]
    deleted: Sequence[bytes] = ()
    """Names of records to delete."""


def open_records(
    connection: Connection,
    url: RedisUrl,
    keys: Keys,
    facts: Mapping[str, str],
    begin: Callable[[], Change],
    differ: Callable[[str, str, str], str],
) -> tuple[bytes, bool]:
    """Open or create the records; returns their incarnation, and whether this process created them.

    If several processes come at once, one creates the records and the others wait. The creator writes under
    an incarnation of its own and publishes that at the end. So nobody sees the records of a killed creator,
    and they expire. Raises StoreError if the stored facts differ: `differ` describes a fact and both values.
    """
    expected = {LAYOUT: LAYOUT_VERSION, **facts}
    creator, own = keys.windows.creator, secrets.token_hex(8).encode()
    claim: Command = ("SET", creator, own, "NX", "PX", _LEASE_MS)
    while not (stored := _facts(connection, keys)):
        if connection.ask(claim, ("GET", creator))[1] != own:
            sleep(_PAUSE_S)
        elif _create(connection, keys, expected, own, begin()):
            return own, True
    incarnation = stored[INCARNATION.decode()].encode()
    for name, value in expected.items():
        other = stored.get(name, "")
        if other != value:
            raise StoreError(
                f"{url}: the windows {keys.model!r} there cannot be used: {differ(name, other, value)}. Use "
                f"another name (?model=NAME), or delete these windows: redis-cli unlink "
                f"'{keys.windows.facts.decode()}' '{keys.windows.records(incarnation).decode()}'."
            )
    return incarnation, False


def _facts(connection: Connection, keys: Keys) -> dict[str, str]:
    (facts,) = connection.ask(("HGETALL", keys.windows.facts))
    return {name.decode(): value.decode() for name, value in pairs(facts).items()}


def _create(
    connection: Connection, keys: Keys, facts: Mapping[str, str], own: bytes, beginning: Change
) -> bool:
    """Write everything; returns False if another process was faster."""
    creator, key, count = keys.windows.creator, keys.windows.records(own), 0
    records = iter(beginning.records)
    while batch := list(islice(records, _AT_A_TIME)):
        connection.ask(write(key, batch), ("EXPIRE", key, _KEPT_S), ("PEXPIRE", creator, _LEASE_MS))
        count += len(batch)

    def decide(answers: list[Any]) -> Write[bool]:
        incarnation, written = answers
        if incarnation is not None:
            return [], bool(incarnation == own)  # ours, if the answer to our own transaction was lost
        if written != count:
            raise StoreError(
                f"some of the windows {keys.model!r} were deleted while they were created; start the server "
                "again."
            )
        return [
            (
                "HSET",
                keys.windows.facts,
                INCARNATION,
                own,
                *(word for fact in facts.items() for word in fact),
            ),
            write(key, [(HEAD, beginning.head)]),
            ("PERSIST", key),
            ("DEL", creator),
        ], True

    reads: list[Command] = [("HGET", keys.windows.facts, INCARNATION), ("HLEN", key)]
    return connection.update([keys.windows.facts, key], reads, decide)


def write(key: bytes, records: Iterable[Record]) -> Command:
    """The command that writes records."""
    return ("HSET", key, *(word for record in records for word in record))
