"""`Presence`: what one worker has heard of the slots that all have pushed."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from ctr.ps import Logged, RedisStore, Slots, Token, parse_redis_url
from ctr.ps.client.presence import Presence
from ctr.ps.partitions import slot_dtype
from ctr.ps.redis import NewsPosition, news
from ctr.ps.servers.redis_server import RedisServer
from tests.ps.redis_servers import StartRedis, needs_redis, timing_sensitive

pytestmark = needs_redis

_names = count()


def opened(url: str, bits: int, model: str | None = None) -> RedisStore:
    name = f"presence-{next(_names)}" if model is None else model
    return RedisStore(parse_redis_url(f"{url}?model={name}"), bits=bits, width=2, join=model is not None)


def slots_of(*numbers: int, bits: int = 20) -> Slots:
    return np.array(numbers, slot_dtype(bits))


def tell(store: RedisStore, presence: Presence, slots: Slots, number: int, shard: int = 0) -> None:
    fresh = slots[presence.claim(slots)]
    logged = Logged(fresh, np.zeros(fresh.size, np.int64))
    store.push_packed(slots, np.ones(slots.size, np.int64), Token("job", shard, number), logged=logged)


@pytest.fixture(params=["redis_url", "cluster_url"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.mark.parametrize(
    ("url", "bits"), [("redis_url", 20), ("redis_url", 33), ("cluster_url", 20)], indirect=["url"]
)
def test_slots_that_others_pushed_are_heard_of(url: str, bits: int) -> None:
    store = opened(url, bits)
    one, other = Presence(store), Presence(store)
    last = (1 << bits) - 1
    slots = slots_of(0, 77, last // 2, last, bits=bits)
    assert not one.absent(slots).any(), "nothing is known yet"
    for presence in (one, other):
        presence.listen()
        assert presence.absent(slots).all()
    tell(store, one, slots[:3], 0)
    assert one.absent(slots).tolist() == [False, False, False, True], "one's own count at once"
    assert other.absent(slots).all()
    other.listen()
    assert other.absent(slots).tolist() == [False, False, False, True]
    tell(store, other, slots[1:], 0, shard=1)
    one.listen()
    assert not one.absent(slots).any()
    assert other.claim(slots).tolist() == [False] * 4, "everybody knows"
    store.drop()


def test_slots_are_told_of_once(redis_url: str) -> None:
    store = opened(redis_url, 20)
    presence = Presence(store)
    tell(store, presence, slots_of(1, 2), 0)
    tell(store, presence, slots_of(1, 2, 3), 1)
    news = store.read_news(NewsPosition(store.layout))
    assert [each.tolist() for each in news.named] == [[1, 2, 3]]
    store.drop()


def test_slots_of_a_folded_log_are_present(redis_url: str) -> None:
    store = opened(redis_url, 16)
    teller, early, late = Presence(store), Presence(store), Presence(store)
    tell(store, teller, slots_of(5, 6, 2048), 0)
    early.listen()
    store.fold()
    tell(store, teller, slots_of(7), 1)
    for presence in (early, late):
        presence.listen()
        assert presence.absent(slots_of(5, 6, 7, 8, 2048)).tolist() == [False, False, False, True, False]
    store.drop()


def test_a_crowded_partition_is_present(redis_url: str) -> None:
    store = opened(redis_url, 14)  # partitions of 1024 slots
    teller, presence = Presence(store), Presence(store)
    tell(store, teller, slots_of(3), 0)
    everything = np.arange(1024, dtype=np.uint32)
    store.push_packed(everything, np.ones(1024, np.int64), Token("job", 0, 1), crowd=True)
    presence.listen()
    assert presence.absent(slots_of(1, 1023, 1024)).tolist() == [False, False, True]
    assert presence.claim(slots_of(1, 1024)).tolist() == [False, True]
    store.drop()


@timing_sensitive
def test_a_node_that_came_back_with_an_old_snapshot_is_read_anew(start_redis: StartRedis) -> None:
    """A log may have become shorter, and then as long as it was, of others' slots. Other nodes are not."""
    servers = start_redis(shards=2)
    store = opened(servers.url, 20)
    lost, presence = Presence(store), Presence(store)
    elsewhere = 9 << 16  # in a partition of the other node
    tell(store, lost, slots_of(1, elsewhere), 0)
    server, other = (each for each, *_ in servers.shards)
    with server.connect() as client:
        if not client.exists(store.keys.facts(0)):
            server, other = other, server
    server.call("SAVE")
    tell(store, lost, slots_of(5, 6), 1)
    presence.listen()
    assert not presence.absent(slots_of(1, 5, 6, elsewhere)).any()
    server.restart()
    tell(store, Presence(store), slots_of(7, 8), 1)
    asked = [strlens(each) for each in (server, other)]
    presence.listen()
    assert [strlens(each) - before for each, before in zip((server, other), asked, strict=True)] == [8 * 3, 0]
    assert not presence.absent(slots_of(1, 5, 6, 7, 8, elsewhere)).any()
    store.close()


def strlens(server: RedisServer) -> int:
    """How often the length of a key was asked for, as before a string is read anew."""
    with server.connect() as client:
        return int(client.info("commandstats").get("cmdstat_strlen", {"calls": 0})["calls"])


def test_what_is_read_anew_is_read_in_pieces(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of it each time, and until a string has been read, its slots count as present."""
    store = opened(redis_url, 20)  # bitmaps of 8 KiB
    monkeypatch.setattr(news, "_AT_A_TIME", 20_000)
    monkeypatch.setattr(news, "_REQUESTS_ANEW", 3)
    slots = np.arange(5, 1 << 20, 1 << 16, dtype=np.uint32)
    tell(store, Presence(store), slots, 0)
    store.fold()
    presence, absent = Presence(store), []
    for _ in range(3):
        before = store.traffic.received
        presence.listen()
        assert store.traffic.received - before < 3 * 20_000 + 16 * 500
        assert not presence.absent(slots).any()
        absent.append(int(presence.absent(slots + np.uint32(1)).sum()))
    assert absent == [6, 12, 16]
    before = store.traffic.received
    presence.listen()
    assert store.traffic.received - before < 16 * 500
    # What is not known for certain is named once more.
    fresh = Presence(store)
    assert fresh.claim(slots).all()
    store.drop()


def test_restored_slots_are_present(redis_url: str) -> None:
    store, copy = opened(redis_url, 16), opened(redis_url, 16)
    rng = np.random.default_rng(0)
    few = np.unique(rng.integers(0, 1024, 30)).astype(np.uint32)
    many = np.unique(rng.integers(1024, 2048, 300)).astype(np.uint32)
    slots = np.concatenate([few, many])
    store.push_packed(slots, np.ones(slots.size, np.int64), Token("job", 0, 0))  # tells no log
    for p in range(16):
        copy.restore(store.dump(p))
    presence = Presence(copy)
    presence.listen()
    assert not presence.absent(slots).any()
    assert presence.absent(np.arange(1024, dtype=np.uint32)).sum() == 1024 - few.size
    store.drop()
    copy.drop()
