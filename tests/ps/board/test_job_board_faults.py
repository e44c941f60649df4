"""What a network and a cluster do to a job board."""

from __future__ import annotations

import re
import socket
import time
from contextlib import closing, suppress
from threading import Event, Thread

import pytest

from ctr.errors import StoreError
from ctr.ps.board.job_board import JobBoard
from ctr.ps.wire.connection import Connection, Write
from ctr.ps.wire.keys import Keys
from ctr.ps.wire.nodes import connect
from ctr.ps.wire.url import parse_redis_url
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.job_boards import Boards, at_once, until
from tests.ps.redis_servers import StartRedis, needs_redis, timing_sensitive

pytestmark = [needs_redis, timing_sensitive]


class Forgetful:
    """A proxy on loopback before a server. Of every transaction the first answer is lost."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._again = False
        self.forgotten = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._target)) as server:
            while request := client.recv(1 << 20):
                server.sendall(request)
                answer = server.recv(1 << 20)
                if b"EXEC" in request and not self._again:
                    self._again = True
                    self.forgotten += 1
                    return
                if b"EXEC" in request or b"UNWATCH" in request:
                    self._again = False  # whoever was not answered has asked again
                client.sendall(answer)


def test_answers_that_never_come(start_redis: StartRedis, boards: Boards) -> None:
    """All that a job does, each transaction at least twice."""
    servers = start_redis()
    (server,) = servers.servers
    with closing(Forgetful(server.port)) as proxy:
        board = boards(servers.url.replace(f":{server.port}/", f":{proxy.port}/"))
        for job in ("first", "second"):
            board.create(job, b"", shards=6, ranks=2)
            board.restore({1: 5}, [2, 2], started=2)
            worker, dead = board.leases.register("here"), board.leases.register("dead")
            assert len(board.look().workers) == 2
            assert board.ranks.claim(dead) == [0]
            assert board.queue.claim(dead).shard == 1
            board.leases.expire(dead)
            assert board.ranks.claim(worker) == [0]
            for shard, progress in ((1, 5), (2, 0), (3, 0), (4, 0)):
                claim = board.queue.claim(worker)
                assert (claim.shard, claim.progress) == (shard, progress)
                assert board.leases.heartbeat(worker)
                assert board.queue.advance(worker, shard, 6, claim.clock + 1)
                assert shard == 4 or board.queue.done(worker, shard)
            board.queue.release(worker, 4)
            assert board.ranks.prepare(0, 3, b"update") == b"update"
            board.ranks.announce_prepared(0, 3)
            board.ranks.announce_pushed(0, 3)
            board.report("r", b"report")
            board.pause(5)
            view = board.look()
            assert (view.started, view.finished, view.clock, view.pause) == (5, 4, 4, 5)
            assert {s: (found.owner, found.progress) for s, found in view.unfinished.items()} == {
                4: (None, 6)
            }
            assert [(rank.prepared, rank.pushed) for rank in view.ranks] == [(3, 3), (2, 2)]
            assert board.reports() == {"r": b"report"}
            board.stop()
            board.leases.expire(worker)
            board.finish()
        assert proxy.forgotten > 50


def test_frozen_again_and_again(start_redis: StartRedis, boards: Boards) -> None:
    """For longer than a request waits: its outcome is unknown, and it is sent again."""
    servers, shards = start_redis(), 12
    board, other = (boards(servers.url, timeout_s=0.1) for _ in range(2))
    board.create("job", b"", shards=shards, ranks=1)
    over, frozen = Event(), 0

    def freeze() -> None:
        nonlocal frozen
        while not over.is_set():
            servers.servers[0].freeze()
            frozen += 1
            time.sleep(0.15)
            servers.servers[0].thaw()
            time.sleep(0.005)

    claimed: list[int] = []

    def work(own: JobBoard) -> None:
        worker = own.leases.register("here")
        while claim := own.queue.claim(worker):
            claimed.append(claim.shard)
            assert claim.progress == 0
            assert own.leases.heartbeat(worker)
            assert own.queue.advance(worker, claim.shard, 1, claim.clock + 1)
            update = own.ranks.prepare(0, claim.shard, b"%d" % claim.shard)
            assert update in (None, b"%d" % claim.shard)
            own.ranks.announce_prepared(0, claim.shard)
            own.report(f"{claim.shard}", b"done")
            assert own.queue.done(worker, claim.shard)

    def work_all() -> None:
        try:
            at_once(lambda: work(board), lambda: work(other))
        finally:
            over.set()

    at_once(freeze, work_all)
    assert frozen > 5
    assert sorted(claimed) == list(range(shards))
    view = board.look()
    assert (view.finished, len(view.workers)) == (shards, 2)
    assert view.ranks[0].prepared == shards - 1
    assert len(board.reports()) == shards


def test_a_freeze_kills_no_workers(start_redis: StartRedis, boards: Boards) -> None:
    """Leases ran out while nobody could renew them: the first to be answered does not expire the others."""
    servers, lease_s = start_redis(), 2.0
    board = boards(servers.url, lease_s=lease_s)
    board.create("job", b"", shards=9)
    worker, other = board.leases.register("here"), board.leases.register("there")
    time.sleep(0.6 * lease_s)  # by now it may expire
    servers.servers[0].freeze()
    answered: list[int] = []
    asking = Thread(target=lambda: answered.append(board.queue.gate(worker).workers))
    asking.start()
    time.sleep(0.8 * lease_s)
    servers.servers[0].thaw()
    asking.join()
    assert answered == [2]
    view = board.look()
    assert [w.lease_left_s < 0 for w in view.workers] == [True, True]

    def is_alone() -> bool:
        assert board.leases.heartbeat(other)
        return [w.id for w in board.look().workers] == [other]

    until(is_alone)  # the other sends no heartbeats
    assert not board.leases.heartbeat(worker)


def test_a_server_that_restarted_empty(start_redis: StartRedis, boards: Boards) -> None:
    servers = start_redis()
    board = boards(servers.url)
    board.create("job", b"", shards=9, ranks=1)
    worker = board.leases.register("here")
    servers.servers[0].restart()
    for request in (
        lambda: board.queue.gate(worker),
        lambda: board.ranks.gate(worker),
        lambda: board.queue.claim(worker),
        lambda: board.ranks.claim(worker),
        lambda: board.queue.advance(worker, 0, 1, 1),
        lambda: board.queue.done(worker, 0),
        lambda: board.leases.heartbeat(worker),
        lambda: board.leases.register("here"),
        lambda: board.ranks.announce_prepared(0, 1),
        lambda: board.report("r", b""),
        lambda: board.restore({}),
        board.heartbeat_coordinator,
        board.job,
        board.look,
        board.reports,
        board.stop,
    ):
        with pytest.raises(StoreError, match="lost its data"):
            request()
    with servers.servers[0].connect() as client:
        assert client.dbsize() == 0  # nor has anything been written into the void


def test_a_server_that_stays_away(start_redis: StartRedis, boards: Boards) -> None:
    servers = start_redis()
    board = boards(servers.url, patience_s=0.5)
    board.create("job", b"", shards=9)
    servers.servers[0].kill()
    with pytest.raises(StoreError, match=r"0\.5 s.*bring the server back") as refusal:
        board.look()
    port = servers.servers[0].port
    assert f"127.0.0.1:{port}" in str(refusal.value)
    assert parse_redis_url(servers.url).password not in str(refusal.value)


def test_a_password_that_is_changed(start_redis: StartRedis, boards: Boards) -> None:
    servers = start_redis()
    board = boards(servers.url)
    board.create("job", b"", shards=9)
    with servers.servers[0].connect() as client:
        client.config_set("requirepass", "another")
        client.execute_command("CLIENT", "KILL", "TYPE", "normal")
    began = time.monotonic()
    with pytest.raises(StoreError, match="refused") as refusal:
        board.look()
    assert time.monotonic() - began < 10
    assert parse_redis_url(servers.url).password not in str(refusal.value)


def test_memory_limit(start_redis: StartRedis, boards: Boards) -> None:
    servers = start_redis(config={"maxmemory": "12mb", "maxmemory-policy": "noeviction"})
    board = boards(servers.url)
    board.create("job", b"", shards=9, ranks=20)

    def prepare_all() -> None:
        for rank in range(20):
            board.ranks.prepare(rank, 0, bytes(1_000_000))

    with pytest.raises(StoreError, match="memory limit"):
        prepare_all()
    assert board.job() is not None


def test_a_replica_takes_over(start_redis: StartRedis, boards: Boards) -> None:
    servers = start_redis(nodes=3, replicas=1, config={"cluster-node-timeout": "1000"})
    board = boards(servers.url, timeout_s=2.0)
    board.create("job", b"", shards=9, ranks=1)
    worker = board.leases.register("here")
    assert board.queue.claim(worker).shard == 0
    owner = _holder(servers, b"ctr:{default:meta}:run")
    primary = next(server for server in servers.servers if server.port == owner)
    with primary.connect() as client:
        assert client.execute_command("WAIT", 1, 5_000) == 1
    primary.kill()
    assert board.queue.claim(board.leases.register("another")).shard == 1
    assert board.queue.advance(worker, 0, 1, 1)
    assert board.look().unfinished[0].progress == 1


def test_a_hash_slot_that_moves(start_redis: StartRedis, boards: Boards) -> None:
    servers = start_redis(nodes=2)
    board = boards(servers.url)
    board.create("job", b"", shards=50)
    worker = board.leases.register("here")
    over = Event()

    def move() -> None:
        for _ in range(4):
            _move_slot(servers, b"ctr:{default:meta}:run")
            time.sleep(0.1)
        over.set()

    def work() -> None:
        shard = 0
        while not over.is_set() or shard < 10:
            if shard < 50:
                assert board.queue.claim(worker).shard == shard
                assert board.queue.done(worker, shard)
                shard += 1
            assert board.queue.gate(worker).finished == shard

    at_once(move, work)


def _holder(servers: BreakableRedis, key: bytes) -> int:
    """The port of the primary that holds a key's hash slot."""
    with servers.servers[0].connect() as client:
        slot = client.execute_command("CLUSTER", "KEYSLOT", key)
        for first, last, primary, *_ in client.execute_command("CLUSTER", "SLOTS"):
            if int(first) <= slot <= int(last):
                return int(primary[1])
    raise AssertionError(slot)


