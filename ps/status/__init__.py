"""What a store looks like from outside."""

from ctr.ps.status.observer import StoreObserver
from ctr.ps.status.status import BoardStatus, ModelStatus, NodeStatus, StoreStatus
