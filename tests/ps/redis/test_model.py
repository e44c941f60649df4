"""A model's creation and removal, interrupted anywhere: the next model of that name begins with zeros."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress

import numpy as np
import pytest
import redis

from ctr.errors import StoreError
from ctr.ps import Token
from ctr.ps.redis.creation import drop_incarnation
from ctr.ps.redis.dumps import PartitionDump
from ctr.ps.redis.store import RedisStore
from ctr.ps.status.observer import StoreObserver
from ctr.ps.status.status import ModelStatus
from ctr.ps.wire.keys import Keys
from ctr.ps.wire.url import parse_redis_url
from tests.ps.cut_lines import cut_line
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis

KEYS = Keys("ads")
SLOTS = np.arange(1 << 12, dtype=np.uint32)
ONES = np.ones((SLOTS.size, 2), np.float32)


def named(url: str) -> str:
    return f"{url}?model=ads"


def opened(url: str, **options: object) -> RedisStore:
    return RedisStore(parse_redis_url(named(url)), bits=12, width=2, timeout_s=2.0, **options)


def model(url: str) -> ModelStatus | None:
    return StoreObserver(parse_redis_url(named(url))).look().model


def trained(url: str) -> str:
    """The run of a model all of whose slots were pushed."""
    with closing(opened(url, facts={"job": "j"})) as store:
        store.push(SLOTS, ONES, Token("job", 0, 0))
        return store.incarnation


def require_fresh(url: str) -> None:
    """Create the model, and find zeros; leave nothing."""
    store = opened(url)
    assert not store.pull(SLOTS).any()
    assert (store.applied("job", 0) == -1).all()
    store.push(SLOTS, ONES, Token("job", 0, 0))
    assert (store.pull(SLOTS) == 1).all()
    store.drop()
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 0


def bytes_of(url: str, work: Callable[[str], object]) -> int:
    with cut_line(url) as line:
        work(line.url)
        return line.passed


def places(total: int) -> list[int]:
    """Where to cut: close together at the ends, where single commands are."""
    return sorted({*range(1, 1_000, 131), *range(1_000, total, total // 3), *range(total - 700, total, 139)})


def test_a_drop_that_is_cut_anywhere(redis_url: str) -> None:
    run = trained(redis_url)
    total = bytes_of(redis_url, lambda url: drop_incarnation(named(url), run))
    states = set()
    for most in places(total):
        run = trained(redis_url)
        with cut_line(redis_url, most) as line, suppress(StoreError):
            drop_incarnation(named(line.url), run, patience_s=0.1)
        found = model(redis_url)
        states.add(None if found is None else found.state)
        if found is not None and found.state == "ready":
            with closing(opened(redis_url, join=True, facts={"job": "j"})) as store:
                assert (store.pull(SLOTS) == 1).all()  # nothing is gone yet
            drop_incarnation(named(redis_url), run)
        elif found is not None:
            assert (found.incarnation, found.partitions) == (run, 16)
            with pytest.raises(StoreError, match=r"is being dropped.*`ctr ps drop`"):
                opened(redis_url, join=True)
            if most % 2:
                drop_incarnation(named(redis_url), run)  # finishes it; otherwise the next creation does
                assert model(redis_url) is None
        require_fresh(redis_url)
    assert states >= {"ready", "dropping"}


def test_a_creation_that_is_cut_anywhere(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctr.ps.redis.creation._CLEAN_UP_S", 0.05)  # nobody answers any more
    total = bytes_of(redis_url, lambda url: opened(url).close())
    drop_incarnation(named(redis_url), model(redis_url).incarnation)
    states = set()
    for most in places(total):
        with cut_line(redis_url, most) as line, suppress(StoreError):
            opened(line.url, patience_s=0.1).close()
        found = model(redis_url)
        states.add(None if found is None else found.state)
        if found is not None:
            if found.state == "creating":
                with pytest.raises(StoreError, match=r"is not finished.*`ctr ps drop`"):
                    opened(redis_url)
            drop_incarnation(named(redis_url), found.incarnation)
            assert model(redis_url) is None
        require_fresh(redis_url)
    assert states >= {None, "creating"}


@pytest.mark.parametrize("server", ["redis_url", "cluster_url"])
def test_partitions_that_outlived_their_model(server: str, request: pytest.FixtureRequest) -> None:
    """As an older version's drop left them, or a failover during a drop."""
    url = request.getfixturevalue(server)
    trained(url)
    cluster = url.startswith("redis+cluster:")
    nodes = request.getfixturevalue("shared_cluster" if cluster else "shared_redis")
    for shard in nodes.servers:
        with shard.connect() as client, suppress(redis.ResponseError):
            client.delete(KEYS.meta)
    store = opened(url)
    assert not store.pull(SLOTS).any()
    assert list(store.scan()) == []
    store.drop()
    for shard in nodes.servers:
        with shard.connect() as client:
            assert client.dbsize() == 0


