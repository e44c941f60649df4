"""`Presence`: what one worker knows of the slots that all have pushed."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from ctr.ps import Logged, PackedPush, RedisStore, Slots, Token, parse_redis_url
from ctr.ps.client import log_reader
from ctr.ps.client.log_reader import LogReader
from ctr.ps.client.presence import Presence
from ctr.ps.partitions import slot_dtype
from tests.ps.breakable_redis import BreakableServer
from tests.ps.redis.stores import fold_all
from tests.ps.redis_servers import StartRedis, needs_redis, timing_sensitive

pytestmark = needs_redis

_names = count()


def opened(url: str, bits: int, model: str | None = None) -> RedisStore:
    name = f"presence-{next(_names)}" if model is None else model
    return RedisStore(parse_redis_url(f"{url}?model={name}"), bits=bits, width=2, join=model is not None)


def slots_of(*numbers: int, bits: int = 20) -> Slots:
    return np.array(numbers, slot_dtype(bits))


def push(store: RedisStore, presence: Presence, slots: Slots, number: int, shard: int = 0) -> None:
    fresh = slots[presence.add(slots)]
    logged = Logged(fresh, np.zeros(fresh.size, np.int64))
    store.push_packed(
        PackedPush(slots, np.ones(slots.size, np.int64), Token("job", shard, number), logged=logged)
    )


@pytest.fixture(params=["redis_url", "cluster_url"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.mark.parametrize(
    ("url", "bits"), [("redis_url", 20), ("redis_url", 33), ("cluster_url", 20)], indirect=["url"]
)
def test_slots_that_others_pushed_become_known(url: str, bits: int) -> None:
    store = opened(url, bits)
    one, other = Presence(store), Presence(store)
    last = (1 << bits) - 1
    slots = slots_of(0, 77, last // 2, last, bits=bits)
    assert not one.absent(slots).any(), "nothing is known yet"
    for presence in (one, other):
        presence.update()
        assert presence.absent(slots).all()
    push(store, one, slots[:3], 0)
    assert one.absent(slots).tolist() == [False, False, False, True], "one's own count at once"
    assert other.absent(slots).all()
    other.update()
    assert other.absent(slots).tolist() == [False, False, False, True]
    push(store, other, slots[1:], 0, shard=1)
    one.update()
    assert not one.absent(slots).any()
    assert other.add(slots).tolist() == [False] * 4, "everybody knows"
    store.drop()


def test_slots_are_logged_once(redis_url: str) -> None:
    store = opened(redis_url, 20)
    presence = Presence(store)
    push(store, presence, slots_of(1, 2), 0)
    push(store, presence, slots_of(1, 2, 3), 1)
    changes = LogReader(store.pulls.model).read()
    assert [each.tolist() for each in changes.logged] == [[1, 2, 3]]
    store.drop()


def test_slots_of_a_folded_log_are_present(redis_url: str) -> None:
    store = opened(redis_url, 16)
    pusher, early, late = Presence(store), Presence(store), Presence(store)
    push(store, pusher, slots_of(5, 6, 2048), 0)
    early.update()
    fold_all(store)
    push(store, pusher, slots_of(7), 1)
    for presence in (early, late):
        presence.update()
        assert presence.absent(slots_of(5, 6, 7, 8, 2048)).tolist() == [False, False, False, True, False]
    store.drop()


def test_a_partition_of_which_ranges_were_pushed_is_present(redis_url: str) -> None:
    store = opened(redis_url, 14)  # partitions of 1024 slots
    pusher, presence = Presence(store), Presence(store)
    push(store, pusher, slots_of(3), 0)
    everything = np.arange(1024, dtype=np.uint32)
    store.push_packed(PackedPush(everything, np.ones(1024, np.int64), Token("job", 0, 1), all_present=True))
    presence.update()
    assert presence.absent(slots_of(1, 1023, 1024)).tolist() == [False, False, True]
    assert presence.add(slots_of(1, 1024)).tolist() == [False, True]
    store.drop()


@timing_sensitive
def test_a_node_that_came_back_with_an_old_snapshot_is_read_anew(start_redis: StartRedis) -> None:
    """A log may have become shorter, and then as long as it was, of others' slots. Other nodes are not."""
    servers = start_redis(nodes=2)
    store = opened(servers.url, 20)
    lost, presence = Presence(store), Presence(store)
    elsewhere = 9 << 16  # in a partition of the other node
    push(store, lost, slots_of(1, elsewhere), 0)
    server, other = (each for each, *_ in servers.nodes)
    with server.connect() as client:
        if not client.exists(store.keys.facts(0)):
            server, other = other, server
    server.call("SAVE")
    push(store, lost, slots_of(5, 6), 1)
    presence.update()
    assert not presence.absent(slots_of(1, 5, 6, elsewhere)).any()
    server.restart()
    push(store, Presence(store), slots_of(7, 8), 1)
    asked = [strlens(each) for each in (server, other)]
    presence.update()
    assert [strlens(each) - before for each, before in zip((server, other), asked, strict=True)] == [8 * 3, 0]
    assert not presence.absent(slots_of(1, 5, 6, 7, 8, elsewhere)).any()
    store.close()


def strlens(server: BreakableServer) -> int:
    """How often the length of a key was asked for, as before a string is read anew."""
    with server.connect() as client:
        return int(client.info("commandstats").get("cmdstat_strlen", {"calls": 0})["calls"])


def test_what_is_read_anew_is_read_in_pieces(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of it each time, and until a string has been read, its slots count as present."""
    store = opened(redis_url, 20)  # bitmaps of 8 KiB
    monkeypatch.setattr(log_reader, "_AT_A_TIME", 20_000)
    monkeypatch.setattr(log_reader, "_MOST_REQUESTS", 3)
    slots = np.arange(5, 1 << 20, 1 << 16, dtype=np.uint32)
    push(store, Presence(store), slots, 0)
    fold_all(store)
    presence, absent = Presence(store), []
    for _ in range(3):
        before = store.traffic.received
        presence.update()
        assert store.traffic.received - before < 3 * 20_000 + 16 * 500
        assert not presence.absent(slots).any()
        absent.append(int(presence.absent(slots + np.uint32(1)).sum()))
    assert absent == [6, 12, 16]
    before = store.traffic.received
    presence.update()
    assert store.traffic.received - before < 16 * 500
    # What is not known for certain is named once more.
    fresh = Presence(store)
    assert fresh.add(slots).all()
    store.drop()


def test_restored_slots_are_present(redis_url: str) -> None:
    store, copy = opened(redis_url, 16), opened(redis_url, 16)
    rng = np.random.default_rng(0)
    few = np.unique(rng.integers(0, 1024, 30)).astype(np.uint32)
    many = np.unique(rng.integers(1024, 2048, 300)).astype(np.uint32)
    slots = np.concatenate([few, many])
    store.push_packed(PackedPush(slots, np.ones(slots.size, np.int64), Token("job", 0, 0)))  # without any log
    for p in range(16):
        copy.dumps.restore(store.dumps.take(p))
    presence = Presence(copy)
    presence.update()
    assert not presence.absent(slots).any()
    assert presence.absent(np.arange(1024, dtype=np.uint32)).sum() == 1024 - few.size
    store.drop()
    copy.drop()
