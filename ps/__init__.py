"""The parameter store: optimizer state by slot, pulled and pushed; and the board that workers share."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ps.board_view import LEASE_S, BoardView, Claim, ClockGate, Job, LaneGate
from ps.filters import DEFAULT_FILTERS, FilterCounts, Filters
from ps.fixed_point_kernels import LARGEST_N, fraction_bits
from ps.memory import MemoryStore
from ps.partitions import Partitions, Slots, slot_dtype
from ps.store import Store, Token, check_delta, check_slots, open_store, require_store_url, without_password

if TYPE_CHECKING:
    from ps.job_board import JobBoard
    from ps.outbox import Outbox, Parcel, PushStore
    from ps.redis_dumps import PartitionDump
    from ps.redis_model import ModelExistsError
    from ps.redis_nodes import RedisUrl, parse_redis_url
    from ps.redis_store import RedisStore, Saturations
    from ps.warm_up import warm_up as warm_up_requests
    from ps.worker_store import Pulled, WorkerStore

__all__ = [
    "DEFAULT_FILTERS",
    "LARGEST_N",
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
    "Saturations",
    "Slots",
    "Store",
    "Token",
    "WorkerStore",
    "check_delta",
    "check_slots",
    "fraction_bits",
    "open_store",
    "parse_redis_url",
    "require_store_url",
    "slot_dtype",
    "warm_up_requests",
    "without_password",
]

# What needs Redis is loaded by whoever asks for it: training in memory does without.
_MODULE_OF = {
    "JobBoard": "job_board",
    "ModelExistsError": "redis_model",
    "Outbox": "outbox",
    "Parcel": "outbox",
    "PartitionDump": "redis_dumps",
    "Pulled": "worker_store",
    "PushStore": "outbox",
    "RedisStore": "redis_store",
    "RedisUrl": "redis_nodes",
    "Saturations": "redis_store",
    "WorkerStore": "worker_store",
    "parse_redis_url": "redis_nodes",
    "warm_up_requests": "warm_up",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULE_OF[name]}")
    return getattr(module, "warm_up" if name == "warm_up_requests" else name)
