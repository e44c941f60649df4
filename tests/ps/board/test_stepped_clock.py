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
    "SSP worker": lambda board, worker: board.queue.gate(worker),
    "idle SSP worker": lambda board, worker: board.queue.claim(worker),
    "BSP worker": lambda board, worker: board.ranks.gate(worker),
}


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize(("step_s", "lasting_s"), [(-120.0, None), (60.0, 1.5), (60.0, None)])
def test_a_dead_worker_is_noticed_within_its_lease(
    start_redis: StartRedis,
    stepped_clock: SteppedClock,
    boards: Boards,
    heartbeats: ExitStack,
    observer: str,
    step_s: float,
    lasting_s: float | None,
) -> None:
    """Whether the clock steps back or ahead, for good or for a while; those who live keep their leases."""
    servers = start_redis(clock=stepped_clock)
    board, other = (boards(servers.url, lease_s=LEASE_S) for _ in range(2))
    board.create("job", b"", shards=SHARDS, ranks=2)
    worker, mortal = board.leases.register("worker"), other.leases.register("mortal")
    assert other.queue.claim(mortal).shard == 0
    look = OBSERVERS[observer]
    beat(heartbeats, board, worker)

    def observe(seconds: float) -> None:
        ends = monotonic() + seconds
        while monotonic() < ends:
            look(board, worker)
            sleep(0.02)

    with ExitStack() as life:
        beat(life, other, mortal)
        observe(1.5 * LEASE_S)
        stepped_clock.step(step_s)
        observe(1.5 * LEASE_S if lasting_s is None else lasting_s)
        if lasting_s is not None:
            stepped_clock.step(0)
        gate = board.queue.gate(worker)
        assert (gate.live, gate.workers) == (True, 2)
    died = monotonic()

    leases = Keys("default").board.leases

    def is_noticed() -> bool:
        look(board, worker)
        return servers.servers[0].call("ZSCORE", leases.decode(), mortal) is None

    until(is_noticed, timeout_s=10)
    assert LEASE_S / 2 < monotonic() - died < 2 * LEASE_S
    assert board.queue.gate(worker).live


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
