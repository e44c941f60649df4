"""`PlannedSessions`: sessions that only take as long as the plan says, for jobs too large to be simulated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.virtual_time import clock, process_of_thread
from ctr.jobs.cost_model import ChunkCosts
from ctr.ps import FilterCounts, Outcome, RedisStore

_TAKE_OVER = 1 / 8
"""Of the commands of a pull and a push."""


class PlannedSessions:
    """As `RedisSessions`, and its own only session; half of a chunk's requests are its pull."""

    replicated, first, outcome = True, 0, None

    def __init__(self, cluster: Cluster, costs: ChunkCosts, store: RedisStore, shard: int = 0) -> None:
        self._cluster, self._costs, self._store, self.shard = cluster, costs, store, shard
        self.counts = FilterCounts()

    def begin(self, shard: int) -> PlannedSessions:
        self._request(_TAKE_OVER)
        return PlannedSessions(self._cluster, self._costs, self._store, shard)

    def pull(self, slots: Any, clock_: int, least_clock: int) -> Any:
        self._request(0.5)
        return SimpleNamespace(state=np.zeros((len(slots), 2), np.float32))

    def wait(self, pulled: Any) -> Any:
        return pulled.state

    def push(self, pulled: Any, delta: Any, number: int) -> Any:
        return number

    def send(self, push: Any) -> bool:
        self._request(0.5)
        return True

    def flush(self) -> None: ...

    def close(self) -> Outcome:
        return Outcome.ARRIVED

    def _request(self, part: float) -> None:
        """All nodes work at a part of what a chunk costs, each for its partitions."""
        process, costs, terms = process_of_thread(), self._costs, self._cluster.terms
        process.interpreter.use(costs.requests_s * part)
        process.sending.until(costs.out_bytes * part * terms.byte_s)
        nodes = self._cluster.nodes
        ends = [node.processor.until(costs.store_s * part / len(nodes)) for node in nodes]
        clock.sleep(max(ends) - clock.now + 2 * terms.latency_s)
        process.receiving.use(costs.in_bytes * part * terms.byte_s)
