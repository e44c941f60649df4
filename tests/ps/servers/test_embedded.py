"""`EmbeddedRedis` starts real servers, and they end with it."""

from __future__ import annotations

import signal
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

from ctr.errors import StoreError
from ctr.ps import open_store
from ctr.ps.servers import EmbeddedRedis, redis_server
from ctr.ps.servers.redis_server import free_ports
from tests.ps.breakable_redis import BreakableRedis, BreakableServer
from tests.ps.redis_servers import StartRedis, eventually, listens, needs_redis, ping

pytestmark = needs_redis


def run(server: BreakableServer, *words: str) -> object:
    with server.connect() as client:
        return client.execute_command(*words)


def setting(server: BreakableServer, name: str) -> str:
    with server.connect() as client:
        return str(client.config_get(name)[name])


def opens(server: BreakableServer, password: str | None) -> bool:
    once = Retry(NoBackoff(), 0)
    with redis.Redis(port=server.port, password=password, retry=once) as client:
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            return False


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the servers of this test make their folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# One server


def test_a_server_answers_at_its_url_and_ends(temporary: Path) -> None:
    with EmbeddedRedis() as servers:
        (server,) = servers.servers
        with redis.Redis.from_url(servers.url) as client:
            assert client.set("a", "b")
            assert client.info("server")["process_id"] == server.process.pid
        assert len(list(temporary.iterdir())) == 1
    assert not server.alive
    assert not listens(server.port)
    assert list(temporary.iterdir()) == []
    servers.close()  # as often as one likes


def test_only_this_machine_and_only_with_the_password(shared_redis: BreakableRedis) -> None:
    (server,) = shared_redis.servers
    assert setting(server, "bind") == server.host == "127.0.0.1"
    assert setting(server, "protected-mode") == "yes"
    assert not listens(server.port, "127.0.0.2")
    assert not opens(server, None)
    assert not opens(server, "redis")
    assert opens(server, setting(server, "requirepass"))


def test_the_password_shows_nowhere(shared_redis: BreakableRedis) -> None:
    (server,) = shared_redis.servers
    password = setting(server, "requirepass")
    assert len(password) == 48
    arguments = Path(f"/proc/{server.pid}/cmdline")
    if arguments.exists():
        assert password not in arguments.read_text()
    assert password not in repr(shared_redis) + repr(server)
    folder = Path(setting(server, "dir"))
    assert (folder / "redis.conf").stat().st_mode & 0o077 == 0


def test_nothing_is_kept_on_disk_unless_asked(start_redis: StartRedis, shared_redis: BreakableRedis) -> None:
    (server,) = shared_redis.servers
    assert (setting(server, "save"), setting(server, "appendonly")) == ("", "no")
    (server,) = start_redis(config={"appendonly": "yes", "maxmemory": "50mb"}).servers
    assert setting(server, "maxmemory") == str(50 << 20)
    run(server, "SET", "a", "b")
    server.restart()
    assert run(server, "GET", "a") == "b"


def test_two_at_once_are_strangers(start_redis: StartRedis) -> None:
    one, other = (start_redis().servers[0] for _ in range(2))
    assert one.port != other.port
    run(one, "SET", "a", "b")
    assert run(other, "GET", "a") is None
    assert not opens(other, setting(one, "requirepass"))


def test_replicas_of_a_single_server_follow_it(start_redis: StartRedis) -> None:
    servers = start_redis(replicas=2)
    primary, *replicas = servers.nodes[0]
    assert servers.url == primary.url
    with primary.connect() as client:
        client.set("a", "b")
        assert client.wait(2, 5000) == 2
    assert [run(replica, "GET", "a") for replica in replicas] == ["b", "b"]


def test_a_server_outlives_the_thread_that_started_it(start_redis: StartRedis) -> None:
    with ThreadPoolExecutor(1) as threads:
        servers = threads.submit(start_redis).result()
    time.sleep(0.1)
    assert ping(servers.servers[0])


# Faults


def test_a_killed_server_comes_back_empty_on_its_port(start_redis: StartRedis) -> None:
    (server,) = start_redis().servers
    run(server, "SET", "a", "b")
    for number in (signal.SIGKILL, signal.SIGTERM):
        port, pid = server.port, server.pid
        server.kill(number)
        assert not server.alive
        assert not listens(port)
        server.kill()  # nothing left to kill
        server.restart()
        assert (server.port, server.alive) == (port, True)
        assert server.pid != pid
        assert run(server, "DBSIZE") == 0


def test_a_frozen_server_says_nothing_and_goes_on(start_redis: StartRedis) -> None:
    (server,) = start_redis().servers
    run(server, "SET", "a", "b")
    for _ in range(3):
        server.freeze()
        server.freeze()
        assert server.alive
        assert listens(server.port)
        with pytest.raises(redis.TimeoutError):
            ping(server, timeout_s=0.05)
        server.thaw()
        server.thaw()
        assert run(server, "GET", "a") == "b"
    server.freeze()
    server.restart()
    assert ping(server)
    server.freeze()  # it has to end all the same


