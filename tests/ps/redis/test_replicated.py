"""Whether pushes have reached a replica: a node whose replica has not must never be overlooked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from threading import Thread
from time import sleep

import numpy as np
import pytest

from ctr.errors import StoreError
from ctr.ps import PackedPush, PartitionDump, RedisStore, Token, parse_redis_url
from tests.ps.breakable_redis import BreakableServer
from tests.ps.cut_lines import CutLine
from tests.ps.redis_servers import StartRedis, eventually, needs_redis

pytestmark = needs_redis


def tell(server: BreakableServer, *words: str) -> object:
    with server.connect() as client:
        return client.execute_command(*words)


def test_a_replica_that_is_away_counts_however_slow_the_answers_are(start_redis: StartRedis) -> None:
    """The nodes are asked side by side: one says no while another still waits for its replica's yes."""
    servers = start_redis(nodes=3, replicas=1)
    store = RedisStore(parse_redis_url(servers.url), bits=12, width=2)
    slots = np.arange(1 << 12, dtype=np.uint32)

    def push(chunk: int) -> None:
        store.push_packed(PackedPush(slots, np.ones(slots.size, np.int64), Token("job", 0, chunk)))

    assert store.replicas.exist()
    push(0)
    assert store.replicas.have_everything(5.0)
    (primary, away), (_, slow), _ = servers.nodes
    tell(away, "CONFIG", "SET", "masterauth", "wrong")
    tell(away, "CLIENT", "KILL", "TYPE", "master")
    eventually(lambda: tell(primary, "INFO", "replication")["connected_slaves"] == 0)  # type: ignore[index]
    push(1)
    assert not store.replicas.have_everything(5.0)

    def thaw() -> None:
        for server in (primary, slow):
            sleep(0.3)
            server.thaw()

    push(2)
    primary.freeze()
    slow.freeze()
    thawing = Thread(target=thaw)
    thawing.start()
    assert not store.replicas.have_everything(5.0)
    thawing.join()
    tell(away, "CONFIG", "SET", "masterauth", away.password)
    eventually(lambda: store.replicas.have_everything(5.0))
    store.close()


def test_a_replica_that_misses_what_was_restored_is_known_by_it(start_redis: StartRedis) -> None:
    """It has the model's name and nothing of it: taking over, it must not read as a model of zeros."""
    config = {"cluster-node-timeout": "1000", "cluster-replica-validity-factor": "0"}
    servers = start_redis(nodes=3, replicas=1, config=config)
    url, slots = parse_redis_url(servers.url), np.arange(1 << 12, dtype=np.uint32)
    whole = RedisStore(parse_redis_url(f"{servers.url}?model=whole"), bits=12, width=2)
    whole.push(slots, np.ones((slots.size, 2), np.float32), Token("job", 0, 0))
    store = RedisStore(url, bits=12, width=2, restoring=True)
    primary, replica = servers.nodes[0]
    eventually(
        lambda: whole.replicas.have_everything(1.0)
    )  # and with that, all that the servers were told before
    tell(replica, "CONFIG", "SET", "masterauth", "wrong")
    tell(replica, "CLIENT", "KILL", "TYPE", "master")
    eventually(lambda: tell(primary, "INFO", "replication")["connected_slaves"] == 0)  # type: ignore[index]
    for partition in range(store.partitions.count):
        dump = whole.dumps.take(partition)
        store.dumps.restore(PartitionDump(partition, dump.state, {}))
    assert (store.pull(slots) == 1).all()
    primary.kill()
    with pytest.raises(StoreError, match="lost the data"):
        store.pull(slots)
    store.close()
    whole.close()


class _Interrupted(CutLine):
    """Passes everything on; before the first WAIT reaches the server, something else happens."""

    def __init__(self, url: str, act: Callable[[], object]) -> None:
        self._act: Callable[[], object] | None = act
        super().__init__(url, 1 << 60, on_data=self._look)

    def _look(self, data: bytes) -> None:
        if b"WAIT" in data and self._act is not None:
            act, self._act = self._act, None
            act()


def test_a_worker_that_is_late_leaves_nothing_in_a_later_model(start_redis: StartRedis) -> None:
    """One that was frozen after it had checked its own: meanwhile that was dropped and another created."""
    servers = start_redis(replicas=1)
    url, slots, later = parse_redis_url(servers.url), np.arange(1 << 12, dtype=np.uint32), []

    def replace() -> None:
        RedisStore(url, bits=12, width=2, join=True).drop()
        later.append(RedisStore(url, bits=12, width=2))

    with closing(_Interrupted(servers.url, replace)) as line:
        store = RedisStore(parse_redis_url(line.url), bits=12, width=2)
        with pytest.raises(StoreError, match="lost the data"):
            store.replicas.have_everything(5.0)
        store.close()
    (new,) = later
    assert (new.pull(slots) == 0).all()
    assert new.replicas.have_everything(5.0)
    new.close()
