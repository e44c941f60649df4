"""What a worker's store survives, and what it stops at: real servers that die, lag, move data and lose it."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from itertools import count
from threading import Thread, Timer
from time import monotonic, sleep

import numpy as np
import pytest
from redis.exceptions import RedisError

from ctr.errors import StoreError
from ctr.features.threads import Background
from ctr.ps import Filters, PackedPush, RedisSessions, RedisStore, Token, parse_redis_url
from tests.ps.breakable_redis import BreakableRedis, BreakableServer
from tests.ps.cluster import add_node, hash_slot_of, move_hash_slots
from tests.ps.contract import scanned
from tests.ps.expected_sums import ExpectedSums, chunks_of, filter_updates
from tests.ps.redis_servers import StartRedis, eventually, needs_redis, timing_sensitive

pytestmark = [needs_redis, timing_sensitive]

_names = count()
NODE_TIMEOUT_S = 1.0
BUSY_MACHINE_S = 6.0
ALL = Filters(cache=True, presence=True, defer=1.0, kkt=True)


def opened(url: str, bits: int, **options: object) -> RedisStore:
    return RedisStore(parse_redis_url(f"{url}?model=faults-{next(_names)}"), bits=bits, width=2, **options)


def worker_of(store: RedisStore, filters: Filters) -> RedisSessions:
    return RedisSessions(store, "job", filters=filters, staleness=2, filter_updates=filter_updates)


def unsent_to_replica(primary: BreakableServer) -> int:
    """Bytes that are in the primary's own memory, so that they die with it."""
    with primary.connect() as client:
        return sum(int(link["omem"]) for link in client.client_list(_type="replica"))


def hash_slots_at(server: BreakableServer) -> list[int]:
    """The hash slots that a primary says it holds, ascending."""
    (mine,) = (each for each in server.members() if "myself" in each.flags)
    return [slot for first, last in mine.hash_slots for slot in range(first, last + 1)]


class Training:
    """One worker that trains chunk after chunk of one data shard, and checks every state that it sees."""

    def __init__(self, store: RedisStore, filters: Filters) -> None:
        self.store, self.worker, self.expected = store, worker_of(store, filters), ExpectedSums(store.bits)
        self.arrived: list[float] = []
        """When each push did."""
        self.number = 0
        self._chunks = chunks_of(store.bits, [2000, 1200, 2500, 800], 1)  # from 1024 slots on as ranges
        self.session = self.worker.begin(0)
        self._coming = self.session.pull(self._chunks[0], 0, 0)
        self._sender = Background("sender")
        self._sending: deque[Future[None]] = deque()

    def train_one(self) -> None:
        pulled, self.number = self._coming, self.number + 1
        chunk = self._chunks[self.number % len(self._chunks)]
        self._coming = self.session.pull(chunk, self.number, self.number - 1)
        push = self.expected.step(self.session, self.store, pulled, self.number - 1)
        self._sending.append(self._sender.submit(self._send, push))
        while len(self._sending) > 2:
            self._sending.popleft().result()

    def _send(self, push: PackedPush) -> None:
        assert self.session.send(push)
        self.arrived.append(monotonic())

    def train_until_one_arrives(self) -> float:
        """When the first push did that is made now."""
        now = self.number
        while len(self.arrived) <= now:
            self.train_one()
        return self.arrived[now]

    def finish(self) -> None:
        """Train a little more; then the store must hold the expected sums."""
        for _ in range(5):
            self.train_one()
        for sent in self._sending:
            sent.result()
        self.worker.wait_replicated()
        self.expected.require(self.store)
        self.worker.close()
        self.store.close()


