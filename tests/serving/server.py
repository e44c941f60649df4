"""`Server`: `ctr serve` as a process, and what it takes up."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import httpx

CTR = Path(sys.executable).with_name("ctr")
ADMIN = "administrator-of-the-drill"


class Server:
    """`ctr serve` as a process."""

    def __init__(self, *words: object) -> None:
        began = perf_counter()
        environment = os.environ | {"CTR_SERVE_ADMIN_TOKENS": ADMIN}
        self.process = subprocess.Popen(
            [str(CTR), "serve", *map(str, words), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.ready_s = perf_counter() - began
        if not line:
            sys.exit(f"the server did not start: {self.process.communicate()[1]}")
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])
        self.client = httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {ADMIN}"}, timeout=30
        )

    def get(self, path: str) -> Any:
        return self.client.get(path).json()

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", self.client.get("/metrics").text, re.MULTILINE)
        return sum(map(float, found))

    @property
    def children(self) -> list[int]:
        """Pids of the processes that answer."""
        pid = self.process.pid
        named = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(each) for each in named] or [pid]

    def models_mapped(self) -> int:
        """Of the process that has most models in its memory, how many."""
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in self.children]
        return max(len(set(re.findall(r"\S+/weights\.\S+", text))) for text in maps)

    def memory(self) -> float:
        """Bytes of all its processes; what they share counts once."""
        total = 0
        for pid in {self.process.pid, *self.children}:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            size = re.search(r"^Pss: +(\d+)", text, re.MULTILINE)
            assert size is not None
            total += 1024 * int(size[1])
        return total

    def end(self) -> str:
        """Stop it; what it said on standard error."""
        self.process.send_signal(signal.SIGTERM)
        said = self.process.communicate(timeout=60)[1]
        self.client.close()
        return said


async def until(holds: Callable[[], bool], seconds: float = 20.0) -> float:
    """Wait for it, in a thread of its own; how long it took, or infinity."""
    began = monotonic()
    while monotonic() < began + seconds:
        if await asyncio.to_thread(holds):
            return monotonic() - began
        await asyncio.sleep(0.02)
    return float("inf")
