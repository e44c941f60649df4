"""The servers of tests, empty."""

from __future__ import annotations

import pytest

from ctr.ps.servers.embedded import EmbeddedRedis
from tests.ps.redis_servers import flush


@pytest.fixture
def server(shared_redis: EmbeddedRedis) -> EmbeddedRedis:
    flush(shared_redis)
    return shared_redis


@pytest.fixture
def cluster(shared_cluster: EmbeddedRedis) -> EmbeddedRedis:
    flush(shared_cluster)
    return shared_cluster
