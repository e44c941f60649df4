"""The store in Redis."""

from ctr.ps.layout import Layout
from ctr.ps.redis.change_feed import Changes, FeedPosition
from ctr.ps.redis.creation import ModelExistsError, drop_incarnation, require_layout
from ctr.ps.redis.dumps import PartitionDump
from ctr.ps.redis.packed_push import Logged, PackedPush, Saturations
from ctr.ps.redis.pulls import PulledState
from ctr.ps.redis.store import RedisStore
