"""The parameter store: optimizer state by slot, pulled and pushed."""

from __future__ import annotations

from ps.memory import MemoryStore
from ps.partitions import Partitions, Slots, slot_dtype
from ps.redis_store import drop_parameters
from ps.store import Store, Token, check_delta, check_slots, open_store, without_password

__all__ = [
    "MemoryStore",
    "Partitions",
    "Slots",
    "Store",
    "Token",
    "check_delta",
    "check_slots",
    "drop_parameters",
    "open_store",
    "slot_dtype",
    "without_password",
]
