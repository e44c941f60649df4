"""The parameter store: optimizer state by slot, pulled and pushed; and the board that workers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package
from ctr.ps.direct_sessions import DirectSession, DirectSessions
from ctr.ps.fixed_point_kernels import fraction_bits, largest_n, n_fraction_bits, reachable_n
from ctr.ps.memory import MemoryStore
from ctr.ps.opening import open_store, require_store_url, without_password
from ctr.ps.partitions import Partitions, Slots
from ctr.ps.store import (
    LOST,
    GapError,
    LostPushesError,
    Outcome,
    Pulled,
    RankSession,
    RankSessions,
    Session,
    Sessions,
    Store,
    Token,
)

if TYPE_CHECKING:
    from ctr.ps.board import Affinity, BoardView, Claim, ClockGate, Job, JobBoard, JobGoneError, RankGate
    from ctr.ps.client import (
        DEFAULT_FILTERS,
        FilterCounts,
        Filters,
        RedisSession,
        RedisSessions,
        SendPacked,
        warm_up_requests,
    )
    from ctr.ps.feed import Feed, PartitionChange
    from ctr.ps.records import Change, Record, RecordStore
    from ctr.ps.redis import (
        Dumps,
        Logged,
        ModelExistsError,
        PackedPush,
        PartitionDump,
        RedisStore,
        Saturations,
    )
    from ctr.ps.wire import RedisUrl, parse_redis_url

# Names that need Redis are loaded on first use: training in memory does without them.
__getattr__ = lazy_package(__name__, __file__)
