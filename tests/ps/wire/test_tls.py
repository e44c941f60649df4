"""Servers behind TLS that ask for a client certificate: a real Redis that can, and one behind a proxy."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from select import select
from threading import Thread
from urllib.parse import quote

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ctr.errors import StoreError
from ps import RedisStore, Token, parse_redis_url
from ps.servers.redis_server import _candidates, free_port
from tests.ps.redis_servers import StartRedis, eventually, listens, needs_redis

pytestmark = needs_redis


class Certificates:
    """An authority, and what it signs, in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.ca, _ = self._write("ca", self._name, self._key, ca=True)
        self.server = self._write("server", _name("server"), ec.generate_private_key(ec.SECP256R1()))
        self.client = self._write("client", _name("client"), ec.generate_private_key(ec.SECP256R1()))

    def _write(
        self, file: str, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool = False
    ) -> tuple[Path, Path]:
        now = datetime.datetime.now(datetime.UTC)
        local = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        builder = x509.CertificateBuilder(self._name, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1)).add_extension(local, False)
        builder = builder.add_extension(x509.BasicConstraints(ca, None), True)
        certificate, private = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        certificate.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, private


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


class TlsProxy:
    """Speaks TLS on loopback, asks for a client certificate, and passes on to a plain server."""

    def __init__(self, target: int, certificates: Certificates) -> None:
        self._target = target
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.ca)
        self._context.load_cert_chain(*certificates.server)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            suppress(OSError),
            self._context.wrap_socket(plain, server_side=True) as client,
            socket.create_connection(("127.0.0.1", self._target)) as server,
        ):
            while True:
                ready = [client] if client.pending() else select([client, server], [], [])[0]
                for source in ready:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    (server if source is client else client).sendall(data)


def _real_server(certificates: Certificates) -> tuple[int, subprocess.Popen[bytes]] | None:
    """A Redis with `tls-auth-clients yes`; None where none can TLS."""
    for executable in _candidates():
        port = free_port(bus=False)
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


def url_of(address: str, ca: os.PathLike[str], *own: os.PathLike[str]) -> str:
    named = zip(("ca", "cert", "key"), (ca, *own), strict=False)
    return f"rediss://{address}/0?" + "&".join(f"{name}={quote(str(path))}" for name, path in named)


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
        ("rediss://h:1/0?ca=/missing.pem", r"/missing.pem, its ca, cannot be read \(No such file"),
        ("rediss://h:1/0?cert=/missing.pem", r"/missing.pem, its cert, cannot be read \(No such file"),
        ("rediss://h:1/0?key=/missing.pem", r"name this, too \(&cert=FILE\)"),
        ("redis://h:1/0?cert=/missing.pem", "cert is for TLS; write rediss://"),
        ("redis+cluster://h:1?ca=/missing.pem", r"ca is for TLS; write rediss\+cluster://"),
    ],
)
def test_files_that_do_not_help_are_named(url: str, problem: str) -> None:
    with pytest.raises(StoreError, match=problem):
        RedisStore(parse_redis_url(url), bits=8, width=2)
