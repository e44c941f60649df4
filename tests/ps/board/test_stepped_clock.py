"""Leases while the server's clock is stepped: the dead are noticed in time, and nobody else is expired."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from time import monotonic, sleep

import pytest

from ctr.errors import StoreError
from ctr.ps.board.job_board import JobBoard
from ctr.ps.wire import Keys
from ctr.workers.timing import Heartbeat
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.job_boards import Boards, until
from tests.ps.redis_servers import StartRedis, needs_faketime, needs_redis, timing_sensitive
from tests.ps.stepped_clock import SteppedClock

pytestmark = [needs_redis, needs_faketime, timing_sensitive]

LEASE_S = 1.0
SHARDS = 9


@pytest.fixture
def heartbeats() -> Iterator[ExitStack]:
    """Heartbeats that end with the test, or before."""
    with ExitStack() as beating:
        yield beating


def beat(beating: ExitStack, board: JobBoard, worker: str) -> None:
    beating.enter_context(Heartbeat(LEASE_S / 5, partial(board.leases.heartbeat, worker)))


OBSERVERS = {
    "coordinator": lambda board, _: board.look(),
    "SSP-worker": lambda board, worker: board.queue.gate(worker),
    "idle-SSP-worker": lambda board, worker: board.queue.claim(worker),
    "BSP-worker": lambda board, worker: board.ranks.gate(worker),
}


class Observed:
    """The board of a model of its own with two workers, at which one observer looks."""

    def __init__(self, servers: BreakableRedis, boards: Boards, observer: str) -> None:
        url = f"{servers.url}?model={observer}"
        self.board, self.other = (boards(url, lease_s=LEASE_S) for _ in range(2))
        self.board.create("job", b"", shards=SHARDS, ranks=2)
        self.worker = self.board.leases.register("worker")
        self.mortal = self.other.leases.register("mortal")
        self._server, self._observer = servers.servers[0], observer
        assert self.other.queue.claim(self.mortal).shard == 0

    def look(self) -> None:
        OBSERVERS[self._observer](self.board, self.worker)

    def is_noticed(self) -> bool:
        """Whether the lease of the mortal worker has expired."""
        leases = Keys(self._observer).board.leases
        return self._server.call("ZSCORE", leases.decode(), self.mortal) is None


@pytest.mark.parametrize(("step_s", "lasting_s"), [(-120.0, None), (60.0, 1.5), (60.0, None)])
def test_a_dead_worker_is_noticed_within_its_lease(
    start_redis: StartRedis,
    stepped_clock: SteppedClock,
    boards: Boards,
    heartbeats: ExitStack,
    step_s: float,
    lasting_s: float | None,
) -> None:
    """Whether the clock steps back or ahead, for good or for a while; those who live keep their leases."""
    servers = start_redis(clock=stepped_clock)
    observed = [Observed(servers, boards, observer) for observer in OBSERVERS]
    for each in observed:
        beat(heartbeats, each.board, each.worker)

    def observe(seconds: float) -> None:
        ends = monotonic() + seconds
        while monotonic() < ends:
            for each in observed:
                each.look()
            sleep(0.02)

    with ExitStack() as life:
        for each in observed:
            beat(life, each.other, each.mortal)
        observe(1.5 * LEASE_S)
        stepped_clock.step(step_s)
        observe(1.5 * LEASE_S if lasting_s is None else lasting_s)
        if lasting_s is not None:
            stepped_clock.step(0)
        for each in observed:
            gate = each.board.queue.gate(each.worker)
            assert (gate.live, gate.workers) == (True, 2)
    died = monotonic()
    unnoticed = [*observed]

    def all_are_noticed() -> bool:
        for each in [*unnoticed]:
            each.look()
            if each.is_noticed():
                assert LEASE_S / 2 < monotonic() - died < 2 * LEASE_S
                unnoticed.remove(each)
        return not unnoticed

    until(all_are_noticed, timeout_s=10)
    assert all(each.board.queue.gate(each.worker).live for each in observed)


@pytest.mark.parametrize("step_s", [-3_600.0, 60.0])
def test_a_job_is_replaced_when_it_is_dead_and_not_before(
    start_redis: StartRedis, stepped_clock: SteppedClock, boards: Boards, step_s: float
) -> None:
    """Its leases seem to last for another hour, or to be over though they are renewed."""
    url = start_redis(clock=stepped_clock).url
    board, other = (boards(url, lease_s=LEASE_S) for _ in range(2))
    board.create("old", b"", shards=SHARDS)
    worker = board.leases.register("worker")
    stepped_clock.step(step_s)
    with ExitStack() as life:
        beat(life, board, worker)
        life.enter_context(Heartbeat(LEASE_S / 5, board.heartbeat_coordinator))
        with pytest.raises(StoreError, match="'old' is running"):
            other.create("new", b"", shards=SHARDS)
    stepped_clock.step(0)
    board.heartbeat_coordinator()
    stepped_clock.step(step_s)
    began = monotonic()
    other.create("new", b"", shards=SHARDS)
    assert monotonic() - began < 3 * LEASE_S
