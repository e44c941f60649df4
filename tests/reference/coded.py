"""Rows whose fields are all coded, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence


def slots_of_texts(hashes: Sequence[int], present: Sequence[bool], bits: int) -> list[int]:
    """The slot of each text, 0 where it makes no feature."""
    return [max(h % (1 << bits), 1) if there else 0 for h, there in zip(hashes, present, strict=True)]


def rows(
    tables: Sequence[Sequence[int]], codes: Sequence[Sequence[int]], status: Sequence[int], *, bias: bool
) -> list[list[int]]:
    """The slots of each good row: `tables` and `codes` by field."""
    found = []
    for i, bad in enumerate(status):
        slots = [table[code[i]] for table, code in zip(tables, codes, strict=True)]
        if not bad:
            found.append([0] * bias + [slot for slot in slots if slot])
    return found
