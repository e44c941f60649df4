"""Store URLs: what they name, what is refused, and that no error shows a password."""

from __future__ import annotations

import re
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
import redis

from ctr.errors import StoreError
from ctr.ps import open_store, parse_redis_url, require_store_url, without_password
from ctr.ps.servers.redis_server import find_redis_server
from ctr.ps.status.observer import StoreObserver
from tests.command_line import Cli, cli
from tests.ps.redis_servers import eventually, needs_redis

__all__ = ["cli"]

SECRET = "Sesame42"
COMMANDS = [
    ("ps", "status"),
    ("ps", "drop", "--yes"),
    ("ps", "export", "--model", "exported"),
    ("worker",),
    ("train", __file__, "--spec", "criteo", "--model", "model"),
]


@pytest.mark.parametrize("url", [
    "redis://localhost",
    "redis://localhost:6380/3",
    "rediss://h.example.org:1/0?model=ads&ca=%2Fetc%2Fca.pem",
    "rediss+cluster://h:1,i:2?ca=%2Fca.pem&cert=%2Fa%26b.pem&key=%2Fkey.pem",
    "redis+cluster://10.0.0.7:6379,10.0.0.8:6379",
    "redis://[::1]:6379/0",
    "redis+cluster://host:1,[fe80::1%eth0]:2,[::1]?model=b%C3%BC%40%2F",
    f"redis://me:{SECRET}@[2001:db8::7]/0",
])  # fmt: skip
def test_round_trip(url: str) -> None:
    parsed = parse_redis_url(url)
    again = parse_redis_url(parsed.public)
    assert (again.hosts, again.db, again.model) == (parsed.hosts, parsed.db, parsed.model)
    assert again.files == parsed.files
    assert hash(again)
    assert len(parsed.files) == sum(f"{name}=" in url for name in ("ca", "cert", "key"))
    assert SECRET not in parsed.public + repr(parsed)


def test_parts() -> None:
    parsed = parse_redis_url("redis://me:a%2Fb%3Fc%23d%40e:f@[::1]:7/2?model=ads")
    assert (parsed.username, parsed.password) == ("me", "a/b?c#d@e:f")
    assert (parsed.hosts, parsed.db, parsed.model) == ((("::1", 7),), 2, "ads")


MARKS = ["/", "#", "?", "@", "[", "]", "/9/", "/9?", "?model=", "?a=", "#/", "%", ":", "\n"]


@pytest.mark.parametrize("form", [
    "redis://me:{}@localhost:1/0?model=ads",
    "redis://:{}@localhost:1",
    "rediss+cluster://{}@[::1]:1,localhost:2",
    "redis://me:1{}@localhost:1/0",
    "redis:/me:{}@localhost:1/0",
    "redi://me:{}@localhost:1/0",
    "me:{}@localhost:1/0",
    "memory://{}@localhost",
    "embedded://{}@localhost",
])  # fmt: skip
def test_a_password_is_never_shown(form: str) -> None:
    for mark in MARKS:
        url = form.format(f"{SECRET[:3]}{mark}{SECRET[3:]}")
        said = ""
        for request in (require_store_url, parse_redis_url):
            try:
                request(url)
            except StoreError as refused:
                said += str(refused)
        if not said:  # the mark was taken for a part of the password
            assert mark in "%:@[]\n"
            said = str(parse_redis_url(url)) + without_password(url)
        assert SECRET[:3] not in said
        assert SECRET[3:] not in said


@pytest.mark.parametrize("url", [
    "redis://", "redis://:6379", "redis://host:port", "redis://host:65536", "redis://::1:6379", "redis://[::1",
    "redis://host/zero", "redis://host/-1", "redis://host?model", "redis://host#ads", "redis://a,,b",
    "redis+cluster://a:1,:2", "redis://host?model=a@b",
])  # fmt: skip
def test_what_cannot_be_read(url: str) -> None:
    with pytest.raises(StoreError, match=r"cannot be read.*\[::1\]:6379"):
        parse_redis_url(url)


@pytest.mark.parametrize("name", ["a}b", "{a", "%7Ba%7D", "a" * 129, "%C3%BC" * 65, "", "a%0Ab"])
def test_names_that_no_model_may_have(name: str) -> None:
    with pytest.raises(StoreError, match="model name"):
        parse_redis_url(f"redis://localhost?model={name}")
    with pytest.raises(StoreError, match="model name"):
        open_store(f"redis://localhost?model={name}", bits=10, width=2)


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize(
    ("url", "told"),
    [("redis://127.0.0.1:1?model=a}b", "brace"), (f"redis://:{SECRET}/x@127.0.0.1:1", "cannot be read")],
)
def test_every_command_refuses_at_the_start(cli: Cli, words: tuple[str, ...], url: str, told: str) -> None:
    shown = cli(*words, "--store", url)
    assert shown.code == 2
    assert told in shown.err
    assert SECRET not in shown.out + shown.err


def _loopback_has_ipv6() -> bool:
    try:
        with closing(socket.create_server(("::1", 0), family=socket.AF_INET6)):
            return True
    except OSError:
        return False


@needs_redis
@pytest.mark.skipif(not _loopback_has_ipv6(), reason="no IPv6 on loopback")
def test_a_server_on_ipv6(tmp_path: Path) -> None:
    with closing(socket.create_server(("::1", 0), family=socket.AF_INET6)) as free:
        port = free.getsockname()[1]
    words = [find_redis_server(), "--bind", "::1", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            client = redis.Redis("::1", port)

            def answers() -> bool:
                try:
                    return bool(client.ping())
                except redis.ConnectionError:
                    return False

            eventually(answers)
            store = open_store(f"redis://[::1]:{port}/0?model=ads", bits=10, width=2)
            assert re.fullmatch(r"redis://\[::1\]:\d+/0", str(parse_redis_url(f"redis://[::1]:{port}/0")))
            observer = StoreObserver(parse_redis_url(f"redis://[::1]:{port}/0?model=ads"))
            assert observer.look().nodes[0].address == f"[::1]:{port}"
            store.drop()
            assert client.dbsize() == 0
            client.close()
        finally:
            server.kill()
