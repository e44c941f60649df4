"""The description of a model in Redis: created once, and checked by every process that opens the model.

Its key, `meta`, is written before any other key and deleted after all others. In between it says how far the
model is: `creating`, `ready`, or neither while it is dropped. So if a process is killed on the way, the next
one sees that the model is not whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from ctr.errors import StoreError
from ctr.ps.layout import Layout
from ctr.ps.redis.drop import CREATING, READY, batches, drop_model, dropping, partition_keys
from ctr.ps.redis.incarnation import Incarnation
from ctr.ps.wire import (
    INCARNATION,
    Command,
    Connection,
    Keys,
    Nodes,
    RedisUrl,
    ServerError,
    Write,
    checked,
    eviction_policies,
    host_port,
    pairs,
    parse_info,
    require_no_eviction,
)

LAYOUT_VERSION = "8"

_CREATION_S = 30.0
_PROMOTION_S, _PROMOTION_PAUSE_S = 2.0, 0.05
"""How long to wait for a replica that may be about to take over from its primary."""
_CLEAN_UP_S = 2.0
"""How long to retry the removal of a model that was created only in part."""


class ModelExistsError(StoreError):
    """The store already has a model of this name."""


def open_model(
    url: RedisUrl,
    nodes: Nodes,
    keys: Keys,
    layout: Layout,
    facts: Mapping[str, str],
    *,
    join: bool,
    create: bool,
    restoring: bool,
    patience_s: float,
) -> Incarnation:
    """Create the model, or with `join` check that it has the same `facts`; return its incarnation.

    Of several processes that join at once, one creates and the others wait. Every partition gets the
    incarnation, so that a node which lost its data is noticed; with `restoring`, only when the partition is
    restored. Remains of an earlier model of this name are removed first. Raises StoreError if layout or facts
    differ, naming both, and if one of the model's keys holds something else.
    """
    wanted = {"layout": LAYOUT_VERSION, "partitions": str(layout.partitions.count), **facts}
    connection = Connection(nodes, patience_s=patience_s, purpose="the model")
    require_no_eviction(url, eviction_policies(connection))
    if not create:
        return Incarnation(_join(connection, keys, wanted), url, keys)
    if not url.cluster:
        _require_primary(connection)
    meta, own = _begin(connection, keys, wanted)
    while own is None and _is_dropped(meta):
        # Another process has not finished dropping it, or never will.
        drop_model(connection, keys, meta[INCARNATION])
        meta, own = _begin(connection, keys, wanted)
    if own is not None:
        _create(connection, keys, layout, own, restoring=restoring)
        return Incarnation(own, url, keys)
    if not join:
        raise ModelExistsError(_refusal(keys, meta))
    return Incarnation(_join(connection, keys, wanted), url, keys)


def _require_primary(connection: Connection) -> None:
    """Raise StoreError if the server is, and for a while remains, a replica that follows a live primary.

    A replica that has lost its primary may be promoted at any moment; requests wait for that as they wait for
    a server that is away.
    """
    deadline = monotonic() + _PROMOTION_S
    while True:
        ((info,),) = connection.ask_nodes(("INFO", "replication"))
        facts = parse_info(info)
        if facts.get("master_link_status") != "up":  # only a replica says anything about a link
            return
        if monotonic() > deadline:
            primary = host_port((str(facts["master_host"]), int(facts["master_port"])))
            raise StoreError(
                f"{connection.nodes.url}: this server is a replica, which takes no writes; name its primary, "
                f"{primary}."
            )
        sleep(_PROMOTION_PAUSE_S)


def _begin(
    connection: Connection, keys: Keys, wanted: Mapping[str, str]
) -> tuple[dict[bytes, bytes], bytes | None]:
    """Claim the name; returns what `meta` was before, and the new incarnation if it was empty."""
    incarnation = secrets.token_hex(8).encode()
    words = [word for fact in wanted.items() for word in fact]

    def decide(answers: list[Any]) -> Write[tuple[dict[bytes, bytes], bytes | None]]:
        meta = pairs(answers[0])
        if not meta:
            return [("HSET", keys.meta, INCARNATION, incarnation, CREATING, 1, *words)], ({}, incarnation)
        # Ours, if the answer to an earlier attempt was lost.
        return (), (meta, incarnation if meta.get(INCARNATION) == incarnation else None)

    meta, ours = connection.update([keys.meta], [("HGETALL", keys.meta)], decide)
    if meta and INCARNATION not in meta:
        if b"layout" in meta:
            require_layout(keys, meta)
        raise StoreError(
            f"the key {keys.meta.decode()!r} in this store holds something that is no model; name another "
            "model (?model=NAME), or delete the key."
        )
    return meta, ours


def _is_dropped(meta: Mapping[bytes, bytes]) -> bool:
    return READY not in meta and CREATING not in meta


def _create(
    connection: Connection, keys: Keys, layout: Layout, incarnation: bytes, *, restoring: bool
) -> None:
    """Write the incarnation to the partitions of a model whose `meta` exists, and mark it as ready."""
    try:
        for some in batches(_former_partitions(connection, keys, layout)):
            connection.ask_each([("DEL", *partition_keys(keys, p, layout.per_partition)) for p in some])
        for some in batches(range(0 if restoring else layout.partitions.count)):
            checked(connection.ask_each([("HSET", keys.facts(p), INCARNATION, incarnation) for p in some]))

        def decide(answers: list[Any]) -> Write[bool]:
            if answers[0] != incarnation:
                return (), False
            return [("HSET", keys.meta, READY, 1), ("HDEL", keys.meta, CREATING)], True

        if not connection.update([keys.meta], [("HGET", keys.meta, INCARNATION)], decide):
            raise StoreError(f"the model {keys.model!r} was dropped while it was created; start again.")
    except BaseException:
        with suppress(StoreError):
            drop_model(dropping(connection.nodes, keys, _CLEAN_UP_S), keys, incarnation)
        raise


def _former_partitions(connection: Connection, keys: Keys, layout: Layout) -> list[int]:
    """The partitions with remains of an earlier model of this name, such as after a failover.

    Raises StoreError for keys that belong to no model: without an incarnation, or of another type.
    """
    former = []
    for some in batches(range(layout.partitions.count)):
        reads: list[Command] = []
        for p in some:
            its_keys = partition_keys(keys, p, layout.per_partition)
            reads += [("HGET", its_keys[0], INCARNATION), ("EXISTS", *its_keys)]
        answers = connection.ask_each(reads)
        for p, incarnation, count in zip(some, answers[::2], answers[1::2], strict=True):
            if isinstance(incarnation, ServerError) or (incarnation is None and count):
                names = ", ".join(key.decode() for key in partition_keys(keys, p, layout.per_partition))
                raise StoreError(
                    f"the store holds something that is no part of a model under a name that {keys.model!r} "
                    f"needs (one of {names}); name another model (?model=NAME), or delete it."
                )
            if incarnation is not None:
                former.append(p)
    return former


def _join(connection: Connection, keys: Keys, wanted: Mapping[str, str]) -> bytes:
    """Wait until the model is ready, and compare its description; returns its incarnation."""
    deadline = monotonic() + _CREATION_S
    while READY not in (meta := pairs(connection.ask(("HGETALL", keys.meta))[0])):
        if not meta:
            raise StoreError(f"there is no model {keys.model!r} in this store (any more): has its job ended?")
        if monotonic() > deadline or CREATING not in meta:
            raise StoreError(_refusal(keys, meta))
        sleep(0.05)
    require_layout(keys, meta)
    facts = {name.decode(): value.decode() for name, value in meta.items()}
    for name, value in wanted.items():
        if facts.get(name) != value:
            raise StoreError(
                f"the model {keys.model!r} in this store has {name} {facts.get(name)}, this job has {value}; "
                "use another model name, or drop the one in the store."
            )
    return meta[INCARNATION]


def require_layout(keys: Keys, meta: Mapping[bytes, bytes]) -> None:
    """Raise StoreError if another version of ctr created the model with this `meta`."""
    layout = meta.get(b"layout", b"").decode()
    if layout != LAYOUT_VERSION:
        raise StoreError(
            f"the model {keys.model!r} was created by another version of ctr (layout {layout}, this "
            f"one has layout {LAYOUT_VERSION}); use that version for it and to drop it, or another name "
            "(?model=NAME)."
        )


def _refusal(keys: Keys, meta: Mapping[bytes, bytes]) -> str:
    """Why an existing model can neither be created nor used."""
    if READY in meta:
        return (
            f"the model {keys.model!r} is in this store already; name another (?model=NAME), or remove it "
            "with `ctr ps drop`."
        )
    if CREATING in meta:
        return (
            f"the creation of the model {keys.model!r} in this store is not finished; if it was "
            "interrupted, remove what there is with `ctr ps drop`."
        )
    return f"the model {keys.model!r} is being dropped; `ctr ps drop` finishes that if it was interrupted."
