"""What one worker puts before a store: cache, presence, its own log and the push queue."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_face

if TYPE_CHECKING:
    from ctr.ps.client.filters import DEFAULT_FILTERS, FilterCounts, Filters
    from ctr.ps.client.pulled import Pulled
    from ctr.ps.client.push_log import LOST, LostPushesError, PendingPush, PushPacked
    from ctr.ps.client.push_queue import PushQueue
    from ctr.ps.client.warm_up import warm_up_requests
    from ctr.ps.client.worker_store import WorkerStore

__getattr__ = lazy_face(__name__, __file__)
