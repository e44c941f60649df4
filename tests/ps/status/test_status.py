"""`StoreObserver` before real servers: what it sees, healthy or broken, and that it leaves no trace."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic, sleep

import numpy as np
import pytest
import redis
from redis.crc import key_slot

from ctr.errors import StoreError
from ctr.ps import Token
from ctr.ps.board.job_board import JobBoard
from ctr.ps.redis.store import RedisStore
from ctr.ps.status.observer import StoreObserver
from ctr.ps.status.status import StoreStatus
from ctr.ps.wire.keys import Keys
from ctr.ps.wire.url import parse_redis_url
from tests.ps.breakable_redis import BreakableRedis, BreakableServer
from tests.ps.job_boards import Boards, opened_boards, until
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis

BITS = 12
SLOTS = np.arange(1 << BITS, dtype=np.uint32)
KEYS = Keys("ads")
PARTITION_BYTES = 8 << BITS - 4
"""Of 16 partitions, all of whose slots were pushed."""
READS = {
    *(
        "auth",
        "hello",
        "pttl",
        "client",
        "client|setinfo",
        "select",
        "info",
        "config",
        "config|get",
        "config|resetstat",
        "dbsize",
        "bitcount",
    ),
    *("cluster", "cluster|info", "cluster|nodes", "cluster|slots", "multi", "exec", "time"),
    *("get", "hget", "hmget", "hgetall", "hlen", "strlen", "exists"),
    *("zscore", "zmscore", "zrange"),
}


def named(url: str) -> str:
    return f"{url}?model=ads"


def push(url: str, **facts: str) -> None:
    """Creates the model, and pushes to every slot of it."""
    with closing(RedisStore(parse_redis_url(named(url)), bits=BITS, width=2, facts=facts)) as store:
        store.push(SLOTS, np.ones((SLOTS.size, 2), np.float32), Token("job", 0, 0))


def observer_of(url: str, **options: float) -> StoreObserver:
    """Of the model `ads`, or of another URL."""
    return StoreObserver(parse_redis_url(url if "?" in url else named(url)), **options)


def look(url: str, **options: float) -> StoreStatus:
    """One look by a new observer."""
    return observer_of(url, **options).look()


def seen_until(url: str, holds: Callable[[StoreStatus], bool], **options: float) -> StoreStatus:
    """What is seen when that holds, after looks by new observers: not many, as each asks all nodes."""
    return until(lambda: holds(found := look(url, **options)) and found, pause_s=0.2)


@pytest.fixture
def boards() -> Iterator[Boards]:
    with opened_boards() as open_board:
        yield open_board


def of(server: BreakableServer) -> str:
    return f"{server.host}:{server.port}"


class TestOneServer:
    def test_no_model(self, redis_url: str) -> None:
        found = look(redis_url)
        assert (found.model, found.problem, found.board, found.whole) == (None, None, None, False)
        (node,) = found.nodes
        assert (node.role, node.partitions, node.keys, node.problem) == ("primary", (), 0, None)
        assert found.partition_balance is None

    def test_a_model(self, redis_url: str) -> None:
        push(redis_url, fingerprint="abc")
        found = look(redis_url)
        assert found.whole
        assert found.model is not None
        assert (found.model.name, found.model.bits, found.model.partitions) == ("ads", BITS, 16)
        assert found.model.state == "ready"
        assert found.model.facts["fingerprint"] == "abc"
        (node,) = found.nodes
        assert node.partitions == tuple(range(16))
        assert node.partition_bytes == 16 * PARTITION_BYTES
        assert node.keys is not None
        assert node.keys >= 1 + 2 * 16  # the description; a state and watermarks each
        assert node.version is not None
        assert node.memory_used is not None
        assert (found.partition_balance, found.byte_balance) == (1, 1)
        assert (found.cluster_state, node.hash_slots, node.replicas) == (None, None, ())

    def test_models_are_told_apart(self, redis_url: str) -> None:
        push(redis_url)
        assert look(f"{redis_url}?model=other").model is None
        assert look(redis_url).whole

    @pytest.mark.parametrize(
        ("config", "persistence"),
        [
            ({}, "off"),
            ({"appendonly": "yes"}, "aof"),
            ({"save": "900 1"}, "snapshots"),
            ({"appendonly": "yes", "save": "900 1"}, "aof and snapshots"),
        ],
    )
    def test_persistence(self, start_redis: StartRedis, config: dict[str, str], persistence: str) -> None:
        assert look(start_redis(config=config).url).nodes[0].persistence == persistence

    def test_the_memory_limit(self, start_redis: StartRedis) -> None:
        own = start_redis(config={"maxmemory": "64mb", "maxmemory-policy": "allkeys-lru"})
        (node,) = look(own.url).nodes
        assert (node.memory_max, node.eviction) == (64 << 20, "allkeys-lru")

    def test_a_policy_that_deletes_weights_is_refused(self, start_redis: StartRedis) -> None:
        for nodes in (1, 2):
            own = start_redis(nodes, config={"maxmemory": "64mb", "maxmemory-policy": "allkeys-lru"})
            with pytest.raises(StoreError, match=r"allkeys-lru.*set maxmemory-policy to noeviction"):
                push(own.url)
        with own.servers[1].connect() as client:
            assert client.dbsize() == 0
        own = start_redis(config={"maxmemory": "64mb", "maxmemory-policy": "volatile-lru"})
        push(own.url)  # only what has a time to live goes, and nothing of a model has

    def test_a_part_that_was_deleted(self, redis_url: str) -> None:
        """As by eviction: its watermarks are there, its state is not."""
        push(redis_url)
        with redis.Redis.from_url(redis_url) as client:
            client.delete(KEYS.state(5))
        assert look(redis_url).lost == (5,)
        with closing(RedisStore(parse_redis_url(named(redis_url)), bits=BITS, width=2, join=True)) as store:
            for request in (
                lambda: list(store.scan()),
                lambda: store.dumps.take(5),
                lambda: store.push(SLOTS, np.ones((SLOTS.size, 2), np.float32), Token("job", 1, 0)),
            ):
                with pytest.raises(StoreError, match="lost a part"):
                    request()

    def test_above_the_memory_limit(self, start_redis: StartRedis, boards: Boards) -> None:
        """A server refuses transactions then, even such as only read."""
        own = start_redis()
        push(own.url)
        boards(named(own.url)).create("job", b"", shards=1)
        with own.servers[0].connect() as client:
            client.config_set("maxmemory", 1)
            with pytest.raises(redis.ResponseError, match="maxmemory"):
                client.set("more", 1)
            found = look(own.url)
            assert (found.whole, found.problem) == (True, None)
            assert found.board is not None
            store = RedisStore(parse_redis_url(named(own.url)), bits=BITS, width=2, join=True)
            assert sum(slots.size for slots, _ in store.scan()) == SLOTS.size
            store.drop()
            assert client.dbsize() == 0

    def test_how_far_replicas_are_behind(self, start_redis: StartRedis) -> None:
        own = start_redis(1, 2)
        own.servers[1].freeze()
        push(own.url)
        replicas = {each.address: each for each in look(own.url).nodes[0].replicas}
        assert replicas.keys() == {of(server) for server in own.servers[1:]}
        frozen = replicas[of(own.servers[1])]
        assert frozen.state == "online"
        assert frozen.lag_bytes is not None
        assert frozen.lag_bytes >= 16 * PARTITION_BYTES
        other = of(own.servers[2])
        seen_until(
            own.url,
            lambda found: {r.address: r.lag_bytes for r in found.nodes[0].replicas}[other] == 0,
        )

    def test_a_replica_is_called_one(self, start_redis: StartRedis) -> None:
        own = start_redis(1, 1)
        assert look(own.servers[1].url).nodes[0].role == "replica"

    def test_a_frozen_server(self, start_redis: StartRedis) -> None:
        own = start_redis()
        own.servers[0].freeze()
        began = monotonic()
        with pytest.raises(StoreError, match="cannot be reached"):
            look(own.url, timeout_s=0.3)
        assert monotonic() - began < 10

    def test_wrong_password(self, redis_url: str, cluster_url: str) -> None:
        for url in (redis_url, cluster_url):
            scheme, _, rest = url.partition("://:")
            for other in (f"{scheme}://:wrong-{rest}", f"{scheme}://{rest.partition('@')[2]}"):
                with pytest.raises(StoreError, match="password was refused") as refusal:
                    look(other)
                assert "wrong-" not in str(refusal.value)

    def test_it_comes_back(self, start_redis: StartRedis) -> None:
        own = start_redis()
        observer = observer_of(own.url)
        observer.look()
        own.servers[0].restart()
        assert observer.look().nodes[0].problem is None

    def test_a_cluster_is_no_single_server(self, redis_url: str) -> None:
        with pytest.raises(StoreError, match=r"write redis://"):
            look(redis_url.replace("redis://", "redis+cluster://").removesuffix("/0"))

    def test_what_a_user_may_not_see_is_left_out(self, start_redis: StartRedis) -> None:
        own = start_redis()
        push(own.url)
        with own.servers[0].connect() as client:
            client.execute_command("ACL", "SETUSER", "eve", "on", ">pw", "~*", "+@read", "+ping")
        address = own.url.rpartition("@")[2]
        found = look(f"redis://eve:pw@{address}")
        assert found.model is not None
        assert found.nodes[0].partition_bytes == 16 * PARTITION_BYTES
        assert "permission" in str(found.nodes[0].problem)
        assert found.nodes[0].persistence is None


class TestCluster:
    def test_partitions_are_where_their_keys_are(
        self, shared_cluster: BreakableRedis, cluster_url: str
    ) -> None:
        push(cluster_url)
        found = look(cluster_url)
        assert found.cluster_state == "ok"
        assert found.whole
        by_address = {node.address: node for node in found.nodes}
        assert len(by_address) == 2
        for server, *_ in shared_cluster.nodes:
            node = by_address[of(server)]
            with server.connect() as client:
                there = set(client.keys("*"))
            assert {KEYS.facts(p).decode() for p in node.partitions} <= there
            assert node.partition_bytes == len(node.partitions) * PARTITION_BYTES
            assert node.hash_slots == 8_192
        counts = [len(node.partitions) for node in found.nodes]
        assert sum(counts) == 16
        assert found.partition_balance == pytest.approx(max(counts) / 8)
        assert found.byte_balance == pytest.approx(found.partition_balance)

    def test_one_node_is_no_single_server(self, shared_cluster: BreakableRedis) -> None:
        home = key_slot(KEYS.meta)
        other = shared_cluster.nodes[home < 8_192][0]
        with pytest.raises(StoreError, match=r"redis\+cluster://"):
            look(other.url)

    def test_partitions_on_the_move(self, start_redis: StartRedis) -> None:
        own = start_redis(2)
        push(own.url)
        (source, *_), (target, *_) = own.nodes
        moving = next(p for p in range(16) if key_slot(KEYS.state(p)) < 8_192)
        slot = key_slot(KEYS.state(moving))
        with source.connect() as a, target.connect() as b:
            names = [client.execute_command("CLUSTER", "MYID") for client in (a, b)]
            b.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
            a.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
            password = own.url.partition("@")[0].rpartition(":")[2]
            keys = a.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
            assert KEYS.watermarks(moving, 0).decode() in keys
            a.execute_command(
                "MIGRATE", target.host, target.port, "", 0, 5_000, "AUTH", password, "KEYS", *keys
            )
            assert look(own.url).moving == (moving,)
            for client in (b, a):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[1])
        found = look(own.url)
        assert (found.moving, found.whole) == ((), True)
        assert moving in {node.address: node for node in found.nodes}[of(target)].partitions


class TestBrokenCluster:
    """Each with servers of its own."""

    @pytest.fixture
    def cluster(self, start_redis: StartRedis) -> BreakableRedis:
        own = start_redis(3, config={"cluster-require-full-coverage": "no"})
        push(own.url)
        return own

    def away(self, cluster: BreakableRedis) -> BreakableServer:
        """A primary that does not hold the model's description."""
        home = key_slot(KEYS.meta) * 3 // 16_384
        return cluster.nodes[(home + 1) % 3][0]

    @pytest.mark.parametrize("harm", [BreakableServer.freeze, BreakableServer.kill])
    def test_a_node_that_does_not_answer(
        self, cluster: BreakableRedis, harm: Callable[[BreakableServer], None]
    ) -> None:
        server = self.away(cluster)
        expected = {node.address: node for node in look(cluster.url).nodes}[of(server)].partitions
        harm(server)
        began = monotonic()
        found = look(cluster.url, timeout_s=1.0)
        assert monotonic() - began < 10
        assert found.unreachable == expected
        assert not found.whole
        assert found.byte_balance is None
        assert found.problem is None  # the model and its job are known all the same
        nodes = {node.address: node for node in found.nodes}
        assert nodes[of(server)].problem is not None
        assert [node.problem for node in found.nodes if node.address != of(server)] == [None, None]
        assert nodes[of(server)].partitions == expected

    def test_the_node_with_the_description_is_dead(self, cluster: BreakableRedis) -> None:
        cluster.nodes[key_slot(KEYS.meta) * 3 // 16_384][0].kill()
        found = look(cluster.url, timeout_s=1.0)
        assert found.model is None
        assert "description cannot be read" in str(found.problem)
        assert len(found.nodes) == 3

    def test_nobody_is_left(self, cluster: BreakableRedis) -> None:
        for server in cluster.servers:
            server.kill(signal.SIGKILL)
        with pytest.raises(StoreError, match="cannot be reached"):
            look(cluster.url, timeout_s=1.0)

    def test_a_node_that_restarted_empty(self, cluster: BreakableRedis) -> None:
        server = self.away(cluster)
        expected = {node.address: node for node in look(cluster.url).nodes}[of(server)].partitions
        server.restart()
        seen_until(cluster.url, lambda found: found.lost == expected)
        assert not look(cluster.url).whole

    def test_a_cluster_that_is_down(self, start_redis: StartRedis) -> None:
        """With one part gone, by default no node answers for any key."""
        own = start_redis(3, config={"cluster-node-timeout": "1000"})
        push(own.url)
        self.away(own).kill()
        found = seen_until(own.url, lambda found: found.cluster_state == "fail", timeout_s=1.0)
        assert found.model is None
        assert "cluster is down" in found.problem.lower()

    def test_a_replica_that_took_over(self, start_redis: StartRedis) -> None:
        own = start_redis(3, 1, config={"cluster-node-timeout": "2000"})
        push(own.url)
        before = look(own.url)
        primary, replica = own.nodes[0]
        assert {node.address: node for node in before.nodes}[of(primary)].replicas[0].address == of(replica)
        seen_until(
            own.url, lambda found: all(r.lag_bytes == 0 for node in found.nodes for r in node.replicas)
        )
        primary.kill()
        found = seen_until(own.url, lambda found: found.whole, timeout_s=1.0)
        nodes = {node.address: node for node in found.nodes}
        assert nodes[of(replica)].partition_bytes == len(nodes[of(replica)].partitions) * PARTITION_BYTES
        assert found.partition_balance == pytest.approx(before.partition_balance)


class TestBoard:
    def test_no_job(self, redis_url: str) -> None:
        push(redis_url)
        assert look(redis_url).board is None

    @pytest.mark.parametrize("fixture", ["redis_url", "cluster_url"])
    def test_a_job(self, boards: Boards, request: pytest.FixtureRequest, fixture: str) -> None:
        url = request.getfixturevalue(fixture)
        push(url)
        board = boards(named(url))
        board.create("job-1", b"what to do", shards=9, ranks=2)
        worker = board.leases.register("here:1")
        board.queue.claim(worker)
        board.ranks.claim(worker)
        board.pause(3)
        found = look(url).board
        assert found is not None
        assert found.job == board.job()
        seen, own = found.view, board.look()
        for name in ("state", "pause", "shards", "started", "unfinished", "ranks", "coordinator_alive"):
            assert getattr(seen, name) == getattr(own, name)
        assert [each.id for each in seen.workers] == [worker]

    def test_reports_by_name(self, redis_url: str, boards: Boards) -> None:
        push(redis_url)
        board = boards(named(redis_url))
        board.create("job", b"", shards=1)
        for name, blob in (("life:a", b"1"), ("life:ü", b"\xff"), ("result:a", b"3")):
            board.report(name, blob)
        observer = observer_of(redis_url)
        observer.look()
        assert observer.reports(["life:ü", "life:b", "life:a"]) == {"life:a": b"1", "life:ü": b"\xff"}
        assert observer.reports([]) == {}
        assert observer.reports() == board.reports()

    @pytest.mark.parametrize("fixture", ["redis_url", "cluster_url"])
    def test_the_last_update_of_each_rank(
        self,
        boards: Boards,
        request: pytest.FixtureRequest,
        fixture: str,
    ) -> None:
        url = request.getfixturevalue(fixture)
        push(url)
        earlier = boards(named(url))
        earlier.create("old", b"", shards=1, ranks=3)
        earlier.finish()
        board = boards(named(url))
        board.create("job", b"", shards=9, ranks=3)
        earlier.ranks.prepare(1, 7, b"of another job")
        for round_ in (9, 10):
            board.ranks.prepare(2, round_, b"round %d" % round_)
        observer = observer_of(url)
        found = observer.look().board
        assert found is not None
        assert observer.prepared_updates(found) == {2: b"round 10"}

    def test_it_expires_nobody(self, redis_url: str, boards: Boards) -> None:
        """Though the worker is long overdue, and the observer has been there all the time."""
        push(redis_url)
        board: JobBoard = boards(named(redis_url), lease_s=0.05)
        board.create("job", b"", shards=1)
        worker = board.leases.register("late:1")
        observer = observer_of(redis_url)
        for _ in range(5):
            sleep(0.05)
            found = observer.look().board
            assert found is not None
            assert [each.id for each in found.view.workers] == [worker]
        assert found.view.workers[0].lease_left_s < 0
        assert not found.view.coordinator_alive

    def test_it_only_reads(self, start_redis: StartRedis, boards: Boards) -> None:
        own = start_redis()
        push(own.url)
        board = boards(named(own.url))
        board.create("job", b"", shards=3, ranks=2)
        board.leases.register("here:1")
        board.report("life:a", b"1")
        with own.servers[0].connect() as client:
            client.execute_command("CONFIG", "RESETSTAT")
            observer = observer_of(own.url)
            observer.look()
            observer.reports(["life:a"])
            called = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
        assert "hgetall" in called
        assert called <= READS

    def test_a_board_whose_job_was_dropped(self, redis_url: str, boards: Boards) -> None:
        push(redis_url)
        boards(named(redis_url)).create("job", b"", shards=1)
        with closing(RedisStore(parse_redis_url(named(redis_url)), bits=BITS, width=2, join=True)) as store:
            store.drop()
        found = look(redis_url)
        assert (found.model, found.board) == (None, None)
        assert found.nodes[0].keys == 0
