"""How many connections a worker has to each node."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from ctr.ps import Token
from ctr.ps.wire.url import parse_redis_url
from tests.ps.redis.stores import opened
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis


def test_a_worker_has_two_connections_to_each_of_many_nodes(start_redis: StartRedis) -> None:
    """There were 16 for pushes, 4 for attempts and 1 for pulls to each, whatever the number of nodes."""
    url = start_redis(16).url
    parsed = parse_redis_url(url)
    few = np.arange(0, 1 << 16, 97, dtype=np.uint32)
    all_ = np.arange(1 << 16, dtype=np.uint32)
    with closing(opened(url, bits=16)) as store:
        for number, slots in enumerate((few, all_, few)):
            store.take_over("job", 0)
            store.push(slots, np.ones((slots.size, 2), np.float32), Token("job", 0, number))
            assert store.pull(slots).all()
        addresses = store.pulls.model.fan_out.nodes.primaries()
        assert len(addresses) == 16
        for address in addresses:
            with parsed.client(address, 2.0) as client:
                clients = client.client_list(_type="normal")
            assert sum(not each["cmd"].startswith("client") for each in clients) <= 2
        store.drop()
