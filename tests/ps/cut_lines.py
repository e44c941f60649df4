"""A line to a Redis that ends after so many bytes: the next command never arrives, whole or in part."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from typing import Any

from redis.connection import parse_url


class CutLine:
    """A proxy on loopback. What its clients send is passed on up to `most` bytes in all; answers all are.

    Then its connections are closed; with `silent`, they stay, and nothing comes any more. `on_data` is called
    with what is about to be passed on, at most `at_once` bytes. Between two such pieces, a server does what
    others ask for.
    """

    def __init__(
        self,
        url: str,
        most: int,
        *,
        silent: bool = False,
        at_once: int = 1 << 16,
        on_data: Callable[[bytes], object] = lambda _: None,
    ) -> None:
        place = parse_url(url.partition("?")[0])
        self._server = place["host"], place["port"]
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = url.replace(f"{place['host']}:{place['port']}", f"127.0.0.1:{port}")
        self.passed = 0
        self.cut = False
        self._most, self._silent, self._on_data = most, silent, on_data
        self._at_once = at_once
        self._lock, self._closing = Lock(), Lock()
        self._closed = False
        self._open: list[socket.socket] = [self._listener]
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        with self._closing:
            self._closed = True
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._keep(client)
                server = socket.create_connection(self._server)
                self._keep(server)
                Thread(target=self._pass_on, args=(client, server), daemon=True).start()
                Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _keep(self, opened: socket.socket) -> None:
        """Close it with the line: now, if that was closed in the meantime."""
        with self._closing:
            self._open.append(opened)
        if self._closed:
            self.close()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(self._at_once):
                with self._lock:
                    data = data[: self._most - self.passed]
                    self.passed += len(data)
                    self.cut = self.passed == self._most
                if data:
                    self._on_data(data)
                    server.sendall(data)
                if self.cut and not self._silent:
                    self.close()

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)


@contextmanager
def cut_line(url: str, most: int = 1 << 60, **settings: Any) -> Iterator[CutLine]:
    """A `CutLine` to the Redis at `url`, which ends with the block."""
    line = CutLine(url, most, **settings)
    try:
        yield line
    finally:
        line.close()
