"""The faults of `ctr drill`: what is done to the servers and workers of a running job, one by one."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event, Thread
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from ctr.drill.fault_plan import FaultReport, PlannedFault, went_on
from ctr.drill.ledger import Ledger, Push
from ctr.errors import CtrError, StoreError
from ctr.ps.servers import Cluster, Node, RedisServer
from ctr.workers import DataPlan, WorkerProcesses

_PATIENCE_S = 60.0
_POLL_S = 0.05
_SERVERS_POLL_S = 0.2  # all of them are asked
_REPLICATED_S = 10.0  # what was pushed so long before a fault was surely replicated


Applied = Callable[[int], NDArray[np.int64]]
"""int64[partitions]: the last chunk applied of a data shard, -1 for none."""


class _JobOverError(Exception):
    """There is nothing left to disturb."""


class Saboteur:
    """Strikes a job with planned faults, from a thread; waits each time until the job has recovered."""

    def __init__(
        self,
        planned: Sequence[PlannedFault],
        seed: str,
        cluster: Cluster,
        ledger: Ledger,
        plan: DataPlan,
        *,
        freeze_s: float,
        lag_s: float,
        is_resumable: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> None:
        """`is_resumable` tells whether there is a checkpoint: memory is not filled before."""
        self.reports: list[FaultReport] = []
        self.failure: BaseException | None = None
        """What went wrong with the faults themselves."""
        self.fraction = 0.0
        """Of the job, as the coordinator last said."""
        self._planned = planned
        self._chosen = random.Random(seed)
        self._cluster = cluster
        self._ledger = ledger
        self._plan = plan
        self._freeze_s = freeze_s
        self._lag_s = lag_s
        self._is_resumable = is_resumable
        self._tell = tell
        self._over = Event()
        self._workers: WorkerProcesses | None = None
        self._applied: Applied = lambda _: np.empty(0, np.int64)
        self._full: Node | None = None
        self._thread = Thread(target=self._run, name="saboteur")

    def start(self, workers: WorkerProcesses, applied: Applied) -> None:
        """Begin, when the job's workers have been started; `applied` asks its store."""
        self._workers, self._applied = workers, applied
        self._thread.start()

    def end(self) -> None:
        """The job is over: wait until the servers are well again."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._full is not None:
            self._cluster.limit(self._full, None)

    def _run(self) -> None:
        try:
            for planned in self._planned:
                self._until(partial(self._is_due, planned))
                self._strike(planned.kind)
            self._until(self._over.is_set)
        except _JobOverError:
            pass
        except BaseException as error:  # noqa: BLE001  (told by the drill)
            self.failure = error
            # The job may wait for ever for something that will not come.
            for pid in self._workers.pids() if self._workers is not None else ():
                os.kill(pid, signal.SIGKILL)

    def _is_due(self, planned: PlannedFault) -> bool:
        return self.fraction >= planned.fraction

    def _strike(self, kind: str) -> None:
        strikes = {
            "kill": self._kill,
            "lag": self._lag,
            "freeze": self._freeze,
            "freeze-all": self._freeze_all,
            "worker": self._kill_worker,
            "reshard": self._reshard,
            "memory": self._fill_memory,
        }
        strikes[kind]()

    def _kill(self) -> None:
        node = self._choose_node()
        self._kill_primary(node, self._began("kill", f"killed {self._name(node)}", node))

    def _lag(self) -> None:
        node = self._choose_node()
        with self._cluster.cut_off(node.replicas):
            self._pause(self._lag_s)
            what = f"killed {self._name(node)}, whose replica was {self._lag_s:g} s behind"
            report = self._began("lag", what, node)
            node.primary.kill()
        self._kill_primary(node, report)

    def _kill_primary(self, node: Node, report: FaultReport) -> None:
        node.primary.kill()
        # Not before: it would come back as the primary that it was, and empty.
        self._wait_until(
            lambda: self._is_replaced(node), f"{self._name(node)} was not replaced by its replica"
        )
        node.primary.restart()
        self._await_repair(report, node)

    def _freeze(self) -> None:
        node = self._choose_node()
        self._stop(node, [node.primary], self._began("freeze", f"froze {self._name(node)}", node))

    def _freeze_all(self) -> None:
        node = self._choose_node()
        what = f"froze {self._name(node)} and its replica"
        self._stop(node, [node.primary, *node.replicas], self._began("freeze-all", what, node))

    def _stop(self, node: Node, servers: Sequence[RedisServer], report: FaultReport) -> None:
        with self._cluster.frozen(servers):
            self._pause(self._freeze_s)
        report.ended = monotonic()
        self._await_repair(report, node)

    def _kill_worker(self) -> None:
        assert self._workers is not None
        pid = self._chosen.choice(self._workers.pids())
        name = f"{socket.gethostname()}-{pid}-"
        report = self._began("worker", "killed a worker", None)
        os.kill(pid, signal.SIGKILL)
        self._ledger.read()
        mine = [push for push in self._ledger.pushes if push.worker.startswith(name)]
        last = max(mine, key=lambda push: push.sent, default=None)
        if last is not None:
            report.what = f"killed a worker in data shard {last.shard}"

        def elsewhere(push: Push) -> bool:
            if last is None or self._is_last_chunk(last):
                return not push.worker.startswith(name)
            return not push.worker.startswith(name) and push.shard == last.shard

        self._await_recovery(report, elsewhere)

    def _is_last_chunk(self, push: Push) -> bool:
        """Whether a worker was at the end of its data shard, so that nothing is left of it to be pushed."""
        if push.acknowledged is None:
            return False
        if self._plan.ranks > 1:
            return push.chunk + 1 >= self._plan.rounds_of(push.shard)
        return push.chunk + 1 >= self._plan.chunks_of(push.shard)

    def _reshard(self) -> None:
        node = self._choose_node()
        target = self._cluster.add_node()
        moving = sorted(self._chosen.sample(node.partitions, len(node.partitions) // 2))
        source = self._cluster.name_of(node.primary)
        what = (
            f"moved {len(moving)} partitions from {source} to {self._cluster.name_of(target)}, which is new"
        )
        report = self._began("reshard", what, None)
        report.partitions = tuple(moving)
        self._cluster.move(moving, node.primary, target)
        report.ended = monotonic()
        self._await_recovery(report, lambda push: bool(push.arrived.intersection(moving)))

    def _fill_memory(self) -> None:
        self._until(self._is_resumable)
        node = self._choose_node()
        report = self._began("memory", f"filled the memory of {self._name(node)}", node)
        self._full = node
        self._cluster.limit(node, room=8 << 20)
        deadline = monotonic() + _PATIENCE_S
        while not self._over.wait(_POLL_S):
            self._cluster.fill(node)  # again, as it gives back a little when clients come and go
            if monotonic() > deadline:
                report.problem = "the job did not notice"
                return

    # How they are done

    def _choose_node(self) -> Node:
        """One whose primary can be replaced."""
        self._wait_until(self._cluster.is_whole, "the cluster did not become whole again")
        return self._chosen.choice([node for node in self._cluster.nodes() if node.replicas])

    def _name(self, node: Node) -> str:
        return f"{self._cluster.name_of(node.primary)} ({len(node.partitions)} partitions)"

    def _is_replaced(self, node: Node) -> bool:
        return any(
            now.primary in node.replicas and node.partitions[0] in now.partitions
            for now in self._cluster.nodes()
        )

    def _began(self, kind: str, what: str, node: Node | None) -> FaultReport:
        partitions = () if node is None else node.partitions
        report = FaultReport(kind, what, self.fraction, monotonic(), partitions)
        self.reports.append(report)
        self._tell(f"{self.fraction:.0%}: {what}")
        return report

    def _await_recovery(self, report: FaultReport, counts: Callable[[Push], bool]) -> None:
        """Wait for a push that shows it, and until the servers are ready for the next fault."""
        self._await_push(report, counts)
        self._wait_until(self._cluster.is_whole, "the cluster did not become whole again")

    def _await_repair(self, report: FaultReport, node: Node) -> None:
        """The same, and in between until what a failover lost was sent again: by workers who must live."""
        self._await_push(report, lambda push: bool(push.arrived.intersection(node.partitions)))
        deadline = monotonic() + _PATIENCE_S
        while self._is_missing(report.began - _REPLICATED_S):
            if self._over.wait(_POLL_S):
                return  # the proof will tell
            if monotonic() > deadline:
                raise StoreError(f"what a failover had lost was not sent again within {_PATIENCE_S:g} s")
        report.repaired = monotonic()
        self._wait_until(self._cluster.is_whole, "the cluster did not become whole again")

    def _await_push(self, report: FaultReport, counts: Callable[[Push], bool]) -> None:
        def has_recovered() -> bool:
            report.recovered = went_on(self._ledger.read(), report.began, counts)
            return report.recovered is not None

        self._until(has_recovered)

    def _is_missing(self, since: float) -> bool:
        """Whether the store lacks anything that it has acknowledged since then."""
        expected: dict[int, dict[int, int]] = {}
        for push in self._ledger.read():
            if push.acknowledged is not None and push.acknowledged > since:
                chunks = expected.setdefault(push.shard, {})
                chunks.update({p: max(chunks.get(p, -1), push.chunk) for p in push.arrived})
        return any(
            (self._applied(shard)[list(chunks)] < list(chunks.values())).any()
            for shard, chunks in expected.items()
        )

    def _until(self, ready: Callable[[], bool]) -> None:
        """Wait, as long as the job runs; raises StoreError when it stands still."""
        moved, count = monotonic(), 0
        while not ready():
            if self._over.wait(_POLL_S):
                if ready():
                    return
                raise _JobOverError
            arrived = sum(push.acknowledged is not None for push in self._ledger.read())
            if arrived > count:
                moved, count = monotonic(), arrived
            elif monotonic() - moved > _PATIENCE_S:
                raise StoreError(f"the job stood still: no push arrived for {_PATIENCE_S:g} s")

    def _wait_until(self, ready: Callable[[], bool], otherwise: str) -> None:
        """Wait, also when the job is over: nothing may be left half done."""
        deadline = monotonic() + _PATIENCE_S
        while not _tried(ready):
            if monotonic() > deadline:
                raise StoreError(f"{otherwise} within {_PATIENCE_S:g} s")
            Event().wait(_SERVERS_POLL_S)

    def _pause(self, seconds: float) -> None:
        if self._over.wait(seconds):
            raise _JobOverError


def _tried(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except CtrError:
        return False
