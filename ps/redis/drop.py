"""A model is dropped: all that it and its job keep in Redis, whatever was interrupted before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.exceptions import ResponseError

from ctr.errors import StoreError
from ctr.ps.layout import Layout
from ctr.ps.wire import (
    BROKEN,
    INCARNATION,
    WATERMARK_HASHES,
    BoardPart,
    Command,
    Keys,
    RedisUrl,
    connect,
    parse_redis_url,
    rights_hint,
)

CREATING, READY = b"creating", b"ready"
"""Fields of the meta hash: how far the model is; neither while it is dropped."""
_AT_A_TIME = 1_000  # partitions in one round trip


def drop_incarnation(url: str, incarnation: str, job: str | None = None) -> None:
    """Delete the model that a Redis URL names, and its job, if it is of this incarnation; else nothing.

    Also if its facts say that it was created for `job`. For an embedded store, which begins empty, there is
    nothing to do. Raises StoreError when the server cannot be reached.
    """
    if url.startswith("embedded:"):
        return
    parsed = parse_redis_url(url)
    keys = Keys(parsed.model or "default")
    nodes = connect(parsed, keys, timeout_s=10.0)
    try:
        found, its_job = nodes.client().hmget(keys.meta, INCARNATION, b"job")
        if found is not None and (
            found == incarnation.encode() or (job is not None and its_job == job.encode())
        ):
            drop_model(nodes.client(), keys, found)
    except BROKEN as error:
        raise not_dropped(parsed, keys, error) from error
    finally:
        nodes.close()


def not_dropped(url: RedisUrl, keys: Keys, error: Exception) -> StoreError:
    """What to raise when a server broke, or refused, while a model was dropped."""
    return StoreError(
        f"{url}: the model {keys.model!r} could not be dropped ({error}){rights_hint(error)}; finish that "
        "with `ctr ps drop`."
    )


def drop_model(client: Any, keys: Keys, incarnation: bytes) -> None:
    """Delete everything that this incarnation of the model, and its job, keep in the store; no other model.

    It may be done by several at once, and again after it was interrupted. Without transactions, and with none
    but commands that free memory, as a server above its memory limit takes nothing else.
    """
    found, partitions, bits, creating = client.hmget(keys.meta, INCARNATION, b"partitions", b"bits", CREATING)
    if found != incarnation:
        return
    client.hdel(keys.meta, READY)  # from now on it is dropped, if it was created
    client.delete(keys.board(BoardPart.LAUNCH))  # which tells the workers
    (ranks,) = each(client, [(b"HGET", keys.board(BoardPart.JOB), b"ranks")], errors=True)
    if isinstance(ranks, Exception) and not is_wrong_type(ranks):
        raise ranks
    for rank in range(0 if isinstance(ranks, Exception) else int(ranks or 0)):
        client.delete(keys.rank(rank))
    for some in batches(range(int(partitions or 0))):
        incarnations = each(client, [(b"HGET", keys.facts(p), INCARNATION) for p in some], errors=True)
        ours = []
        for p, its_incarnation in zip(some, incarnations, strict=True):
            if isinstance(its_incarnation, Exception) and not is_wrong_type(its_incarnation):
                raise its_incarnation
            # Before all is created, what has no incarnation may be somebody else's.
            if its_incarnation == incarnation or (
                creating is None and (its_incarnation is None or isinstance(its_incarnation, Exception))
            ):
                ours.append(p)
        strings = Layout.of(int(bits or 1)).per_partition
        each(client, [(b"DEL", *partition_keys(keys, p, strings)) for p in ours])
    if client.hget(keys.meta, INCARNATION) == incarnation:
        client.delete(*(keys.board(part) for part in BoardPart), keys.meta)


def partition_keys(keys: Keys, partition: int, strings: int) -> tuple[bytes, ...]:
    """All of a partition of so many strings; its facts first."""
    names = keys.state, keys.last_slots, keys.log, keys.present, keys.folding, keys.fold_steps
    of_strings = (name(partition, i) for i in range(strings) for name in names)
    return keys.facts(partition), *watermark_keys(keys, partition), *of_strings


def watermark_keys(keys: Keys, partition: int) -> list[bytes]:
    """All of the hashes that have a partition's watermarks."""
    return [keys.watermarks(partition, i) for i in range(WATERMARK_HASHES)]


def batches(partitions: range | list[int]) -> Iterator[range | list[int]]:
    return (partitions[first : first + _AT_A_TIME] for first in range(0, len(partitions), _AT_A_TIME))


def each(client: Any, commands: list[Command], *, errors: bool = False) -> list[Any]:
    """The answers, in one round trip to each node; with `errors`, errors among them."""
    if not commands:
        return []
    pipeline = client.pipeline(transaction=False)
    for name, *words in commands:
        pipeline.execute_command(name.decode(), *words)  # which redis-py looks up, and expects as text
    answers: list[Any] = pipeline.execute(raise_on_error=not errors)
    return answers


def is_wrong_type(answer: object) -> bool:
    return isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE")