class TestFailover:
    """To a replica, of a primary that has acknowledged more than the replica ever received."""

    @pytest.fixture
    def servers(self, start_redis: StartRedis) -> BreakableRedis:
        config = {
            "cluster-node-timeout": str(round(1000 * NODE_TIMEOUT_S)),
            "cluster-replica-validity-factor": "0",  # it may take over however long it was away
            "client-output-buffer-limit": "replica 0 0 0",
        }
        return start_redis(nodes=3, replicas=1, config=config)

    def test_lost_pushes_are_sent_again(self, servers: BreakableRedis) -> None:
        training = Training(opened(servers.url, 16), ALL)
        for _ in range(5):
            training.train_one()
        primary, replica = servers.nodes[1]
        replica.freeze()
        frozen = monotonic()
        while monotonic() - frozen < 2.0 or unsent_to_replica(primary) < 1 << 20:
            training.train_one()
            sleep(0.05)  # it takes long enough, not many chunks
            assert monotonic() - frozen < 60
        training.train_one()
        primary.kill()
        killed = monotonic()
        replica.thaw()
        recovered = training.train_until_one_arrives() - killed
        assert recovered < NODE_TIMEOUT_S + 3.0 + BUSY_MACHINE_S
        training.finish()
        assert training.worker.resent > 0

    def test_a_primary_that_was_frozen_comes_back(self, servers: BreakableRedis) -> None:
        """It may acknowledge pushes before it learns that another has taken over; those count for nothing."""
        training = Training(opened(servers.url, 16, timeout_s=1.0), Filters())
        for _ in range(5):
            training.train_one()
        primary, replica = servers.nodes[1]
        with replica.connect() as client:
            primary.freeze()
            thawing = Thread(
                target=lambda: (eventually(lambda: client.role()[0] == "master"), primary.thaw())
            )
            thawing.start()
            while thawing.is_alive():
                training.train_one()
            thawing.join()
        with primary.connect() as client:
            eventually(lambda: training.train_one() or client.role()[0] == "slave")
        training.finish()
        assert training.store.troubles


class TestResharding:
    def test_moved_while_a_worker_trains(self, start_redis: StartRedis, redis_url: str) -> None:
        bits, moved = 16, 3
        servers = start_redis(nodes=2)
        node = add_node(servers)
        chunks = chunks_of(bits, [2000, 300, 1500, 700], 2)
        store, expected = opened(servers.url, bits), ExpectedSums(bits)
        source = servers.nodes[0][0]
        held = set(hash_slots_at(source))
        hash_slots = sorted({hash_slot_of(store.keys, p) for p in range(store.partitions.count)} & held)[
            :moved
        ]
        problems: list[Exception] = []
        asked = 0

        def wait_for_an_answer_of_ask() -> None:
            nonlocal asked
            before = store.troubles
            eventually(lambda: store.troubles > before)
            asked += 1

        def move() -> None:
            try:
                move_hash_slots(
                    [primary for primary, *_ in servers.nodes],
                    source,
                    node,
                    hash_slots,
                    keys_at_a_time=1,  # so that a partition is split between the nodes for a while
                    pause=wait_for_an_answer_of_ask,
                )
            except (AssertionError, RedisError) as error:
                problems.append(error)

        mover = Thread(target=move)
        worker = worker_of(store, ALL)
        expected.train(worker, store, 0, chunks)
        mover.start()
        shard = 1
        while mover.is_alive():
            expected.train(worker, store, shard, chunks, clock=4 * shard)
            shard += 1
        mover.join()
        assert not problems
        expected.train(worker, store, shard, chunks, clock=4 * shard)
        expected.require(store)
        assert asked >= 3 * moved  # watermarks, state, inserts; another key may be there by chance
        assert set(hash_slots) == set(hash_slots_at(node))
        assert (store.applied("job", shard) >= -1).all()

        undisturbed, again = opened(redis_url, bits), ExpectedSums(bits)
        other = worker_of(undisturbed, ALL)
        for each in range(shard + 1):
            again.train(other, undisturbed, each, chunks, clock=4 * each)
        assert scanned(undisturbed) == scanned(store)
        worker.close()
        other.close()
        store.close()
        undisturbed.drop()


