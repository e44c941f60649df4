"""`TlsFront`: TLS before a redis-server that knows none, as most builds do that come with Python."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlencode

from ps.servers import RedisServer

_PIECE = 1 << 16


def knows_tls() -> bool:
    """Whether this machine can make certificates."""
    return shutil.which("openssl") is not None


class TlsFront:
    """A port of loopback that speaks TLS, and passes everything on to a server; a context manager.

    The certificate, which signs itself, is in `folder`.
    """

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self._server = server
        self._certificate, self._key = folder / "certificate.pem", folder / "key.pem"
        self._port = 0
        self._ready, self._over = Event(), asyncio.Event()
        self._thread = Thread(target=lambda: asyncio.run(self._run()), name="TLS", daemon=True)
        words = (
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
        )
        names = ("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        files = ("-keyout", self._key, "-out", self._certificate)
        subprocess.run(["openssl", *words.split(), *names, *files], check=True, capture_output=True)

    def __enter__(self) -> TlsFront:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    @property
    def url(self) -> str:
        """`rediss://` URL, with the password and the certificate."""
        query = urlencode({"ca": self._certificate.absolute()})
        return f"rediss://:{self._server.password}@127.0.0.1:{self._port}/0?{query}"

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._certificate, self._key)
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            try:
                inner, outer = await asyncio.open_connection(self._server.host, self._server.port)
            except OSError:  # it is down
                writer.close()
                return
            both = [_pass_on(reader, outer), _pass_on(inner, writer)]
            await _first_of(both)
            for each in (writer, outer):
                each.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()


async def _first_of(both: list[Coroutine[Any, Any, None]]) -> None:
    """Run both until one ends, which ends the other."""
    tasks = [asyncio.ensure_future(each) for each in both]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
