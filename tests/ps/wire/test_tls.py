"""Servers behind TLS that ask for a client certificate: a real Redis that can, and one behind a proxy."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from ctr.errors import StoreError
from ctr.ps import RedisStore, Token, parse_redis_url
from ctr.ps.servers.redis_server import _candidates, free_ports
from tests.ps.redis_servers import StartRedis, eventually, listens, needs_redis
from tests.ps.tls import Certificates, TlsProxy, url_of

pytestmark = needs_redis


def _real_server(certificates: Certificates) -> tuple[int, subprocess.Popen[bytes]] | None:
    """A Redis with `tls-auth-clients yes`; None where none can TLS."""
    for executable in _candidates():
        (port,) = free_ports(1, bus=False)
        settings = {
            "port": "0", "tls-port": str(port), "bind": "127.0.0.1", "save": "", "tls-auth-clients": "yes",
            "tls-ca-cert-file": str(certificates.ca), "tls-cert-file": str(certificates.server[0]),
            "tls-key-file": str(certificates.server[1]), "dir": str(certificates.folder),
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        process = subprocess.Popen([executable, *words], stdout=subprocess.DEVNULL)
        eventually(lambda: process.poll() is not None or listens(port))  # noqa: B023
        if process.poll() is None:
            return port, process
    return None


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture(params=["redis-server", "proxy"])
def address(
    request: pytest.FixtureRequest, start_redis: StartRedis, certificates: Certificates
) -> Iterator[str]:
    """User, password and place of a server that asks for a client certificate."""
    with ExitStack() as started:
        if request.param == "redis-server":
            found = _real_server(certificates)
            if found is None:
                pytest.skip("no redis-server with TLS on PATH: apt-get install redis-server")
            port, process = found
            started.callback(process.wait)
            started.callback(process.kill)
            yield f"localhost:{port}"
        else:
            (server,) = start_redis().servers
            proxy = started.enter_context(closing(TlsProxy(server.port, certificates)))
            yield f":{server.password}@localhost:{proxy.port}"


def test_a_client_certificate_opens_the_store(address: str, certificates: Certificates) -> None:
    url = parse_redis_url(url_of(address, certificates.ca, *certificates.client))
    with closing(RedisStore(url, bits=8, width=2, timeout_s=5.0)) as store:
        slots = np.arange(200, dtype=np.uint32)
        store.push(slots, np.ones((200, 2), np.float32), Token("job", 0, 0))
        assert (store.pull(slots) == 1).all()
        store.drop()


def test_without_one_it_is_refused(address: str, certificates: Certificates) -> None:
    url = parse_redis_url(url_of(address, certificates.ca))
    with pytest.raises(StoreError, match="cannot be reached"):
        RedisStore(url, bits=8, width=2, timeout_s=5.0, patience_s=1.0)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("rediss://h:1/0?ca=/missing.pem", r"ca=/missing.pem cannot be read \(No such file"),
        ("rediss://h:1/0?cert=/missing.pem", r"cert=/missing.pem cannot be read \(No such file"),
        ("rediss://h:1/0?key=/missing.pem", "key needs a client certificate: add &cert=FILE"),
        ("redis://h:1/0?cert=/missing.pem", "cert is for TLS; write rediss://"),
        ("redis+cluster://h:1?ca=/missing.pem", r"ca is for TLS; write rediss\+cluster://"),
    ],
)
def test_files_that_do_not_help_are_named(url: str, problem: str) -> None:
    with pytest.raises(StoreError, match=problem):
        RedisStore(parse_redis_url(url), bits=8, width=2)