def _move_slot(servers: BreakableRedis, key: bytes) -> None:
    """Moves a key's hash slot and all in it to the other of two primaries."""
    source = next(s for s in servers.servers if s.port == _holder(servers, key))
    target = next(s for s in servers.servers if s is not source)
    password = parse_redis_url(servers.url).password
    with source.connect() as here, target.connect() as there:
        slot = here.execute_command("CLUSTER", "KEYSLOT", key)
        names = [client.execute_command("CLUSTER", "MYID") for client in (here, there)]
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        while keys := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            here.execute_command(
                *("MIGRATE", target.host, target.port, "", 0, 5_000, "AUTH", password, "KEYS", *keys)
            )
            time.sleep(0.05)
        for client in (there, here):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[1])


def test_a_wrong_password(start_redis: StartRedis, boards: Boards) -> None:
    url = re.sub(":[^:@]*@", ":wrong-secret@", start_redis().url)
    with pytest.raises(StoreError, match="refused") as refusal:
        boards(url)
    assert "wrong-secret" not in str(refusal.value)


class Delaying(Forgetful):
    """A proxy that holds back one transaction while it is `armed`, until it is `freed`."""

    def __init__(self, port: int) -> None:
        self.armed, self.reached, self.freed = Event(), Event(), Event()
        super().__init__(port)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._target)) as server:
            while request := client.recv(1 << 20):
                if b"EXEC" in request and self.armed.is_set():
                    self.armed.clear()
                    self.reached.set()
                    self.freed.wait(30)
                server.sendall(request)
                client.sendall(server.recv(1 << 20))


