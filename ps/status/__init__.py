"""What a store looks like from outside."""

from ps.status.observer import StoreObserver
from ps.status.status import BoardStatus, ModelStatus, NodeStatus, StoreStatus
