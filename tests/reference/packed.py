"""Increments as dictionaries from slot to integer, marks as sets of bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def wrapped(number: int) -> int:
    """The number that is left of a sum in 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def add_to_range(raw: bytes, first_offset: int, increments: Mapping[int, int], size: int) -> bytes:
    """The first `size` bytes of the string that begins with `raw`, with the increments added."""
    string = raw[:size] + bytes(size - len(raw[:size]))
    for offset, increment in increments.items():
        place = slice(8 * (offset - first_offset), 8 * (offset - first_offset) + 8)
        number = wrapped(int.from_bytes(string[place], "big") + increment)
        string = string[: place.start] + number.to_bytes(8, "big", signed=True) + string[place.stop :]
    return string


def add_matching(
    increments: Mapping[int, int], packed: Mapping[int, int], mask: Sequence[int], shift: int
) -> dict[int, int]:
    return {
        slot: wrapped(number + increments.get(slot, 0)) if mask[slot >> shift] else number
        for slot, number in packed.items()
    }


def merge(a: Mapping[int, int], b: Mapping[int, int]) -> dict[int, int]:
    return {slot: wrapped(a.get(slot, 0) + b.get(slot, 0)) for slot in sorted({*a, *b})}


def merge_newer(a: Mapping[int, Row], b: Mapping[int, Row], oldest: int) -> dict[int, Row]:
    return {slot: row for slot, row in sorted({**a, **b}.items()) if row[1] >= oldest}


Row = tuple[int, int]
"""Packed accumulators, and a clock."""

Entry = tuple[int, int, int]
"""Slot, increment, and how often the log had been folded."""


def add_logged(
    log: Sequence[Entry], packed: Mapping[int, int], folds: Sequence[int], shift: int
) -> dict[int, int]:
    return {
        slot: wrapped(number + sum(add for s, add, f in log if s == slot and f >= folds[slot >> shift]))
        for slot, number in packed.items()
    }


def bits_of(marks: bytes) -> set[int]:
    return {8 * at + bit for at, byte in enumerate(marks) for bit in range(8) if byte & 1 << bit}
