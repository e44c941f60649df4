"""The parameter store: optimizer state by slot, pulled and pushed; and the board that workers share."""

from __future__ import annotations

from ps.board_view import LEASE_S, BoardView, Claim, ClockGate, Job, LaneGate
from ps.filters import DEFAULT_FILTERS, FilterCounts, Filters
from ps.job_board import JobBoard
from ps.memory import MemoryStore
from ps.outbox import Outbox, Parcel, PushStore
from ps.partitions import Partitions, Slots, slot_dtype
from ps.redis_dumps import PartitionDump
from ps.redis_model import ModelExistsError
from ps.redis_nodes import RedisUrl, parse_redis_url
from ps.redis_store import RedisStore
from ps.store import Store, Token, check_delta, check_slots, open_store, require_store_url, without_password
from ps.warm_up import warm_up as warm_up_requests
from ps.worker_store import Pulled, WorkerStore

__all__ = [
    "DEFAULT_FILTERS",
    "LEASE_S",
    "BoardView",
    "Claim",
    "ClockGate",
    "FilterCounts",
    "Filters",
    "Job",
    "JobBoard",
    "LaneGate",
    "MemoryStore",
    "ModelExistsError",
    "Outbox",
    "Parcel",
    "PartitionDump",
    "Partitions",
    "Pulled",
    "PushStore",
    "RedisStore",
    "RedisUrl",
    "Slots",
    "Store",
    "Token",
    "WorkerStore",
    "check_delta",
    "check_slots",
    "open_store",
    "parse_redis_url",
    "require_store_url",
    "slot_dtype",
    "warm_up_requests",
    "without_password",
]
