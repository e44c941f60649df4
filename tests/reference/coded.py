"""Rows whose fields are all coded, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence


def slots_of_texts(hashes: Sequence[int], present: Sequence[bool], bits: int) -> list[int]:
    """The slot of each text, 0 where it makes no feature."""
    return [max(h % (1 << bits), 1) if there else 0 for h, there in zip(hashes, present, strict=True)]


def rows(
    tables: Sequence[Sequence[int]],
    codes: Sequence[Sequence[int]],
    status: Sequence[int],
    *,
    bias: bool,
    fields: bool = False,
) -> list[list[int]]:
    """The slots of each good row, or their field ids: `tables` and `codes` by field."""
    found = []
    for i, bad in enumerate(status):
        slots = [table[code[i]] for table, code in zip(tables, codes, strict=True)]
        if not bad:
            ids = [(slot, number) for number, slot in enumerate(slots, 1) if slot]
            found.append([0] * bias + [number if fields else slot for slot, number in ids])
    return found
