"""`SteppedClock`: the time of day of real servers."""

from __future__ import annotations

import time

import pytest

from tests.ps.breakable_redis import BreakableServer
from tests.ps.redis_servers import StartRedis, needs_faketime, needs_redis
from tests.ps.stepped_clock import SteppedClock

pytestmark = [needs_redis, needs_faketime]


def offset_s(server: BreakableServer) -> float:
    seconds, microseconds = server.call("TIME")
    return float(seconds) + int(microseconds) / 1e6 - time.time()


@pytest.mark.parametrize("nodes", [1, 2])
def test_it_is_stepped_while_servers_run(
    start_redis: StartRedis, stepped_clock: SteppedClock, nodes: int
) -> None:
    servers = start_redis(nodes, clock=stepped_clock)
    for wanted in (0, 60, -120, 7200, 0):
        stepped_clock.step(wanted)
        assert [offset_s(server) for server in servers.servers] == pytest.approx([wanted] * nodes, abs=1)


def test_a_server_that_is_started_again_has_it(start_redis: StartRedis, stepped_clock: SteppedClock) -> None:
    (server,) = start_redis(clock=stepped_clock).servers
    stepped_clock.step(-120)
    server.restart()
    assert offset_s(server) == pytest.approx(-120, abs=1)
