"""Plain references for finding the distinct slots of a batch."""

from __future__ import annotations

from collections import Counter


def localize(slots: list[int]) -> tuple[list[int], list[int]]:
    """The distinct slots in order, and each slot's position among them."""
    unique = sorted(set(slots))
    position = {slot: i for i, slot in enumerate(unique)}
    return unique, [position[slot] for slot in slots]


def slot_counts(unique: list[int], slots: list[int]) -> list[int]:
    """How often each distinct slot occurs."""
    counts = Counter(slots)
    return [counts[slot] for slot in unique]


def merge_slots(lists: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """The distinct slots of all lists in order, and each slot's position among them."""
    unique = sorted({slot for slots in lists for slot in slots})
    return unique, [[unique.index(slot) for slot in slots] for slots in lists]
