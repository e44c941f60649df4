"""`Load`: requests from many connections to a server on this machine, and what became of each."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

CONNECTIONS = 8
_END = b"\r\n\r\n"
_VERSION = re.compile(rb'"model":"(\w+)"}$')


def message(path: str, body: bytes, kind: str = "application/json", **headers: str) -> bytes:
    """A POST as it goes over the wire."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}"
    return head.encode() + _END + body


@dataclass
class Load:
    """Sends messages over and over, each connection the next one when it has its answer, until `stop`."""

    port: int
    messages: Sequence[bytes]
    connections: int
    every_s: float = 0.0
    """A connection sends no sooner than that after its last request; 0: at once."""
    answers: Counter[str] = field(default_factory=Counter)
    """By status; `lost` for requests that got none, `refused` for connections that were."""
    latencies: list[float] = field(default_factory=list)
    """Seconds, of the answers."""
    answered: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By version: when its first and its last answer came."""
    stopped: bool = False

    @property
    def failures(self) -> int:
        """Requests that were not answered with 200."""
        return sum(count for status, count in self.answers.items() if status != "200")

    @property
    def p99(self) -> float:
        """Of the latencies, in seconds."""
        return float(np.quantile(self.latencies, 0.99))

    async def run(self) -> None:
        """Until `stopped`."""
        async with asyncio.TaskGroup() as group:
            for number in range(self.connections):
                group.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        turn = number
        while not self.stopped:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
            except OSError:
                self.answers["refused"] += 1
                await asyncio.sleep(0.02)
                continue
            try:
                while not self.stopped:
                    began = perf_counter()
                    try:
                        writer.write(self.messages[turn % len(self.messages)])
                        turn += self.connections
                        head = await reader.readuntil(_END)
                        size = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
                        body = await reader.readexactly(int(size))
                    except (OSError, asyncio.IncompleteReadError):
                        self.answers["lost"] += 1
                        break
                    now = perf_counter()
                    took = now - began
                    if version := _VERSION.search(body):
                        first, _ = self.answered.get(version[1].decode(), (now, now))
                        self.answered[version[1].decode()] = first, now
                    self.latencies.append(took)
                    self.answers[head[9:12].decode()] += 1
                    if b"connection: close" in head.lower():
                        break
                    if self.every_s > took:
                        await asyncio.sleep(self.every_s - took)
            finally:
                writer.close()


@asynccontextmanager
async def loaded(port: int, messages: Sequence[bytes], every_s: float = 0.0) -> AsyncIterator[Load]:
    """Load for as long as the block lasts."""
    load = Load(port, messages, CONNECTIONS, every_s)
    task = asyncio.create_task(load.run())
    try:
        yield load
    finally:
        load.stopped = True
        await task
