"""What the tests of `ctr ps` share."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import redis

from ps import Token, parse_redis_url
from ps.redis.store import RedisStore
from tests.ctr.conftest import Cli
from tests.ctr.distributed_jobs import Command
from tests.ps.job_boards import until

CTR = (sys.executable, "-m", "ctr")

ENDLESS = ("--epochs", 10_000, "--chunk", 200, "--workers", 2)


def named(url: str) -> str:
    return f"{url}?model=ads"


def password(url: str) -> str:
    return url.partition("@")[0].rpartition(":")[2]


def make_model(url: str) -> RedisStore:
    store = RedisStore(parse_redis_url(named(url)), bits=12, width=2, facts={"fingerprint": "f" * 64})
    slots = np.arange(100, dtype=np.uint32)
    store.push(slots, np.ones((100, 2), np.float32), Token("job", 0, 0))
    return store


def keys_in(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.dbsize())


@contextmanager
def train(log: Path, folder: Path, url: str, *options: object) -> Iterator[Command]:
    """A job in processes of its own, ended with the block."""
    words = ("train", "--spec", "criteo", log, "--model", folder / "trained", "--store", named(url))
    job = Command(*words, *options)
    try:
        yield job
        job.popen.send_signal(signal.SIGTERM)
        job.popen.wait(60)
    finally:
        job.kill()


def facts_of(cli: Cli, url: str) -> dict[str, Any]:
    shown = cli("ps", "status", "--store", named(url), "--json", "-")
    return json.loads(shown.out)


def trained(cli: Cli, url: str, job: Command) -> dict[str, Any]:
    """The status as soon as two workers have told of examples that they have trained."""

    def at_work() -> dict[str, Any] | None:
        assert job.popen.poll() is None, job.said
        facts = facts_of(cli, url)
        workers = (facts["job"] or {}).get("workers", [])
        return facts if sum(bool(worker["examples"]) for worker in workers) == 2 else None

    return until(at_work, timeout_s=90)


def key_is_in_first_half(key: bytes) -> bool:
    """Of the hash slots: so as a number, the shard of two that does not have it."""
    return redis.crc.key_slot(key) < 8_192


def numbers_of(text: str) -> list[int]:
    """`1, 4-6` as 1, 4, 5, 6."""
    ends = [part.split("-") for part in text.split(", ")]
    return [number for pair in ends for number in range(int(pair[0]), int(pair[-1]) + 1)]
