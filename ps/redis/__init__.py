"""The store in Redis."""

from ctr.ps.layout import Layout
from ctr.ps.redis.change_feed import Changes, FeedPosition
from ctr.ps.redis.counters import Saturations
from ctr.ps.redis.drop import drop_incarnation
from ctr.ps.redis.dumps import PartitionDump
from ctr.ps.redis.log import Logged
from ctr.ps.redis.model import ModelExistsError, require_layout
from ctr.ps.redis.packed_push import PackedPush
from ctr.ps.redis.pulls import PulledState
from ctr.ps.redis.store import RedisStore