def test_a_port_that_was_taken_meanwhile_is_an_error(start_redis: StartRedis) -> None:
    (server,) = start_redis().servers
    server.kill()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((server.host, server.port))
        other.listen()
        with pytest.raises(StoreError, match=r"ended with code 1 .*Address already in use"):
            server.restart()
    server.restart()
    assert ping(server)


# Clusters


def test_a_primary_knows_that_its_replica_has_a_copy() -> None:
    for _ in range(5):  # the replica knows it before its primary does
        with BreakableRedis(replicas=1) as servers:
            assert servers.servers[0].call("INFO", "replication")["slave0"]["state"] == "online"


def cluster_client(servers: BreakableRedis) -> RedisCluster:
    password = setting(servers.servers[0], "requirepass")
    nodes = [ClusterNode(server.host, server.port) for server in servers.servers]
    return RedisCluster(startup_nodes=nodes, password=password)


def test_servers_that_start_side_by_side_choose_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    free = sorted(free_ports(3, bus=True))
    monkeypatch.setattr(redis_server, "PORTS", free)
    with EmbeddedRedis(3) as servers:
        assert sorted(server.port for server in servers.servers) == free
        assert all(server.alive for server in servers.servers)


def test_a_cluster_is_whole_for_every_server_and_again_after_a_restart(start_redis: StartRedis) -> None:
    servers = start_redis(nodes=2, replicas=1)
    assert len({server.port for server in servers.servers}) == 4
    assert servers.servers == (*[s[0] for s in servers.nodes], *[s[1] for s in servers.nodes])
    addresses = ",".join(f"127.0.0.1:{server.port}" for server in servers.servers)
    assert servers.url.endswith(f"@{addresses}")
    assert servers.url.startswith("redis+cluster://:")

    for server in servers.servers:
        assert "cluster_state:ok" in str(run(server, "CLUSTER", "INFO"))
        assert setting(server, "cluster-node-timeout") == "15000"
        ranges = {
            (first, last): int(primary[1])  # Redis 7 names replicas only once they have got something
            for first, last, primary, *_ in run(server, "CLUSTER", "SLOTS")
        }
        assert ranges == {
            (0, 8191): servers.nodes[0][0].port,
            (8192, 16383): servers.nodes[1][0].port,
        }

    with cluster_client(servers) as client:
        for i in range(100):
            client.set(f"key{i}", i)
    sizes = []
    for primary, replica in servers.nodes:
        with primary.connect() as client:
            assert client.wait(1, 5000) == 1
        sizes.append(run(primary, "DBSIZE"))
        assert run(replica, "DBSIZE") == sizes[-1]
    assert sum(sizes) == 100
    assert min(sizes) > 20

    # A primary that is killed and started again at once is a primary still, and empty.
    (victim, _), (other, _) = servers.nodes
    victim.restart()
    eventually(lambda: "cluster_state:ok" in str(run(victim, "CLUSTER", "INFO")))
    assert str(run(victim, "CLUSTER", "NODES")).count("myself,master") == 1
    assert [run(server, "DBSIZE") for server in (victim, other)] == [0, sizes[1]]


def test_with_three_nodes_a_replica_takes_over(start_redis: StartRedis) -> None:
    servers = start_redis(nodes=3, replicas=1, config={"cluster-node-timeout": "1000"})
    assert {setting(server, "cluster-node-timeout") for server in servers.servers} == {"1000"}
    primary, replica = servers.nodes[1]
    with cluster_client(servers) as client:
        client.set("key", "value")
        for first, _ in servers.nodes:
            with first.connect() as link:
                link.wait(1, 5000)
        primary.kill()
        eventually(lambda: run(replica, "ROLE")[0] == "master")  # type: ignore[index]
    eventually(lambda: "cluster_state:ok" in str(run(replica, "CLUSTER", "INFO")))


def test_the_shared_fixtures_are_empty_at_first(redis_url: str, cluster_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
    assert cluster_url.count("127.0.0.1:") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"nodes": 0}, "at least one node"),
        ({"nodes": -2}, "at least one node"),
        ({"nodes": 65}, "at most 64 servers"),
        ({"config": {"no-such-setting": "1"}}, "ended with code 1 .*no-such-setting"),
        ({"nodes": 2, "config": {"maxmemory": "lots"}}, "ended with code 1 .*maxmemory"),
    ],
)
def test_wrong_arguments_start_nothing(temporary: Path, arguments: dict, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        BreakableRedis(**arguments)
    assert list(temporary.iterdir()) == []


def test_no_place_for_the_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    with pytest.raises(StoreError, match="no temporary folder"):
        EmbeddedRedis()


# As a store


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_store_of_its_own_servers(temporary: Path, nodes: int) -> None:
    store = open_store(f"embedded://?shards={nodes}", bits=10, width=2)
    assert len(list(temporary.iterdir())) == 1
    store.close()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("rest", ["?shards=two", "?shards=", "?shards=²", "?shard=2", "host?shards=2", "?x"])
def test_a_wrong_url(temporary: Path, rest: str) -> None:
    with pytest.raises(StoreError, match=r"embedded://\?shards=2"):
        open_store(f"embedded://{rest}", bits=10, width=2)
    assert list(temporary.iterdir()) == []
