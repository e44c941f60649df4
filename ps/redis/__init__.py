"""The store in Redis."""

from ps.redis.dumps import PartitionDump
from ps.redis.model import ModelExistsError, drop_run
from ps.redis.store import RedisStore, Saturations

__all__ = [
    "ModelExistsError",
    "PartitionDump",
    "RedisStore",
    "Saturations",
    "drop_run",
]
