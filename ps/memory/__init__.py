"""The store in memory."""

from ctr.ps.memory.store import MemoryStore
