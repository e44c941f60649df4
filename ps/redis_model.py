"""What a model is called and made of in Redis: created once, and checked by everyone who opens it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from time import monotonic, sleep
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

from ctr.errors import StoreError
from ps.redis_keys import RUN, BoardPart, Keys
from ps.redis_nodes import connect, parse_redis_url

LAYOUT_VERSION = "2"

_READY = b"ready"
_CREATION_S = 30.0
_RECORDS_AT_A_TIME = 1_000


class ModelExistsError(StoreError):
    """A model of this name is in the store already."""


def open_model(
    client: Any, keys: Keys, partitions: int, facts: Mapping[str, str], *, join: bool, create: bool
) -> bytes:
    """Create the model, or with `join` check that it has the same `facts`; return its run id.

    Of several who join at once, one creates and the others wait. Every partition's record gets the run id,
    so that a node which lost its data is noticed. Raises StoreError when layout or facts differ, naming both.
    """
    wanted = {"layout": LAYOUT_VERSION, "partitions": str(partitions), **facts}
    run = secrets.token_hex(8).encode()
    if not create and not client.exists(keys.meta):
        raise StoreError(f"there is no model {keys.model!r} in this store (any more): has its job ended?")
    if client.hsetnx(keys.meta, RUN, run):
        client.hset(keys.meta, mapping=wanted)
        for first in range(0, partitions, _RECORDS_AT_A_TIME):
            pipeline = client.pipeline(transaction=False)
            for partition in range(first, min(first + _RECORDS_AT_A_TIME, partitions)):
                pipeline.hset(keys.record(partition), RUN, run)
            pipeline.execute()
        client.hset(keys.meta, _READY, b"1")
        return run
    if not join:
        raise ModelExistsError(
            f"the model {keys.model!r} is in this store already; name another (?model=NAME), or remove it "
            "with `ctr ps drop`."
        )
    deadline = monotonic() + _CREATION_S
    while not client.hexists(keys.meta, _READY):
        if monotonic() > deadline:
            raise StoreError(
                f"the model {keys.model!r} was begun in this store but not finished; drop it and start again."
            )
        sleep(0.05)
    found = {name.decode(): value.decode() for name, value in client.hgetall(keys.meta).items()}
    for name, value in wanted.items():
        if found.get(name) != value:
            raise StoreError(
                f"the model {keys.model!r} in this store has {name} {found.get(name)}, this job has {value}; "
                "use another model name, or drop the one in the store."
            )
    return bytes(found[RUN.decode()].encode())


def drop_run(url: str, run: str, job: str | None = None) -> None:
    """Delete the model that a Redis URL names, and its job, if it is the one created as `run`; else nothing.

    Also if its facts say that it was created for `job`. For an embedded store, which begins empty, there is
    nothing to do. Raises StoreError when the server cannot be reached.
    """
    if url.startswith("embedded:"):
        return
    parsed = parse_redis_url(url)
    keys = Keys(parsed.model or "default")
    nodes = connect(parsed, keys, timeout_s=10.0)
    try:
        found, partitions, its_job = nodes.client().hmget(keys.meta, RUN, b"partitions", b"job")
        if found is not None and (found == run.encode() or (job is not None and its_job == job.encode())):
            # One that was being made may not have all of its facts yet.
            drop_model(nodes.client(), keys, int(partitions or 0))
    except (RedisError, RedisClusterException, OSError) as error:
        raise StoreError(f"{parsed}: the model could not be looked up ({error}).") from error
    finally:
        nodes.close()


def drop_model(client: Any, keys: Keys, partitions: int) -> None:
    """Delete everything that the model, and its job, keep in the store."""
    lanes = int(client.hget(keys.board(BoardPart.JOB), b"lanes") or 0)
    client.delete(keys.meta)  # first, so that nobody opens a model that is half gone
    client.delete(*(keys.board(part) for part in BoardPart))
    for lane in range(lanes):
        client.unlink(keys.lane(lane))
    for first in range(0, partitions, _RECORDS_AT_A_TIME):
        pipeline = client.pipeline(transaction=False)
        for partition in range(first, min(first + _RECORDS_AT_A_TIME, partitions)):
            of_it = (keys.state, keys.tail, keys.record, keys.news)
            pipeline.execute_command("UNLINK", *(key(partition) for key in of_it))
        pipeline.execute()