@pytest.mark.parametrize("put", [
    lambda client: client.set(KEYS.state(3), b"\0" * 6 + b"\1\0"),
    lambda client: client.set(KEYS.last_slots(15), b"\1" * 8),
    lambda client: client.lpush(KEYS.log(0), "a list"),
    lambda client: client.set(KEYS.facts(5), "a string"),
    lambda client: client.hset(KEYS.facts(5), "another", "hash"),
    lambda client: client.hset(KEYS.meta, "another", "hash"),
    lambda client: client.set(KEYS.meta, "a string"),
])  # fmt: skip
def test_what_is_not_ours_is_refused_and_kept(redis_url: str, put: Callable[[redis.Redis], object]) -> None:
    with redis.Redis.from_url(redis_url) as client:
        put(client)
        (key,) = client.keys()
        before = client.dump(key)
        for _ in range(2):
            with pytest.raises(StoreError):
                opened(redis_url)
        assert client.dump(key) == before
        client.flushdb()
    require_fresh(redis_url)


def test_a_drop_that_was_overtaken_leaves_the_next_model_alone(redis_url: str) -> None:
    with closing(opened(redis_url)) as first:
        drop_incarnation(named(redis_url), first.incarnation)
        run = trained(redis_url)
        first.drop()
    found = model(redis_url)
    assert found is not None
    assert (found.incarnation, found.state) == (run, "ready")
    with closing(opened(redis_url, join=True, facts={"job": "j"})) as store:
        assert (store.pull(SLOTS) == 1).all()
        store.drop()


def test_a_restore_that_was_overtaken_leaves_the_next_model_alone(redis_url: str) -> None:
    """As by a coordinator that was frozen while it put a checkpoint back, and resumed elsewhere meanwhile."""
    with closing(opened(redis_url, restoring=True)) as first:
        drop_incarnation(named(redis_url), first.incarnation)
        with closing(opened(redis_url, restoring=True)) as second:
            dumps = [
                PartitionDump(p, (b"\0" * 6 + b"\1\0").ljust(8 * 256, b"\0"), {"job:0": 3}) for p in range(16)
            ]
            for dump in dumps[:32]:
                second.dumps.restore(dump)
            with pytest.raises(StoreError):
                first.dumps.restore(PartitionDump(0, b"", {}))
            for dump in dumps[32:]:
                second.dumps.restore(dump)
            assert [second.dumps.take(p) for p in range(16)] == dumps
            second.drop()


def test_a_user_who_may_not_delete(redis_url: str) -> None:
    run = trained(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        client.acl_setuser("limited", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-del"])
        limited = redis_url.replace(redis_url.partition("//")[2].partition("@")[0], "limited:pw")
        with pytest.raises(StoreError, match=r"NOPERM|permission"):
            drop_incarnation(named(limited), run)
        found = model(redis_url)
        assert found is not None
        assert found.state == "dropping"
        client.acl_deluser("limited")
    require_fresh(redis_url)


def test_a_drop_needs_no_unlink(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.acl_setuser("old", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-unlink"])
        limited = redis_url.replace(redis_url.partition("//")[2].partition("@")[0], "old:pw")
        drop_incarnation(named(limited), trained(redis_url))
        assert client.dbsize() == 0
        client.acl_deluser("old")


def test_every_node_of_a_cluster_has_at_least_four_partitions(start_redis: StartRedis) -> None:
    """There were 16, whatever the nodes: of these six, two had two each."""
    url = start_redis(6).url
    with closing(opened(url)) as store, closing(opened(url, join=True)) as other:
        assert store.layout == other.layout
        store.push(SLOTS, ONES, Token("job", 0, 0))
        assert (other.pull(SLOTS) == 1).all()
        status = StoreObserver(parse_redis_url(named(url))).look()
        assert status.model is not None
        assert status.model.partitions == store.partitions.count == 32
        assert all(len(node.partitions) >= 4 for node in status.nodes)
        store.drop()
    with closing(opened(url, restoring=True, partitions=16)) as store:  # of a checkpoint from one node
        for p in range(16):
            store.dumps.restore(PartitionDump(p, b"", {}))
        assert store.partitions.count == 16
        store.push(SLOTS, ONES, Token("job", 0, 0))
        store.drop()
    for node in status.nodes:
        host, _, port = node.address.partition(":")
        with parse_redis_url(url).client((host, int(port)), 2.0) as client:
            assert client.dbsize() == 0