@pytest.mark.parametrize("claimed_before", [False, True])
def test_one_that_expires_in_the_middle_of_a_claim(
    start_redis: StartRedis, boards: Boards, claimed_before: bool
) -> None:
    """As a worker that is frozen there for longer than its lease: it leaves no clock to wait for."""
    servers = start_redis()
    (server,) = servers.servers
    board = boards(servers.url)
    board.create("job", b"", shards=9)
    with closing(Delaying(server.port)) as proxy:
        frozen = boards(servers.url.replace(f":{server.port}/", f":{proxy.port}/"))
        worker, other = frozen.leases.register("frozen"), board.leases.register("other")
        assert board.queue.claim(other).shard == 0
        if claimed_before:
            assert frozen.queue.claim(worker).shard == 1
            assert frozen.queue.done(worker, 1)
        proxy.armed.set()
        claims: list[object] = []
        claiming = Thread(target=lambda: claims.append(frozen.queue.claim(worker)))
        claiming.start()
        assert proxy.reached.wait(30)
        board.leases.expire(worker)
        board.queue.advance(other, 0, 5, 5)
        proxy.freed.set()
        claiming.join(30)
        assert claims == [None]
        gate = board.queue.gate(other)
        assert (gate.least_clock, gate.working) == (5, 1)
        heir = board.leases.register("heir")
        claimed = []
        while claim := board.queue.claim(heir, claimed):
            claimed.append(claim.shard)
        assert sorted(claimed) == list(range(1 + claimed_before, 9)), "none is lost"


