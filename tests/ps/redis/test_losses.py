"""Keys of a model that are deleted while it is used: an error, and never a training on zeros."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import redis

from ctr.errors import StoreError
from ctr.ps import Logged, PackedPush, Token
from ctr.ps.client.presence import Presence
from ctr.ps.redis.store import RedisStore
from tests.ps.redis.stores import fold_all, opened
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis

SIZE = 1 << 10  # slots of a partition, of which the last two are its tail
IN_BODY, IN_TAIL = (np.array([slot], np.uint32) for slot in (5, SIZE - 1))
ONE = np.ones(1, np.int64)


def push(store: RedisStore, slots: np.ndarray) -> None:
    store.push_packed(PackedPush(slots, ONE, Token("job", 1, 0)))


def log(store: RedisStore) -> None:
    logged = Logged(IN_BODY, ONE)
    store.push_packed(PackedPush(IN_BODY[:0], ONE[:0], Token("job", 1, 0), logged=logged))


def listen(store: RedisStore) -> None:
    Presence(store).update()


Request = Callable[[RedisStore], object]
REQUESTS: dict[str, list[Request]] = {
    "state": [
        lambda store: store.pull(IN_BODY),
        lambda store: push(store, IN_BODY),
        log,
        lambda store: store.dumps.take(0),
        lambda store: list(store.scan()),
        fold_all,
    ],
    "last_slots": [
        lambda store: store.pull(IN_TAIL),
        lambda store: push(store, IN_TAIL),
        lambda store: store.dumps.take(0),
        lambda store: list(store.scan()),
    ],
    "log": [
        log,
        listen,
        lambda store: store.dumps.take(0),
        lambda store: list(store.scan()),
        fold_all,
    ],
    "present": [listen, fold_all],
    "fold_steps": [
        lambda store: store.pull(IN_BODY),
        listen,
        lambda store: store.dumps.take(0),
        lambda store: list(store.scan()),
        fold_all,
    ],
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_key_that_was_deleted_is_missed(redis_url: str, name: str) -> None:
    for request in REQUESTS[name]:
        store = opened(redis_url, bits=14)
        both = np.concatenate([IN_BODY, IN_TAIL])
        store.push_packed(
            PackedPush(
                both, np.ones(2, np.int64), Token("job", 0, 0), logged=Logged(both, np.ones(2, np.int64))
            )
        )
        with redis.Redis.from_url(redis_url) as client:
            assert client.delete(getattr(store.keys, name)(0)) == 1
        with pytest.raises(StoreError, match="a node has lost a part of"):
            request(store)
        store.drop()


def test_nothing_is_missed_of_a_partition_that_nobody_pushed_to(redis_url: str) -> None:
    store = opened(redis_url, bits=14)
    listen(store)
    fold_all(store)
    assert not store.pull(IN_BODY).any()
    assert not store.dumps.take(0).state
    log(store)
    listen(store)
    fold_all(store)
    assert store.pull_packed(IN_BODY).packed.tolist() == [1]
    store.drop()


@pytest.mark.parametrize("nodes", [1, 2])
def test_servers_that_are_told_to_delete_keys_end_the_job(start_redis: StartRedis, nodes: int) -> None:
    """Also while it runs: it is looked at whenever a data shard ends, and by every checkpoint."""
    servers = start_redis(nodes)
    store = opened(servers.url, bits=14)
    store.pushes.make_strings()
    assert store.replicas.have_everything(1.0)
    with servers.servers[-1].connect() as client:
        client.config_set("maxmemory-policy", "volatile-lru")  # no key of a model has a time to live
        assert store.replicas.have_everything(1.0)
        client.config_set("maxmemory-policy", "allkeys-lru")
    for request in (
        lambda: store.replicas.have_everything(1.0),
        store.replicas.exist,
        lambda: [store.dumps.take(p) for p in range(16)],
        lambda: list(store.scan()),
    ):
        with pytest.raises(StoreError, match=r"allkeys-lru.*set maxmemory-policy to noeviction"):
            request()
    store.close()