def test_a_link_watches_nothing_after_a_push_that_met_a_partition_on_its_way(start_redis: StartRedis) -> None:
    servers = start_redis(nodes=2)
    source, target = servers.servers
    store = opened(servers.url, 16, patience_s=0.5)
    slots = np.arange(0, 1 << 16, 1 << 10, dtype=np.uint32)  # a few, which are added one by one
    ones = np.ones((slots.size, 2), np.float32)
    store.push(slots, ones, Token("job", 0, 0))
    held = set(hash_slots_at(source))
    p = next(p for p in range(store.partitions.count) if hash_slot_of(store.keys, p) in held)
    number, state = hash_slot_of(store.keys, p), store.keys.state(p).decode()
    target.call("CLUSTER", "SETSLOT", number, "IMPORTING", source.call("CLUSTER", "MYID"))
    source.call("CLUSTER", "SETSLOT", number, "MIGRATING", target.call("CLUSTER", "MYID"))
    password = ("AUTH", target.password)
    source.call("MIGRATE", target.host, target.port, "", 0, 5_000, *password, "KEYS", state)
    # It can watch the watermark, and does not find the state.
    with pytest.raises(StoreError, match=r"could not be reached for 0\.5 s"):
        store.push(slots, ones, Token("job", 0, 1))
    with source.connect() as client:
        client.hset(store.keys.watermarks(p, 0), "changed", "")
        assert not [each for each in client.client_list() if "d" in each["flags"]]
    store.close()


@pytest.mark.parametrize(("nodes", "filters"), [(1, Filters()), (1, ALL), (2, ALL)])
def test_a_primary_that_restarts_empty_stops_the_worker(
    start_redis: StartRedis, nodes: int, filters: Filters
) -> None:
    """It never sees zeros where something was."""
    servers = start_redis(nodes=nodes)
    store, expected = opened(servers.url, 14), ExpectedSums(14)
    worker = worker_of(store, filters)
    chunks = chunks_of(14, [500, 200, 500], 4)
    expected.train(worker, store, 0, chunks)
    victim = servers.servers[-1]
    killer = Thread(target=victim.restart)
    killer.start()

    def train() -> None:
        for shard in range(1, 10_000):
            expected.train(worker, store, shard, chunks, clock=3 * shard)

    with pytest.raises(StoreError, match="lost the data"):
        train()
    killer.join()
    with pytest.raises(StoreError, match="lost the data"):
        worker.wait_replicated()
    with pytest.raises(StoreError, match="lost the data"):
        store.pull(np.arange(1 << 14, dtype=np.uint32))
    worker.close()
    store.close()


def replica_of(servers: BreakableRedis) -> tuple[BreakableServer, BreakableServer]:
    ((primary, replica),) = servers.nodes
    return primary, replica


