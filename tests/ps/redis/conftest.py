"""The servers of tests, empty."""

from __future__ import annotations

import pytest

from tests.ps.breakable_redis import BreakableRedis
from tests.ps.redis_servers import flush


@pytest.fixture
def server(shared_redis: BreakableRedis) -> BreakableRedis:
    flush(shared_redis)
    return shared_redis


@pytest.fixture
def cluster(shared_cluster: BreakableRedis) -> BreakableRedis:
    flush(shared_cluster)
    return shared_cluster
