"""Creates a model in Redis, checks its description when a process opens it, and drops it.

The description, under the key `meta`, is written before all other keys and deleted after them. It holds the
state of the model: `creating`, `ready`, or neither while it is dropped. So if a process is killed midway, the
next one sees that the model is incomplete.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from time import monotonic, sleep
from typing import Any

from ctr.errors import StoreError
from ctr.ps.layout import Layout
from ctr.ps.wire import (
    INCARNATION,
    PATIENCE_S,
    Command,
    Connection,
    Keys,
    Nodes,
    ServerError,
    Write,
    checked,
    connect,
    eviction_policies,
    host_port,
    pairs,
    parse_info,
    parse_redis_url,
    require_no_eviction,
)

LAYOUT_VERSION = "10"

_CREATING, _READY = b"creating", b"ready"
"""Fields of the meta hash: the state of the model; neither while it is dropped."""
_AT_A_TIME = 1_000  # partitions in one round trip
_PROMOTION_S, _PROMOTION_PAUSE_S = 2.0, 0.05
"""How long to wait for a replica that may be about to take over from its primary."""
_CLEAN_UP_S = 2.0
"""How long to retry the removal of a model whose creation failed."""


class ModelExistsError(StoreError):
    """The store already has a model of this name."""


def open_model(
    nodes: Nodes,
    keys: Keys,
    bits: int,
    facts: Mapping[str, str],
    *,
    join: bool,
    restoring: bool,
    partitions: int | None,
    patience_s: float,
) -> tuple[bytes, Layout]:
    """Create the model, or with `join` check that it has the same `facts`; return its incarnation and layout.

    `partitions` is the number of partitions of a new model; None for as many as suit the nodes. Every
    partition gets the incarnation, so that a node that lost its data is noticed; with `restoring`, it gets it
    when it is restored. Remains of an earlier model of this name are removed first. Raises StoreError if
    layout or facts differ, naming both values, and if one of the model's keys holds something else.
    """
    description = {"layout": LAYOUT_VERSION, "bits": str(bits), **facts}
    connection = Connection(nodes, patience_s=patience_s, purpose="the model")
    require_no_eviction(nodes.url, eviction_policies(connection))
    if join:
        incarnation, count = _join(connection, keys, description)
        return incarnation, Layout.of(bits, count)
    if not nodes.url.cluster:
        _require_primary(connection)
    layout = Layout.for_nodes(bits, len(nodes.primaries()))
    if partitions is not None:
        layout = Layout.of(bits, partitions)
    description["partitions"] = str(layout.partitions.count)
    meta, own = _begin(connection, keys, description)
    while own is None and not meta.keys() & {_READY, _CREATING}:
        # Another process has not finished dropping it, or was killed.
        drop_model(connection, keys, meta[INCARNATION])
        meta, own = _begin(connection, keys, description)
    if own is None:
        raise ModelExistsError(_refusal(keys, meta))
    _create(connection, keys, layout, own, restoring=restoring)
    return own, layout


def _require_primary(connection: Connection) -> None:
    """Raise StoreError if the server is a replica of a live primary, and remains so for a while.

    A replica that has lost its primary may be promoted at any moment; requests wait for that as for a server
    that is away.
    """
    deadline = monotonic() + _PROMOTION_S
    while True:
        ((info,),) = connection.ask_nodes(("INFO", "replication"))
        facts = parse_info(info)
        if facts.get("master_link_status") != "up":  # only replicas have this field
            return
        if monotonic() > deadline:
            primary = host_port((str(facts["master_host"]), int(facts["master_port"])))
            raise StoreError(
                f"{connection.nodes.url}: this server is a replica, which takes no writes; name its primary, "
                f"{primary}."
            )
        sleep(_PROMOTION_PAUSE_S)


def _begin(
    connection: Connection, keys: Keys, description: Mapping[str, str]
) -> tuple[dict[bytes, bytes], bytes | None]:
    """Claim the name; returns the previous `meta`, and the new incarnation if that was empty."""
    incarnation = secrets.token_hex(8).encode()
    words = [word for fact in description.items() for word in fact]

    def decide(answers: list[Any]) -> Write[tuple[dict[bytes, bytes], bytes | None]]:
        meta = pairs(answers[0])
        if not meta:
            return [("HSET", keys.meta, INCARNATION, incarnation, _CREATING, 1, *words)], ({}, incarnation)
        # Ours, if the answer to an earlier attempt was lost.
        return (), (meta, incarnation if meta.get(INCARNATION) == incarnation else None)

    meta, own = connection.update([keys.meta], [("HGETALL", keys.meta)], decide)
    if meta and INCARNATION not in meta:
        if b"layout" in meta:
            require_layout(keys, meta)
        raise StoreError(
            f"the key {keys.meta.decode()!r} in this store holds something that is no model; name another "
            "model (?model=NAME), or delete the key."
        )
    return meta, own


def _create(
    connection: Connection, keys: Keys, layout: Layout, incarnation: bytes, *, restoring: bool
) -> None:
    """Write the incarnation to the partitions of a model whose `meta` exists, and mark it as ready."""
    try:
        for batch in _batches(_former_partitions(connection, keys, layout)):
            connection.ask_each([("DEL", *partition_keys(keys, p, layout)) for p in batch])
        for batch in _batches(range(0 if restoring else layout.partitions.count)):
            checked(connection.ask_each([("HSET", keys.facts(p), INCARNATION, incarnation) for p in batch]))

        def decide(answers: list[Any]) -> Write[bool]:
            if answers[0] != incarnation:
                return (), False
            return [("HSET", keys.meta, _READY, 1), ("HDEL", keys.meta, _CREATING)], True

        if not connection.update([keys.meta], [("HGET", keys.meta, INCARNATION)], decide):
            raise StoreError(f"the model {keys.model!r} was dropped while it was created; start again.")
    except BaseException:
        with suppress(StoreError):
            drop_model(dropping(connection.nodes, keys, _CLEAN_UP_S), keys, incarnation)
        raise


def _former_partitions(connection: Connection, keys: Keys, layout: Layout) -> list[int]:
    """The partitions with remains of an earlier model of this name, as after a failover.

    Raises StoreError for keys that belong to no model: without an incarnation, or of another type.
    """
    former = []
    for batch in _batches(range(layout.partitions.count)):
        reads: list[Command] = []
        for p in batch:
            own_keys = partition_keys(keys, p, layout)
            reads += [("HGET", own_keys[0], INCARNATION), ("EXISTS", *own_keys)]
        answers = connection.ask_each(reads)
        for p, incarnation, count in zip(batch, answers[::2], answers[1::2], strict=True):
            if isinstance(incarnation, ServerError) or (incarnation is None and count):
                names = ", ".join(key.decode() for key in partition_keys(keys, p, layout))
                raise StoreError(
                    f"the store holds something else under a key that the model {keys.model!r} needs (one of "
                    f"{names}); name another model (?model=NAME), or delete it."
                )
            if incarnation is not None:
                former.append(p)
    return former


def _join(connection: Connection, keys: Keys, description: Mapping[str, str]) -> tuple[bytes, int]:
    """Compare the description of a ready model; returns its incarnation and its number of partitions."""
    meta = pairs(connection.ask(("HGETALL", keys.meta))[0])
    if not meta:
        raise StoreError(f"there is no model {keys.model!r} in this store (any more): has its job ended?")
    if _READY not in meta:
        raise StoreError(_refusal(keys, meta))
    require_layout(keys, meta)
    facts = {name.decode(): value.decode() for name, value in meta.items()}
    for name, value in description.items():
        if facts.get(name) != value:
            raise StoreError(
                f"the model {keys.model!r} in this store has {name} {facts.get(name)}, this job has {value}; "
                "use another model name, or drop the one in the store."
            )
    return meta[INCARNATION], int(facts["partitions"])


def require_layout(keys: Keys, meta: Mapping[bytes, bytes]) -> None:
    """Raise StoreError if another layout version created the model with this `meta`."""
    layout = meta.get(b"layout", b"").decode()
    if layout != LAYOUT_VERSION:
        raise StoreError(
            f"the model {keys.model!r} was created by another version of ctr (layout {layout}, this "
            f"one has layout {LAYOUT_VERSION}); use that version for it and to drop it, or another name "
            "(?model=NAME)."
        )


def _refusal(keys: Keys, meta: Mapping[bytes, bytes]) -> str:
    """The reason why an existing model can neither be created nor used."""
    if _READY in meta:
        return (
            f"the model {keys.model!r} is in this store already; name another (?model=NAME), or remove it "
            "with `ctr ps drop`."
        )
    if _CREATING in meta:
        return (
            f"the creation of the model {keys.model!r} in this store is not finished; if it was "
            "interrupted, remove its remains with `ctr ps drop`."
        )
    return f"the model {keys.model!r} is being dropped; `ctr ps drop` finishes that if it was interrupted."


def drop_incarnation(
    url: str, incarnation: str, job: str | None = None, *, patience_s: float = PATIENCE_S
) -> None:
    """Delete the model that a Redis URL names, and its job, if it has this incarnation or is for `job`.

    Does nothing otherwise, nor with an embedded store, which begins empty. Raises StoreError if the server is
    unreachable.
    """
    if url.startswith("embedded:"):
        return
    parsed = parse_redis_url(url)
    keys = Keys(parsed.model or "default")
    with closing(connect(parsed, timeout_s=10.0)) as nodes:
        connection = dropping(nodes, keys, patience_s)
        ((stored, stored_job),) = connection.ask(("HMGET", keys.meta, INCARNATION, "job"))
        if stored == incarnation.encode() or (stored is not None and job and stored_job == job.encode()):
            drop_model(connection, keys, stored)


def dropping(nodes: Nodes, keys: Keys, patience_s: float) -> Connection:
    """A connection for `drop_model`, whose error messages name the command that finishes the removal."""
    remedy = ", then finish that with `ctr ps drop`"
    return Connection(nodes, patience_s=patience_s, purpose=f"the model {keys.model!r}", remedy=remedy)


def drop_model(connection: Connection, keys: Keys, incarnation: bytes) -> None:
    """Delete all keys of this incarnation of the model, and of its job; never those of another model.

    Several processes may do so at once, and again after an interruption. It uses no transactions, and only
    commands that free memory: a server above its memory limit accepts no others.
    """
    reads = "HMGET", keys.meta, INCARNATION, "partitions", "bits", _CREATING
    ((stored, partitions, bits, creating),) = connection.ask(reads)
    if stored != incarnation:
        return
    connection.ask(
        ("HDEL", keys.meta, _READY),  # from now on its state is "dropped", if it was created
        ("DEL", keys.board.launch),  # so that workers notice
    )
    (ranks,) = connection.ask_each([("HGET", keys.board.job, "ranks")])
    rank_count = 0 if isinstance(ranks, ServerError) else int(ranks or 0)
    connection.ask_each([("DEL", keys.rank(rank)) for rank in range(rank_count)])
    count = int(partitions or 0)
    layout = Layout.of(int(bits or 1), max(count, 1))
    for batch in _batches(range(count)):
        incarnations = connection.ask_each([("HGET", keys.facts(p), INCARNATION) for p in batch])
        # During the creation of a model, a key without an incarnation may belong to somebody else.
        drop_others = creating is None
        connection.ask_each(
            [
                ("DEL", *partition_keys(keys, p, layout))
                for p, owner in zip(batch, incarnations, strict=True)
                if owner == incarnation or (drop_others and (owner is None or isinstance(owner, ServerError)))
            ]
        )
    if connection.ask(("HGET", keys.meta, INCARNATION)) == [incarnation]:
        connection.ask(("DEL", *keys.board.all, keys.meta))


def partition_keys(keys: Keys, partition: int, layout: Layout) -> tuple[bytes, ...]:
    """All keys of a partition; the key of its facts first."""
    names = keys.state, keys.last_slots, keys.log, keys.present, keys.folding, keys.fold_steps
    of_strings = (name(partition, i) for i in range(layout.per_partition) for name in names)
    feed = keys.feed(partition), keys.feed_version(partition)
    return keys.facts(partition), *watermark_keys(keys, partition, layout), *feed, *of_strings


def watermark_keys(keys: Keys, partition: int, layout: Layout) -> list[bytes]:
    """The keys of all hashes with a partition's watermarks."""
    return [keys.watermarks(partition, i) for i in range(layout.watermark_hashes)]


def _batches(partitions: range | list[int]) -> Iterator[range | list[int]]:
    """The partitions in batches, one for each round trip."""
    return (partitions[first : first + _AT_A_TIME] for first in range(0, len(partitions), _AT_A_TIME))
