"""The state of a store: its nodes, its model and its job."""

from ctr.ps.status.check import VERDICTS, Finding, Verdict, check_servers
from ctr.ps.status.measure import measure_store
from ctr.ps.status.observer import StoreObserver
from ctr.ps.status.status import BoardStatus, ModelStatus, NodeStatus, StoreStatus
