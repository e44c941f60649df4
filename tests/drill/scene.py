"""`Scene`: the servers and processes of a running job, as faults find them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from time import monotonic, sleep

import redis

from ctr.errors import CtrError
from ctr.ps import JobBoard, Partitions, RedisStore, parse_redis_url
from ctr.ps.layout import Layout
from ctr.ps.wire import FOLDS, Keys
from ctr.workers.description import JobDescription
from tests.drill.ledger import Ledger, went_on
from tests.drill.process import JobProcess
from tests.ps.breakable_redis import BreakableRedis, BreakableServer
from tests.ps.cluster import Cluster, Node
from tests.ps.stepped_clock import SteppedClock

PATIENCE_S = 60.0
"""How long servers may take for what they do within seconds when nobody else needs the processor."""
POLL_S = 0.05
_REPLICATED_S = 10.0  # what was pushed so long before a fault was surely replicated


class MissedError(Exception):
    """The job was over, or had nobody left, before the fault could strike."""


@dataclass(slots=True)
class Scene:
    """For the threads of a round's faults, which leave each other's servers alone."""

    servers: BreakableRedis
    clock: SteppedClock | None
    url: str
    """What the job connects to."""
    job: JobDescription
    process: JobProcess
    checkpoint: Path
    over: Event
    """Set when the command has ended."""
    events: list[str] = field(default_factory=list)
    """What happened, with seconds since the start."""
    began: float = field(default_factory=monotonic)
    struck: float = 0.0
    """When a fault struck last, by the machine's monotonic clock."""
    _struck: set[BreakableServer] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def note(self, event: str) -> None:
        """Note what happens."""
        self.events.append(f"{monotonic() - self.began:5.1f} s  {event}")

    def strike(self, event: str) -> None:
        """Note what strikes the job at this moment."""
        self.struck = monotonic()
        self.note(event)

    def name(self, server: BreakableServer) -> str:
        """What notes call a server."""
        return f"server {self.servers.servers.index(server)}"

    @property
    def partitions(self) -> Partitions:
        return Layout.for_nodes(self.job.feature_spec().bits, 1).partitions

    @property
    def keys(self) -> Keys:
        return Keys("default")

    def cluster(self) -> Cluster:
        """Who is who now; for one thread."""
        return Cluster(self.servers, self.keys.model, self.partitions.count)

    # Waiting

    def pause(self, seconds: float) -> None:
        """Let the job run; raises MissedError if it ends meanwhile."""
        if self.over.wait(seconds):
            raise MissedError

    def until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait, whatever becomes of the job; raises AssertionError when it takes too long."""
        deadline = monotonic() + PATIENCE_S
        while True:
            with suppress(CtrError, redis.RedisError):
                if ready():
                    return
            assert monotonic() < deadline, f"{what} within {PATIENCE_S:g} s"
            sleep(4 * POLL_S)

    def until_job(self, ready: Callable[[], bool]) -> None:
        """Wait; raises MissedError if the job ends before."""
        while not ready():
            self.pause(POLL_S)

    def fraction(self) -> float:
        """How much of the job has been pushed."""
        pushes = Ledger(self.process.ledger).read()
        done = {(push.shard, push.chunk) for push in pushes if push.acknowledged is not None}
        return len(done) / chunks_of(self.job)

    # Victims

    def take_node(self, chosen: random.Random) -> Node:
        """A primary of a cluster with a replica that may take over, for the caller alone."""
        return self._take_nodes(1, chosen, replicated=True)[0]

    def take_nodes(self, count: int, chosen: random.Random) -> Sequence[Node]:
        """So many primaries."""
        return self._take_nodes(count, chosen, replicated=False)

    def _take_nodes(self, count: int, chosen: random.Random, *, replicated: bool) -> Sequence[Node]:
        victims: list[Node] = []

        def take() -> bool:
            nodes = self.cluster().nodes()
            with self._lock:
                free = [n for n in nodes if n.primary not in self._struck and (n.replicas or not replicated)]
                if len(free) < count:
                    return False
                victims.extend(chosen.sample(free, count))
                for node in victims:
                    self._struck |= {node.primary, *node.replicas}
                return True

        self.until(take, "too few primaries were free")
        return victims

    def take_server(self, servers: Sequence[BreakableServer], chosen: random.Random) -> BreakableServer:
        """One that no other fault has, for the caller alone; raises MissedError without any."""
        with self._lock:
            free = [server for server in servers if server not in self._struck]
            if not free:
                raise MissedError
            server = chosen.choice(free)
            self._struck.add(server)
            return server

    def release(self) -> None:
        """Let the next fault choose among all servers again."""
        with self._lock:
            self._struck.clear()

    def workers(self) -> list[int]:
        """The processes of workers that have pushed and are alive, in the order of their names."""
        pids = (int(path.stem.split("-")[-2]) for path in sorted(self.process.ledger.glob("*.jsonl")))
        return [pid for pid in dict.fromkeys(pids) if _is_alive(pid)]

    @contextmanager
    def frozen(self, pid: int) -> Iterator[None]:
        """Meanwhile this process stands still."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # Looking

    def recovery(self) -> tuple[float, float]:
        """Wait until the job has recovered from the last strike; two times in seconds since then.

        The first is until every partition has acknowledged a push that was sent later, the second until no
        acknowledged push is missing: the workers that can send it again must not be struck before. Raises
        MissedError if the job ends earlier.
        """
        ledger, began = Ledger(self.process.ledger), self.struck
        times: list[float | None] = []

        def goes_on() -> bool:
            pushes = ledger.read()
            times[:] = [went_on(pushes, began, partition) for partition in range(self.partitions.count)]
            return None not in times

        self.until_job(goes_on)
        with (
            closing(JobBoard(parse_redis_url(self.url))) as board,
            closing(
                RedisStore(parse_redis_url(self.url), bits=self.partitions.bits, width=2, join=True)
            ) as store,
        ):
            if (job := board.job()) is None:
                raise MissedError
            self.until_job(lambda: self._is_whole(ledger, store, job.id))
        return max(time for time in times if time is not None) - began, monotonic() - began

    def _is_whole(self, ledger: Ledger, store: RedisStore, job: str) -> bool:
        expected: dict[int, dict[int, int]] = {}
        for push in ledger.read():
            if push.acknowledged is not None and push.acknowledged > self.struck - _REPLICATED_S:
                chunks = expected.setdefault(push.shard, {})
                chunks.update({p: max(chunks.get(p, -1), push.chunk) for p in push.arrived})
        return not any(
            (store.applied(job, shard)[list(chunks)] < list(chunks.values())).any()
            for shard, chunks in expected.items()
        )

    def folds(self) -> int:
        """How often logs were folded, as far as servers answer."""
        folds: dict[int, int] = {}
        for server in self.servers.servers:
            with suppress(redis.RedisError, OSError), server.connect(2.0) as client:
                for p in range(self.partitions.count):
                    with suppress(redis.ResponseError):
                        text = client.hget(self.keys.facts(p), FOLDS)
                        folds[p] = max(folds.get(p, 0), sum(map(int, str(text or "0").split())))
        return sum(folds.values())


def chunks_of(job: JobDescription) -> int:
    """How many a job has to push."""
    plan = job.plan()
    return sum(plan.chunks_of(shard) for shard in range(plan.shards))


def _is_alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
