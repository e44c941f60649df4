"""Records are created once, by whichever process comes first, and checked by everyone who opens them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from time import sleep
from typing import Any

from ctr.errors import StoreError
from ctr.ps.wire import INCARNATION, Command, Decision, Keys, RecordsPart, RedisUrl, Transactions, pairs

LAYOUT, LAYOUT_VERSION = "layout", "2"
_LEASE_MS, _PAUSE_S = 30_000, 0.05
"""How long whoever creates them may be silent before another one tries, and how often the others look."""
_LEFT_S = 3_600
"""How long Redis keeps what was written by one who died before all was."""
_AT_A_TIME = 2_000
"""Records in one round trip."""

HEAD = b""
"""The field of the head, among the records."""

Record = tuple[bytes, bytes]
"""A name and a value."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What records begin with."""

    head: bytes
    records: Iterable[Record]


def open_records(
    line: Transactions,
    url: RedisUrl,
    keys: Keys,
    facts: Mapping[str, str],
    begin: Callable[[], Beginning],
    differ: Callable[[str, str, str], str],
) -> tuple[bytes, bool]:
    """The incarnation of the records that are there, and whether they were created just now.

    Whoever creates them writes under an incarnation of its own, and says so when all is written: what one
    that was killed has left behind is seen by nobody, and expires. Of several, one creates and the others
    wait. Raises StoreError when the facts there are others: `differ` tells of a fact, and its two values.
    """
    wanted = {LAYOUT: LAYOUT_VERSION, **facts}
    creator, own = keys.of_windows(RecordsPart.CREATOR), secrets.token_hex(8).encode()
    take = (b"SET", creator, own, b"NX", b"PX", b"%d" % _LEASE_MS)
    while not (found := _facts(line, keys)):
        if line.ask(creator, [take, (b"GET", creator)])[1] != own:
            sleep(_PAUSE_S)
        elif _create(line, keys, wanted, own, begin()):
            return own, True
    incarnation = found[INCARNATION.decode()].encode()
    for name, value in wanted.items():
        there = found.get(name, "")
        if there != value:
            raise StoreError(
                f"{url}: the windows {keys.model!r} there cannot be used: {differ(name, there, value)}. Give "
                f"others a name of their own (?model=NAME), or delete these: redis-cli unlink "
                f"'{keys.windows.decode()}' '{records_key(keys, incarnation).decode()}'."
            )
    return incarnation, False


def _facts(line: Transactions, keys: Keys) -> dict[str, str]:
    (found,) = line.ask(keys.windows, [(b"HGETALL", keys.windows)])
    return {name.decode(): value.decode() for name, value in pairs(found).items()}


def _create(
    line: Transactions, keys: Keys, facts: Mapping[str, str], own: bytes, beginning: Beginning
) -> bool:
    """Write everything; False when somebody else was faster."""
    creator, key, count = keys.of_windows(RecordsPart.CREATOR), records_key(keys, own), 0
    for some in _some(beginning.records):
        wait, leave = b"%d" % _LEASE_MS, b"%d" % _LEFT_S
        line.ask(creator, [write(key, some), (b"EXPIRE", key, leave), (b"PEXPIRE", creator, wait)])
        count += len(some)
    told = [word.encode() for fact in facts.items() for word in fact]

    def decide(found: list[Any]) -> Decision[bool]:
        incarnation, there = found
        if incarnation is not None:
            return [], lambda _: incarnation == own  # the answer to our own may have been lost
        if there != count:
            raise StoreError(
                f"a part of the windows {keys.model!r} was deleted while they were created; start the server "
                "again."
            )
        return [
            (b"HSET", keys.windows, INCARNATION, own, *told),
            write(key, [(HEAD, beginning.head)]),
            (b"PERSIST", key),
            (b"DEL", creator),
        ], lambda _: True

    reads: list[Command] = [(b"HGET", keys.windows, INCARNATION), (b"HLEN", key)]
    return line.update([keys.windows, key], reads, decide)


def records_key(keys: Keys, incarnation: bytes) -> bytes:
    """The hash of the records of this incarnation."""
    return keys.of_windows(RecordsPart.RECORDS) + incarnation


def write(key: bytes, records: Iterable[Record]) -> Command:
    """The command that writes records."""
    return (b"HSET", key, *(word for record in records for word in record))


def _some(records: Iterable[Record]) -> Iterator[list[Record]]:
    left = iter(records)
    while some := list(islice(left, _AT_A_TIME)):
        yield some
