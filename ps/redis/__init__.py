"""The store in Redis."""

from ps.redis.counters import Saturations
from ps.redis.drop import drop_incarnation
from ps.redis.dumps import PartitionDump
from ps.redis.layout import Layout
from ps.redis.log import Logged
from ps.redis.model import ModelExistsError, require_layout
from ps.redis.news import News, NewsPosition
from ps.redis.pulls import PulledState
from ps.redis.store import RedisStore
