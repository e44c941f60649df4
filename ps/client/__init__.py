"""A worker's client of a store in Redis: its sessions, its view of the state, and its filters."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.ps.client.filters import DEFAULT_FILTERS, NO_FILTERS, PUSH, SMALL, ZERO, FilterCounts, Filters
    from ctr.ps.client.sessions import RedisSession, RedisSessions, SendPacked
    from ctr.ps.client.warm_up import warm_up_requests

__getattr__ = lazy_package(__name__, __file__)
