"""The pages of a Parquet file: hybrids of runs and bit-packed groups, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence


def unpacked(data: bytes, width: int, count: int) -> list[int] | None:
    """The first `count` numbers; None if there are fewer."""
    found: list[int] = []
    at = 0
    while len(found) < count:
        head = shift = 0
        while True:
            if at >= len(data) or shift > 28:
                return None
            head |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                break
        if head & 1:
            wanted = min(8 * (head >> 1), count - len(found))
            size = width * (head >> 1)
            if 8 * (len(data) - at) < wanted * width:
                return None
            packed = int.from_bytes(data[at : at + size], "little")
            found += [packed >> (k * width) & (1 << width) - 1 for k in range(wanted)]
        else:
            size = (width + 7) // 8
            if at + size > len(data) or head == 0:
                return None
            number = int.from_bytes(data[at : at + size], "little") & (1 << width) - 1
            found += [number] * min(head >> 1, count - len(found))
        at += size
    return found


def packed(numbers: Sequence[int], width: int) -> bytes:
    """Numbers as one bit-packed run, filled up with zeros to a multiple of 8."""
    groups = -(-len(numbers) // 8)
    head, rest = bytearray(), groups << 1 | 1
    while rest >= 128:
        head.append(rest & 127 | 128)
        rest >>= 7
    head.append(rest)
    bits = sum(number << (k * width) for k, number in enumerate(numbers))
    return bytes(head) + bits.to_bytes(groups * width, "little")


def repeated(number: int, times: int, width: int) -> bytes:
    """So many of a number, fewer than 64, as a run."""
    return bytes([times << 1]) + number.to_bytes((width + 7) // 8, "little")


def spread(levels: Sequence[int], missing: int, values: Sequence[int]) -> list[int]:
    """The values at the places whose level is 1."""
    given = iter(values)
    return [next(given) if level else missing for level in levels]
