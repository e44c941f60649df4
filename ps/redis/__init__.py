"""The store in Redis."""

from ps.redis.counters import Saturations
from ps.redis.drop import drop_incarnation
from ps.redis.dumps import PartitionDump
from ps.redis.model import ModelExistsError, require_layout
from ps.redis.store import RedisStore

__all__ = [
    "ModelExistsError",
    "PartitionDump",
    "RedisStore",
    "Saturations",
    "drop_incarnation",
    "require_layout",
]
