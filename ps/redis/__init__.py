"""The store in Redis."""

from ctr.ps.layout import Layout
from ctr.ps.redis.creation import ModelExistsError, drop_incarnation, require_layout
from ctr.ps.redis.dumps import Dumps, PartitionDump
from ctr.ps.redis.feed_entry import read_feed_entry
from ctr.ps.redis.model import Facts, RedisModel
from ctr.ps.redis.packed_push import Entries, Logged, PackedPush, Saturations, read_entries
from ctr.ps.redis.pulls import PulledState
from ctr.ps.redis.store import RedisStore
