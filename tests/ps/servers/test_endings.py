"""Servers end with the job that started them, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ps.redis_servers import eventually, listens, needs_redis

pytestmark = needs_redis


JOB = """
import os, signal, sys, threading, time

# Whoever runs the tests may have them ignored (nohup, a background job), and so would this job.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.ps.breakable_redis import BreakableRedis

def ready(servers, *more):
    line = " ".join(map(str, [*(server.port for server in servers.servers), *more]))
    os.write(1, line.encode() + bytes([10]))  # at once, as others write, too
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
    "return": "with BreakableRedis() as servers: ready(servers)",
    "an exception": "with BreakableRedis() as servers: ready(servers); 1 / 0",
    "sys.exit": "with BreakableRedis() as servers: ready(servers); sys.exit(3)",
    "no close": "servers = BreakableRedis(replicas=1); ready(servers)",
    "no close in a thread": "t = threading.Thread(target=lambda: ready(BreakableRedis())); t.start()",
    "os._exit": "servers = BreakableRedis(); ready(servers); os._exit(0)",
    "frozen": "with BreakableRedis() as servers: servers.servers[0].freeze(); ready(servers)",
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
    one = textwrap.dedent("""
        os.setpgid(0, 0)
        servers = BreakableRedis(replicas=2)
        servers.servers[0].freeze()
        ready(servers, os.getpid())
    """)
    cluster = textwrap.dedent("""
        os.setpgid(0, 0)
        ready(BreakableRedis(nodes=2, replicas=1), os.getpid())
    """)
    process, first = job(FORKS.format(endings=[*[one] * len(signals), cluster]))
    *started, (*cluster_ports, cluster_pid) = sorted([first, *(numbers(process) for _ in signals)], key=len)
    assert len({cluster_pid, *(pid for *_, pid in started)}) == len(signals) + 1
    for number, (*ports, pid) in zip(signals, started, strict=True):
        assert len(ports) == 3
        assert all(map(listens, ports))
        os.killpg(pid, number)  # as a terminal or a scheduler does
        eventually(lambda ports=ports: not any(map(listens, ports)))
    assert len(cluster_ports) == 4
    assert all(map(listens, cluster_ports))
    os.kill(cluster_pid, signal.SIGKILL)
    assert_nothing_is_left([*cluster_ports, *[port + 10_000 for port in cluster_ports]], tmp_path)


def test_a_job_that_gets_ctrl_c_can_use_the_servers_while_it_stops(job: Callable, tmp_path: Path) -> None:
    process, ports = job("""
        with BreakableRedis() as servers:
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
        servers = BreakableRedis()
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
