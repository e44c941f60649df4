"""The parameter store: optimizer state by slot, pulled and pushed."""

from __future__ import annotations

from ps.memory import MemoryStore
from ps.partitions import Partitions, Slots, slot_dtype
from ps.store import Store, Token, check_delta, check_slots, open_store

__all__ = [
    "MemoryStore",
    "Partitions",
    "Slots",
    "Store",
    "Token",
    "check_delta",
    "check_slots",
    "open_store",
    "slot_dtype",
]
