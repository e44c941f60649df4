"""`RecordStore` with real servers: several writers at once, what is lost on the way, and who creates it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from time import monotonic, sleep
from typing import Any

import pytest

from ctr.errors import StoreError
from ctr.ps.records import Change, Record, RecordStore, record_store
from ctr.ps.wire import Keys, parse_redis_url
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.cut_lines import CutLine
from tests.ps.redis_servers import StartRedis, needs_faketime, needs_redis, timing_sensitive
from tests.ps.stepped_clock import SteppedClock

pytestmark = needs_redis

KEYS = Keys("default")


def opened(url: str, head: bytes = b"0", facts: Mapping[str, str] | None = None) -> RecordStore:
    """What is there, or one record to begin with."""
    return RecordStore(
        parse_redis_url(url),
        facts or {"windows": "[]"},
        lambda: Change(head, [(b"first", head)]),
        lambda fact, there, here: f"{fact}: {there!r} is not {here!r}",
    )


def add(store: RecordStore, *names: bytes) -> None:
    """Add 1 to the head and to records."""

    def decide(head: bytes, values: list[bytes | None], _: list[Record]) -> Change:
        records = [(name, b"%d" % (int(value or 0) + 1)) for name, value in zip(names, values, strict=True)]
        return Change(b"%d" % (int(head) + 1), records)

    store.change(names, decide)


@pytest.fixture(params=["redis_url", "cluster_url"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def test_one_creates_and_others_join(url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        stores = list(threads.map(lambda k: opened(url, b"%d" % k), range(4)))
    (first,) = [k for k, store in enumerate(stores) if store.created]
    for store in stores:
        assert store.read([b"first", b"other"]) == (b"%d" % first, [b"%d" % first, None])
    assert not opened(url).created
    assert opened(f"{url}?model=another").created


def test_no_change_is_lost_among_many_writers(url: str) -> None:
    stores = [opened(url) for _ in range(3)]
    many = [b"%d" % k for k in range(3_000)]

    def write(k: int) -> None:
        for _ in range(60 if k else 5):
            # A large change takes many times as long as a small one, and comes through.
            add(stores[k], b"shared", *([b"only %d" % k] if k else many))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, range(3)))
    found = stores[0].read([b"shared", b"only 1", b"only 2", many[0], many[-1]])
    assert found == (b"125", [b"125", b"60", b"60", b"5", b"5"])


def test_a_writer_whom_others_forestall_takes_a_turn(redis_url: str, shared_redis: BreakableRedis) -> None:
    store, other, turn = opened(redis_url), opened(redis_url), KEYS.windows.turn
    turns = []
    with shared_redis.servers[0].connect() as client:

        def decide(head: bytes, values: list[bytes | None], _: list[Record]) -> Change:
            turns.append(client.get(turn))
            if turns == [None]:
                add(other, b"a")
            return Change(b"%d" % (int(head) + 1), [])

        store.change([], decide)
        assert [each is None for each in turns] == [True, False]
        assert client.get(turn) is None
        assert store.read([]) == (b"2", [])
        client.set(turn, b"of one who died", px=300)
        began = monotonic()
        add(store, b"a")
        assert monotonic() - began > 0.2


def test_who_gets_no_turn_keeps_nobody_from_reading(
    redis_url: str, shared_redis: BreakableRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_store, "_TURN_S", 0.05)
    store = opened(redis_url)
    with shared_redis.servers[0].connect() as client:
        client.set(KEYS.windows.turn, b"of another", px=60_000)
        with pytest.raises(StoreError, match="others kept changing the windows"):
            add(store, b"a")
        assert store.read([b"a"]) == (b"0", [None])
        client.delete(KEYS.windows.turn)
    add(store, b"a")
    assert store.read([b"a"]) == (b"1", [b"1"])


def test_threads_of_one_store_write_one_after_the_other(redis_url: str) -> None:
    store = opened(redis_url)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: add(store, b"a"), range(80)))
    assert store.read([b"a"]) == (b"80", [b"80"])


def test_nothing_expires_by_itself(redis_url: str, shared_redis: BreakableRedis) -> None:
    """But the hash has a limited life until all is written; see below."""
    store = opened(redis_url)
    add(store, b"a")
    with shared_redis.servers[0].connect() as client:
        assert {client.ttl(key) for key in client.keys("*")} == {-1}
        assert client.exists(KEYS.windows.writers)
        store.close()
        assert not client.exists(KEYS.windows.writers)


def test_every_record_is_looked_at_now_and_then_and_can_be_deleted(redis_url: str) -> None:
    """With any changes, of any of several writers that come and go."""
    add(opened(redis_url), *(b"%d" % k for k in range(1_000)))
    seen: set[bytes] = set()

    def decide(head: bytes, values: list[bytes | None], others: list[Record]) -> Change:
        assert all(name and value == b"1" for name, value in others if name != b"first")
        seen.update(name for name, _ in others)
        return Change(head, [], [name for name, _ in others if int(name, 36) % 2])

    changes = 0
    while len(seen) < 1_001 and changes < 500:
        store = opened(redis_url)
        for _ in range(20):
            store.change([], decide)
        changes += 20
    assert len(seen) == 1_001
    _, values = opened(redis_url).read([b"%d" % k for k in range(1_000)])
    assert values == [None if int(str(k), 36) % 2 else b"1" for k in range(1_000)]


def test_what_is_read_or_written_is_not_among_the_others(redis_url: str) -> None:
    store = opened(redis_url)

    def decide(head: bytes, values: list[bytes | None], others: list[Record]) -> Change:
        assert others == [(b"first", b"0")]
        return Change(head, [(b"a", b"1")], [b"first"])

    store.change([b"a"], decide)
    assert store.read([b"a", b"first"]) == (b"0", [b"1", None])


def test_what_others_say_differently_is_refused_with_both_values(redis_url: str) -> None:
    opened(redis_url, facts={"windows": "one"})
    with pytest.raises(StoreError, match=r"windows: 'one' is not 'two'.*\?model=NAME.*redis-cli unlink"):
        opened(redis_url, facts={"windows": "two"})


def test_another_layout_is_refused(redis_url: str, shared_redis: BreakableRedis) -> None:
    opened(redis_url)
    with shared_redis.servers[0].connect() as client:
        client.hset(KEYS.windows.facts, "layout", "0")
    with pytest.raises(StoreError, match=r"layout: '0' is not '2'"):
        opened(redis_url)


def test_what_a_killed_creator_left_is_not_seen_and_expires(
    redis_url: str, shared_redis: BreakableRedis
) -> None:
    def killed() -> Iterator[Any]:
        for k in range(2_500):  # more than are written at a time
            yield b"%d" % k, b"of the dead"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RecordStore(parse_redis_url(redis_url), {}, lambda: Change(b"", killed()), lambda *_: "")
    with shared_redis.servers[0].connect() as client:
        client.pexpire(KEYS.windows.creator, 200)  # as after its lease
        store = opened(redis_url, b"7")
        assert store.created
        assert store.read([b"first"]) == (b"7", [b"7"])
        lives = [client.ttl(key) for key in client.keys(KEYS.windows.records(b"*"))]
        assert sorted(life > 0 for life in lives) == [False, True]


@needs_faketime
def test_what_is_lost_while_it_is_created_is_noticed(
    start_redis: StartRedis, stepped_clock: SteppedClock
) -> None:
    """Such as by a step of the clock, after which what was written so far has expired."""
    servers = start_redis(clock=stepped_clock)

    def records() -> Iterator[Record]:
        for k in range(5_000):
            if k == 4_500:
                stepped_clock.step(86_400)
                assert servers.servers[0].call("DBSIZE") >= 0
                sleep(0.3)  # in which Redis deletes what has expired
            yield b"%d" % k, b"1"

    with pytest.raises(StoreError, match="were deleted while they were created"):
        RecordStore(parse_redis_url(servers.url), {}, lambda: Change(b"", records()), lambda *_: "")
    assert opened(servers.url).created


def test_servers_that_delete_keys_are_refused(start_redis: StartRedis) -> None:
    with pytest.raises(StoreError, match=r"volatile-ttl.*noeviction"):
        opened(start_redis(config={"maxmemory-policy": "volatile-ttl"}).url)


def test_a_full_server_refuses_changes_and_still_answers(start_redis: StartRedis) -> None:
    servers = start_redis()
    store = opened(servers.url)
    with servers.servers[0].connect() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreError, match="memory limit"):
            add(store, b"a")
        sleep(1.1)
        assert store.read([b"a"]) == (b"0", [None])
        client.config_set("maxmemory", 0)
        add(store, b"a")
        assert store.read([b"a"]) == (b"1", [b"1"])


def test_a_server_that_is_away_is_noticed_soon_and_found_again(start_redis: StartRedis) -> None:
    servers = start_redis(config={"appendonly": "yes", "appendfsync": "always"})
    store = opened(servers.url)
    add(store, b"a")
    servers.servers[0].kill()
    began = monotonic()
    with pytest.raises(StoreError, match=r"could not be reached for 1 s"):
        store.read([b"a"])
    assert monotonic() - began < 10
    began = monotonic()
    for _ in range(50):  # are not asked
        with pytest.raises(StoreError, match=r"could not be reached"):
            add(store, b"a")
    assert monotonic() - began < 1
    servers.servers[0].restart()
    deadline = monotonic() + 20
    while monotonic() < deadline:
        with suppress(StoreError):
            add(store, b"a")
            break
    assert store.read([b"a"]) == (b"2", [b"2"])


@timing_sensitive
def test_a_server_that_is_silent_holds_nobody_up_for_long(start_redis: StartRedis) -> None:
    servers = start_redis()
    store = opened(servers.url)
    add(store, b"a")
    servers.servers[0].freeze()
    began = monotonic()
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(store.read, [b"a"]) for _ in range(8)]
    assert all(isinstance(each.exception(), StoreError) for each in asked)
    assert monotonic() - began < 10
    servers.servers[0].thaw()
    sleep(1.1)
    assert store.read([b"a"]) == (b"1", [b"1"])


def test_a_server_that_came_back_empty_is_not_taken_for_one_without_rows(
    redis_url: str, shared_redis: BreakableRedis
) -> None:
    store = opened(redis_url)
    with shared_redis.servers[0].connect() as client:
        client.flushall()
    with pytest.raises(StoreError, match="are gone"):
        store.read([b"a"])
    assert opened(redis_url).created
    sleep(1.1)
    with pytest.raises(StoreError, match="created anew"):
        add(store, b"a")


class DeafLine(CutLine):
    """Passes everything on; the answer to an EXEC is lost with its connection, so many times."""

    def __init__(self, url: str, times: int) -> None:
        self.left, self._deaf = times, False
        super().__init__(url, 1 << 60, on_data=self._look)

    def _look(self, data: bytes) -> None:
        if b"EXEC" in data and self.left:
            self.left, self._deaf = self.left - 1, True

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if self._deaf:
                    self._deaf = False
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)


def test_a_change_whose_answer_is_lost_is_made_once(redis_url: str) -> None:
    opened(redis_url)
    with ExitStack() as ends:
        line = DeafLine(redis_url, times=2)
        ends.callback(line.close)
        store = opened(line.url)
        add(store, b"a")
        add(store, b"a")
        assert line.left == 0
        assert store.read([b"a"]) == (b"2", [b"2"])


def test_whether_it_was_written_is_said_when_nobody_knows(start_redis: StartRedis) -> None:
    servers = start_redis()
    store = opened(servers.url)

    def decide(head: bytes, values: list[bytes | None], _: list[Record]) -> Change:
        servers.servers[0].kill()
        return Change(head, [(b"a", b"1")])

    with pytest.raises(StoreError, match="may nevertheless have been written"):
        store.change([b"a"], decide)
