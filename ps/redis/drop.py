"""Deletes all that a model and its job keep in Redis, also after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from ctr.ps.layout import Layout
from ctr.ps.wire import (
    INCARNATION,
    PATIENCE_S,
    WATERMARK_HASHES,
    Connection,
    Keys,
    Nodes,
    ServerError,
    connect,
    parse_redis_url,
)

CREATING, READY = b"creating", b"ready"
"""Fields of the meta hash: how far the model is; neither while it is dropped."""
_AT_A_TIME = 1_000  # partitions in one round trip


def drop_incarnation(
    url: str, incarnation: str, job: str | None = None, *, patience_s: float = PATIENCE_S
) -> None:
    """Delete the model that a Redis URL names, and its job, if it has this incarnation; else nothing.

    Also if its description says that it was created for `job`. An embedded store begins empty, so there is
    nothing to do. Raises StoreError when the server cannot be reached.
    """
    if url.startswith("embedded:"):
        return
    parsed = parse_redis_url(url)
    keys = Keys(parsed.model or "default")
    with closing(connect(parsed, timeout_s=10.0)) as nodes:
        connection = dropping(nodes, keys, patience_s)
        ((stored, its_job),) = connection.ask(("HMGET", keys.meta, INCARNATION, "job"))
        if stored == incarnation.encode() or (stored is not None and job and its_job == job.encode()):
            drop_model(connection, keys, stored)


def dropping(nodes: Nodes, keys: Keys, patience_s: float) -> Connection:
    """A connection for `drop_model`, whose error messages name the command that finishes the removal."""
    remedy = ", then finish that with `ctr ps drop`"
    return Connection(nodes, patience_s=patience_s, purpose=f"the model {keys.model!r}", remedy=remedy)


def drop_model(connection: Connection, keys: Keys, incarnation: bytes) -> None:
    """Delete everything that this incarnation of the model, and its job, keep in the store; no other model.

    Several processes may do it at once, and again after an interruption. It uses no transactions, and only
    commands that free memory: a server above its memory limit takes nothing else.
    """
    reads = "HMGET", keys.meta, INCARNATION, "partitions", "bits", CREATING
    ((stored, partitions, bits, creating),) = connection.ask(reads)
    if stored != incarnation:
        return
    connection.ask(
        ("HDEL", keys.meta, READY),  # from now on it is dropped, if it was created
        ("DEL", keys.board.launch),  # by which workers notice
    )
    (ranks,) = connection.ask_each([("HGET", keys.board.job, "ranks")])
    count = 0 if isinstance(ranks, ServerError) else int(ranks or 0)
    connection.ask_each([("DEL", keys.rank(rank)) for rank in range(count)])
    strings = Layout.of(int(bits or 1)).per_partition
    for some in batches(range(int(partitions or 0))):
        incarnations = connection.ask_each([("HGET", keys.facts(p), INCARNATION) for p in some])
        # While the model is being created, a key without an incarnation may be somebody else's.
        nobodys = creating is None
        connection.ask_each(
            [
                ("DEL", *partition_keys(keys, p, strings))
                for p, its in zip(some, incarnations, strict=True)
                if its == incarnation or (nobodys and (its is None or isinstance(its, ServerError)))
            ]
        )
    if connection.ask(("HGET", keys.meta, INCARNATION)) == [incarnation]:
        connection.ask(("DEL", *keys.board.all, keys.meta))


def partition_keys(keys: Keys, partition: int, strings: int) -> tuple[bytes, ...]:
    """All keys of a partition with this many strings; its facts first."""
    names = keys.state, keys.last_slots, keys.log, keys.present, keys.folding, keys.fold_steps
    of_strings = (name(partition, i) for i in range(strings) for name in names)
    return keys.facts(partition), *watermark_keys(keys, partition), *of_strings


def watermark_keys(keys: Keys, partition: int) -> list[bytes]:
    """The keys of all hashes with a partition's watermarks."""
    return [keys.watermarks(partition, i) for i in range(WATERMARK_HASHES)]


def batches(partitions: range | list[int]) -> Iterator[range | list[int]]:
    """The partitions in batches, one for each round trip."""
    return (partitions[first : first + _AT_A_TIME] for first in range(0, len(partitions), _AT_A_TIME))
