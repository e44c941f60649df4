"""What the tests of `ctr ps` share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import redis

from ctr.ps import BoardView, Token, parse_redis_url
from ctr.ps.board.job_board import JobBoard
from ctr.ps.redis.store import RedisStore
from tests.command_line import Cli
from tests.ctr.distributed_jobs import Command
from tests.ps.job_boards import until

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
    """A job in processes of its own, killed at the end of the block."""
    words = ("train", "--spec", "criteo", log, "--model", folder / "trained", "--store", named(url))
    job = Command(*words, *options)
    try:
        yield job
    finally:
        job.kill()


@contextmanager
def paused(url: str, finished: int = 0) -> Iterator[None]:
    """Once both workers of a job train, and so many data shards are finished, they wait as long as the block
    lasts, but go on reporting.
    """
    with closing(JobBoard(parse_redis_url(named(url)))) as board:
        seen: dict[str, int] = {}

        def ready() -> bool:
            if board.job() is None:
                return False
            view = board.look()
            return all_move(view, seen) and view.finished >= finished

        until(ready, timeout_s=90)
        board.pause(-1)
        yield
        board.pause(None)


def all_move(view: BoardView, seen: dict[str, int]) -> bool:
    """Whether both workers have pushed since they were `seen`, for which this fills in their first clocks."""
    moves = [w.clock is not None and w.clock > seen.setdefault(w.id, w.clock) for w in view.workers]
    return sum(moves) == 2 or (len(view.ranks) == 2 and all(rank.pushed >= 0 for rank in view.ranks))


def facts_of(cli: Cli, url: str) -> dict[str, Any]:
    shown = cli("ps", "status", "--store", named(url), "--json", "-")
    return json.loads(shown.out)


def trained(cli: Cli, url: str, job: Command) -> dict[str, Any]:
    """The status of a job whose two workers have told of examples that they have trained."""

    def reported() -> bool:
        assert job.popen.poll() is None, job.said
        sleep(0.1)  # they report every two seconds
        workers = (facts_of(cli, url)["job"] or {}).get("workers", [])
        return sum(bool(worker["examples"]) for worker in workers) == 2

    with paused(url):
        until(reported)
    return facts_of(cli, url)


def key_is_in_first_half(key: bytes) -> bool:
    """Of the hash slots: so as a number, the shard of two that does not have it."""
    return redis.crc.key_slot(key) < 8_192
