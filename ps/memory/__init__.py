"""The store in memory."""

from ps.memory.store import MemoryStore
