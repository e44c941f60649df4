"""Certificates, and TLS before a redis-server that knows none, as most builds do that come with Python."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from select import select
from threading import Thread
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


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
            for each in (client, server):  # as Redis does
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                ready = [client] if client.pending() else select([client, server], [], [])[0]
                for source in ready:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    (server if source is client else client).sendall(data)


def url_of(address: str, ca: os.PathLike[str], *own: os.PathLike[str]) -> str:
    named = zip(("ca", "cert", "key"), (ca, *own), strict=False)
    return f"rediss://{address}/0?" + "&".join(f"{name}={quote(str(path))}" for name, path in named)