class TestReadOnly:
    def test_a_model_cannot_be_opened_on_a_replica(self, start_redis: StartRedis) -> None:
        """It follows its primary, so it says soon which that is; without one it may be about to take over."""
        primary, replica = replica_of(start_redis(replicas=1))
        began = monotonic()
        with pytest.raises(StoreError, match=rf"is a replica.*name its primary, 127\.0\.0\.1:{primary.port}"):
            opened(replica.url, 10)
        assert monotonic() - began < 10
        with replica.connect() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")  # nobody
            with pytest.raises(StoreError, match=r"the model could not be reached .*read only replica"):
                opened(replica.url, 10, patience_s=0.5)
            promotion = Timer(0.5, client.execute_command, ("REPLICAOF", "NO", "ONE"))
            promotion.start()
            opened(replica.url, 10).close()
            promotion.join()

    def test_a_primary_that_becomes_a_replica_for_a_while(self, start_redis: StartRedis) -> None:
        """Pushes wait, and count once."""
        servers = start_redis(replicas=1)
        primary, _ = replica_of(servers)
        store, expected = opened(servers.url, 14), ExpectedSums(14)
        worker = worker_of(store, Filters())
        chunks = chunks_of(14, [500, 200, 500, 300], 4)
        expected.train(worker, store, 0, chunks)

        def make(server: BreakableServer, *of: str) -> None:
            with server.connect() as client:
                client.execute_command("REPLICAOF", *of)

        def demote() -> None:
            # The other takes over with all it has, and hands back with all that it was.
            with primary.connect() as client:
                client.execute_command("CLIENT PAUSE", 10_000, "WRITE")
                client.wait(1, 10_000)
            make(primary, "127.0.0.1", "1")  # nobody
            with primary.connect() as client:
                client.execute_command("CLIENT UNPAUSE")
            before = store.troubles
            eventually(lambda: store.troubles > before + 1)
            make(primary, "NO", "ONE")

        changer = Thread(target=demote)
        changer.start()
        shard = 1
        while changer.is_alive():
            expected.train(worker, store, shard, chunks, clock=4 * shard)
            shard += 1
        changer.join()
        expected.require(store)
        worker.close()
        store.close()

    def test_for_longer_than_patience(self, start_redis: StartRedis) -> None:
        servers = start_redis(replicas=1)
        primary, _ = replica_of(servers)
        store, expected = opened(servers.url, 14, patience_s=0.5), ExpectedSums(14)
        worker = worker_of(store, Filters())
        chunks = chunks_of(14, [500, 200, 500, 300], 4)
        expected.train(worker, store, 0, chunks)
        with primary.connect() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreError, match=r"for 0.5 s \(READONLY .*bring the server back"):
            ExpectedSums(14).train(worker, store, 1, chunks, clock=4, alone=False)
        worker.close()
        expected.require(store)  # the same connections can be used again
        store.close()


def test_out_of_memory(start_redis: StartRedis) -> None:
    servers = start_redis(config={"maxmemory": "8mb", "maxmemory-policy": "noeviction"})
    store, expected = opened(servers.url, 20), ExpectedSums(20)
    worker = worker_of(store, ALL)
    chunks = chunks_of(20, [2000] * 50, 1)
    with pytest.raises(StoreError, match="memory limit"):
        expected.train(worker, store, 0, chunks, alone=False)
    worker.close()
    with servers.servers[0].connect() as client:
        client.config_set("maxmemory", "0")
    # What it says is true: each partition has a push whole, or not at all.
    packed = store.pull_packed(np.arange(1 << 20, dtype=np.uint32)).packed
    assert packed.any()
    store.close()


def test_a_wrong_password_for_a_cluster(cluster_url: str) -> None:
    url = cluster_url
    password = url.partition("@")[0].rpartition(":")[2]
    with pytest.raises(StoreError, match="refused") as refusal:
        opened(url.replace(password, "wrong-secret"), 10)
    assert "wrong-secret" not in str(refusal.value)


def test_no_cluster_there() -> None:
    with pytest.raises(StoreError, match="cannot be reached"):
        opened("redis+cluster://127.0.0.1:1,127.0.0.1:2", 10)


def test_a_whole_cluster_that_goes_away(start_redis: StartRedis) -> None:
    servers = start_redis(nodes=2)
    store = opened(servers.url, 10, patience_s=0.3)
    for server in servers.servers:
        server.kill()
    with pytest.raises(StoreError, match=r"could not be reached for 0.3 s"):
        store.pull(np.arange(1 << 10, dtype=np.uint32))
    store.close()


def test_a_pull_of_everything_fills_no_server(start_redis: StartRedis) -> None:
    """Redis cuts off whoever has it keep more than so much that was not read yet."""
    servers = start_redis(config={"client-output-buffer-limit": "normal 24mb 0 0"})
    store = opened(servers.url, 22, patience_s=5.0)
    slots = np.arange(1 << 22, dtype=np.uint32)
    store.push(slots, np.ones((slots.size, 2), np.float32), Token("job", 0, 0))
    pulled = store.pull(slots)  # 32 MiB
    assert store.troubles == 0
    assert (pulled[:, 1] == 1).all()
    store.drop()
