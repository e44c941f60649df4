"""Commands and replies of the Redis protocol in plain Python."""

from __future__ import annotations

import re
from collections.abc import Sequence

_INTEGER = re.compile(rb":(-?[0-9]{1,19})\r\n")


def command(*arguments: bytes) -> bytes:
    """A command as an array of strings."""
    return b"*%d\r\n" % len(arguments) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in arguments)


def pull(key: bytes, offsets: Sequence[int]) -> bytes:
    operations = [part for offset in offsets for part in (b"GET", b"i64", b"#%d" % offset)]
    return command(b"BITFIELD_RO", key, *operations)


def push(key: bytes, offsets: Sequence[int], increments: Sequence[int]) -> bytes:
    operations = [
        part
        for offset, increment in zip(offsets, increments, strict=True)
        for part in (b"INCRBY", b"i64", b"#%d" % offset, b"%d" % increment)
    ]
    return command(b"BITFIELD", key, *operations)


def integer_replies(numbers: Sequence[int]) -> bytes:
    return b"".join(b":%d\r\n" % number for number in numbers)


def parse(text: bytes, most: int) -> tuple[int, list[int]]:
    """Up to `most` whole integer replies at the beginning: where the rest begins, and their values."""
    at, numbers = 0, []
    while len(numbers) < most and (found := _INTEGER.match(text, at)):
        numbers.append(int(found[1]))
        at = found.end()
    return at, numbers


def range_values(raw: bytes, offsets: Sequence[int], first_offset: int) -> list[int]:
    starts = [8 * (offset - first_offset) for offset in offsets]
    return [int.from_bytes(raw[s : s + 8].ljust(8, b"\0"), "big", signed=True) for s in starts]
