"""`ctr ps check` before real servers: what it finds, what it leaves, what it refuses."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest
import redis

from tests.command_line import Cli, Finished
from tests.ctr.cli.ps_jobs import keys_in, make_model, password
from tests.ctr.distributed_jobs import Command
from tests.ps.redis_servers import StartRedis, eventually, needs_faketime, needs_redis
from tests.ps.stepped_clock import SteppedClock
from tests.ps.tls import Certificates, TlsProxy, url_of

pytestmark = needs_redis

SAFE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory": "512mb",
    "repl-backlog-size": "64mb",
}

SPEED = {"latency", "pull of one slot per partition", "pulls one by one", "pushes one by one"}
"""Lines that may be warnings while other tests run."""


def verdicts(done: Finished) -> dict[str, str]:
    """By check, as the table has them."""
    rows = (re.split(r"  +", line) for line in done.out.splitlines()[:-1])
    return {row[1]: row[0] for row in rows}


def checked(start_redis: StartRedis, cli: Cli, config: Mapping[str, str]) -> tuple[dict[str, str], Finished]:
    """One server with these settings."""
    done = cli("ps", "check", "--store", start_redis(config=config).url)
    return verdicts(done), done


def test_a_safe_server(start_redis: StartRedis, cli: Cli, tmp_path: Path) -> None:
    url, out = start_redis(replicas=1, config=SAFE).url, tmp_path / "check.json"
    done = cli("ps", "check", "--store", url, "--json", out)
    lines = verdicts(done)
    assert (done.code, {lines[name] for name in lines.keys() - SPEED}) == (0, {"ok"}), done.out
    assert lines.keys() > SPEED
    assert done.out.splitlines()[-1].startswith("0 problems, ")
    assert "weights/s" in done.out
    assert "have all pushes after" in done.out
    facts = json.loads(out.read_bytes())
    assert facts["passed"]
    assert {each["check"]: each["verdict"] for each in facts["findings"]} == lines
    assert keys_in(url) == 0


def test_other_models_are_left_alone(redis_url: str, cli: Cli) -> None:
    with closing(make_model(redis_url)) as store:
        before = keys_in(redis_url)
        assert cli("ps", "check", "--store", f"{redis_url}?model=ads").code == 0
        assert keys_in(redis_url) == before
        store.drop()


def test_a_cluster(cluster_url: str, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    done = cli("ps", "check", "--store", cluster_url, "--json", out)
    assert done.code == 0
    lines = verdicts(done)
    assert (lines["cluster"], lines["replicas"], lines["eviction"]) == ("ok", "warning", "ok")
    nodes = {each["node"] for each in json.loads(out.read_bytes())["findings"]}
    assert len(nodes - {None}) == 2
    assert done.out.count(" clock ") == 1  # the worst of all nodes


def test_settings_that_lose_data(start_redis: StartRedis, cli: Cli) -> None:
    config = {"maxmemory": "512mb", "maxmemory-policy": "allkeys-lru", "min-replicas-to-write": "2"}
    lines, done = checked(start_redis, cli, {**config, "client-output-buffer-limit": "normal 1mb 0 0"})
    assert done.code == 1
    for name in ("eviction", "min-replicas-to-write", "output limit, normal", "pulls and pushes"):
        assert lines[name] == "problem", done.out
    assert "set maxmemory-policy noeviction" in done.out
    assert lines["on disk"] == lines["replicas"] == "warning"
    assert "4 problems" in done.out


@pytest.mark.parametrize(
    ("config", "verdict"),
    [
        ({"appendonly": "yes", "appendfsync": "no"}, "warning"),
        ({"save": "3600 1"}, "warning"),
        ({"appendonly": "yes", "appendfsync": "always"}, "ok"),
    ],
)
def test_what_is_kept_on_disk(
    start_redis: StartRedis, cli: Cli, config: Mapping[str, str], verdict: str
) -> None:
    lines, done = checked(start_redis, cli, config)
    assert (done.code, lines["on disk"]) == (0, verdict)
    assert lines["memory limit"] == "warning"  # there is none


def test_memory_that_is_nearly_full(start_redis: StartRedis, cli: Cli) -> None:
    """The model of the check does not fit, and nothing of it is left."""
    servers = start_redis(config={"maxmemory": "16mb"})
    servers.servers[0].call("SETRANGE", "ballast", 14 << 20, "x")
    done = cli("ps", "check", "--store", servers.url)
    lines = verdicts(done)
    assert (done.code, lines["memory"], lines["pulls and pushes"]) == (1, "problem", "problem")
    assert keys_in(servers.url) == 1


def test_a_primary_that_is_down(start_redis: StartRedis, cli: Cli) -> None:
    servers = start_redis(nodes=2)
    servers.servers[1].kill()
    began = monotonic()
    done = cli("ps", "check", "--store", servers.url)
    assert monotonic() - began < 30
    assert done.code == 1
    assert verdicts(done)["answers"] == "problem"
    assert str(servers.servers[1].port) in done.out


def test_a_replica_that_is_named(start_redis: StartRedis, cli: Cli) -> None:
    servers = start_redis(replicas=1)
    done = cli("ps", "check", "--store", servers.nodes[0][1].url)
    assert (done.code, verdicts(done)["role"]) == (1, "problem")


@needs_faketime
def test_a_clock_that_is_wrong(start_redis: StartRedis, cli: Cli, stepped_clock: SteppedClock) -> None:
    url = start_redis(clock=stepped_clock).url
    stepped_clock.step(-60)
    done = cli("ps", "check", "--store", url)
    assert (done.code, verdicts(done)["clock"]) == (0, "warning")
    assert re.search(r" -(59|60)\.\d+ s from this machine's", done.out)


def test_a_user_with_few_rights(start_redis: StartRedis, cli: Cli) -> None:
    servers = start_redis()
    servers.servers[0].call("ACL", "SETUSER", "few", "on", ">few", "~other:*", "+@all", "-config")
    url = f"redis://few:few@127.0.0.1:{servers.servers[0].port}/0"
    done = cli("ps", "check", "--store", url)
    lines = verdicts(done)
    assert (done.code, lines["settings"], lines["pulls and pushes"]) == (1, "warning", "problem")


def test_over_tls(start_redis: StartRedis, cli: Cli, tmp_path: Path) -> None:
    server, certificates = start_redis(config=SAFE).servers[0], Certificates(tmp_path)
    with closing(TlsProxy(server.port, certificates)) as proxy:
        url = url_of(f":{server.password}@localhost:{proxy.port}", certificates.ca, *certificates.client)
        assert cli("ps", "check", "--store", url).code == 0


def test_embedded_servers(cli: Cli) -> None:
    done = cli("ps", "check", "--store", "embedded://")
    assert (done.code, verdicts(done)["eviction"]) == (0, "ok")
    assert "weights/s" in done.out


def test_ctrl_c_removes_the_model(start_redis: StartRedis) -> None:
    url = start_redis().url
    job = Command("ps", "check", "--store", url)
    with redis.Redis.from_url(url) as client:
        eventually(lambda: any(b"ctr-check-" in key for key in client.scan_iter("ctr:*")))
    job.popen.send_signal(signal.SIGINT)
    code, said = job.end()
    assert code == 130
    assert "Stopped. The model of the check was removed." in said
    assert keys_in(url) == 0


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("redis://localhost:1/0", 1, "cannot be reached"),
        ("redis+cluster://localhost:1", 1, "cannot be reached"),
        ("redis:/localhost", 2, "names no store"),
        ("redis://localhost:port", 2, "the URL cannot be read"),
        ("memory://", 2, "has no servers to check"),
    ],
)
def test_what_is_no_store(cli: Cli, url: str, code: int, message: str) -> None:
    done = cli("ps", "check", "--store", url)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_wrong_password_and_a_server_of_no_cluster(redis_url: str, cli: Cli) -> None:
    wrong = cli("ps", "check", "--store", redis_url.replace(password(redis_url), "wrong"))
    assert (wrong.code, wrong.out) == (1, "")
    assert "user or password was refused" in wrong.err
    single = cli(
        "ps", "check", "--store", redis_url.replace("redis://", "redis+cluster://").removesuffix("/0")
    )
    assert (single.code, single.out) == (1, "")
    assert "it is in no cluster, write redis://" in single.err
    assert "wrong" not in wrong.err