def test_a_claim_after_the_lease(start_redis: StartRedis, boards: Boards) -> None:
    """It fails until the lease is renewed, also before anybody has expired the worker."""
    servers = start_redis()
    board = boards(servers.url)
    brief = boards(servers.url, lease_s=0.05)
    board.create("job", b"", shards=9)
    worker = brief.leases.register("here")
    until(lambda: board.look().workers[0].lease_left_s < 0)
    assert board.queue.claim(worker) is None
    assert board.look().workers[0].clock is None
    assert board.leases.heartbeat(worker)
    assert board.queue.claim(worker).shard == 0


def test_a_clock_without_a_lease_is_removed(start_redis: StartRedis, boards: Boards) -> None:
    servers = start_redis()
    board = boards(servers.url, lease_s=0.4)
    board.create("job", b"", shards=9)
    worker = board.leases.register("here")
    board.queue.claim(worker)
    board.queue.advance(worker, 0, 5, 5)
    with servers.servers[0].connect() as client:
        client.zadd(Keys("default").board.clocks, {"dead": 0})

    def gone() -> bool:
        assert board.leases.heartbeat(worker)
        return board.queue.gate(worker).least_clock == 5

    until(gone)


def test_others_who_are_always_faster(start_redis: StartRedis) -> None:
    """A transaction that never gets through ends with an error."""
    servers, key = start_redis(), Keys("default").board.job
    url = parse_redis_url(servers.url)
    with (
        closing(Connection(connect(url, 5.0), patience_s=0.5)) as connection,
        servers.servers[0].connect() as other,
    ):

        def decide(_: list[object]) -> Write[None]:
            other.hincrby(key, "begun", 1)
            return [("HSET", key, "state", "mine")], None

        with pytest.raises(StoreError, match=r"others kept changing .* for 0\.5 s"):
            connection.update([key], [("HGET", key, "begun")], decide)
        assert other.hget(key, "state") is None
