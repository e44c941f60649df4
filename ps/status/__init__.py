"""What a store looks like from outside."""

from ps.status.observer import StoreObserver
from ps.status.status import BoardStatus, ModelStatus, NodeStatus, StoreStatus

__all__ = ["BoardStatus", "ModelStatus", "NodeStatus", "StoreObserver", "StoreStatus"]
