"""Records are created once, by the process that comes first, and checked by every process that opens them."""

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
"""How long the creator may be silent before another process tries, and how often the others look."""
_LEFT_S = 3_600
"""How long Redis keeps what a creator wrote that died before the end."""
_AT_A_TIME = 2_000
"""Records in one round trip."""

HEAD = b""
"""The field of the head, among the records."""

Record = tuple[bytes, bytes]
"""A name and a value."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is written."""

    head: bytes
    records: Iterable[Record]
    deleted: Sequence[bytes] = ()
    """Names of records."""


def open_records(
    connection: Connection,
    url: RedisUrl,
    keys: Keys,
    facts: Mapping[str, str],
    begin: Callable[[], Change],
    differ: Callable[[str, str, str], str],
) -> tuple[bytes, bool]:
    """The incarnation of the records, and whether this process has created them.

    Of several processes, one creates and the others wait. The creator writes under an incarnation of its own
    and publishes that at the end, so nobody sees what a killed creator wrote, and it expires. Raises
    StoreError if the stored facts differ: `differ` describes a fact and its two values.
    """
    wanted = {LAYOUT: LAYOUT_VERSION, **facts}
    creator, own = keys.windows.creator, secrets.token_hex(8).encode()
    claim: Command = ("SET", creator, own, "NX", "PX", _LEASE_MS)
    while not (stored := _facts(connection, keys)):
        if connection.ask(claim, ("GET", creator))[1] != own:
            sleep(_PAUSE_S)
        elif _create(connection, keys, wanted, own, begin()):
            return own, True
    incarnation = stored[INCARNATION.decode()].encode()
    for name, value in wanted.items():
        other = stored.get(name, "")
        if other != value:
            raise StoreError(
                f"{url}: the windows {keys.model!r} there cannot be used: {differ(name, other, value)}. Give "
                f"others a name of their own (?model=NAME), or delete these: redis-cli unlink "
                f"'{keys.windows.facts.decode()}' '{keys.windows.records(incarnation).decode()}'."
            )
    return incarnation, False


def _facts(connection: Connection, keys: Keys) -> dict[str, str]:
    (facts,) = connection.ask(("HGETALL", keys.windows.facts))
    return {name.decode(): value.decode() for name, value in pairs(facts).items()}


def _create(
    connection: Connection, keys: Keys, facts: Mapping[str, str], own: bytes, beginning: Change
) -> bool:
    """Write everything; False if another process was faster."""
    creator, key, count = keys.windows.creator, keys.windows.records(own), 0
    records = iter(beginning.records)
    while some := list(islice(records, _AT_A_TIME)):
        connection.ask(write(key, some), ("EXPIRE", key, _LEFT_S), ("PEXPIRE", creator, _LEASE_MS))
        count += len(some)

    def decide(answers: list[Any]) -> Write[bool]:
        incarnation, written = answers
        if incarnation is not None:
            return [], bool(incarnation == own)  # the answer to our own may have been lost
        if written != count:
            raise StoreError(
                f"a part of the windows {keys.model!r} was deleted while they were created; start the server "
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
