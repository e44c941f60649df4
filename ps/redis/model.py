"""What a model is called and made of in Redis: created once, checked by everyone who opens it, and dropped.

Its `meta` is there from before the first other key is written until after the last one is gone, and says in
between how far that is: `creating`, `ready`, or neither while the model is dropped. So whatever is killed on
the way, the next one sees that the model is not whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from time import monotonic, sleep
from typing import Any

from redis.exceptions import RedisClusterException, RedisError, ResponseError

from ctr.errors import StoreError
from ps.wire import (
    RUN,
    BoardPart,
    Command,
    Decision,
    Keys,
    Nodes,
    RedisUrl,
    Transactions,
    connect,
    host_port,
    parse_redis_url,
    rights_hint,
)

LAYOUT_VERSION = "3"

_CREATING, _READY = b"creating", b"ready"
_CREATION_S = 30.0
_AT_A_TIME = 1_000  # partitions in one round trip
_PROMOTION_S, _PROMOTION_PAUSE_S = 2.0, 0.05
"""How long a replica that follows its primary may be about to take over."""


class ModelExistsError(StoreError):
    """A model of this name is in the store already."""


def open_model(
    url: RedisUrl,
    nodes: Nodes,
    keys: Keys,
    partitions: int,
    facts: Mapping[str, str],
    *,
    join: bool,
    create: bool,
    restoring: bool,
    patience_s: float,
) -> bytes:
    """Create the model, or with `join` check that it has the same `facts`; return its run id.

    Of several who join at once, one creates and the others wait. Every partition's record gets the run id,
    so that a node which lost its data is noticed; with `restoring`, not before the partition is restored.
    What a model of this name has left behind is removed first.
    Raises StoreError when layout or facts differ, naming both, and when something else has the name of one of
    the model's keys.
    """
    wanted = {"layout": LAYOUT_VERSION, "partitions": str(partitions), **facts}
    _require_no_eviction(url, nodes.client())
    if create and not url.cluster:
        _require_primary(url, nodes.client())
    with closing(Transactions(nodes, url, patience_s=patience_s, of="the model")) as line:
        while create:
            found, run = _begin(line, keys, wanted)
            if run is not None:
                _create(line, nodes.client(), keys, partitions, run, restoring=restoring)
                return run
            if not _is_dropped(found):
                break
            # Whoever began to drop it has not come to the end, or is just about to.
            drop_model(nodes.client(), keys, found[RUN])
    if create and not join:
        raise ModelExistsError(_refusal(keys, found))
    return _join(nodes.client(), keys, wanted)


def _require_no_eviction(url: RedisUrl, client: Any) -> None:
    """Raise StoreError where a server may delete weights. CONFIG GET is often forbidden, INFO seldom."""
    if url.cluster:
        found = client.info("memory", target_nodes=client.PRIMARIES)
        # Of a single primary, redis-py gives the answer alone.
        policies = (
            {found["maxmemory_policy"]}
            if "maxmemory_policy" in found
            else {each["maxmemory_policy"] for each in found.values()}
        )
    else:
        policies = {client.info("memory").get("maxmemory_policy", "")}
    for policy in policies:
        if policy.startswith("allkeys-"):  # the others leave alone what has no time to live
            raise StoreError(
                f"{url}: deletes keys when its memory is full (maxmemory-policy {policy}), and so weights; "
                "set maxmemory-policy to noeviction."
            )


def _require_primary(url: RedisUrl, client: Any) -> None:
    """Raise StoreError if the server is a replica that follows a live primary, and stays one for a while.

    One that has lost its primary may be promoted at any moment: that is waited for as for a server that is
    away.
    """
    deadline = monotonic() + _PROMOTION_S
    # One that is not a replica tells nothing of a link.
    while (found := client.info("replication")).get("master_link_status") == "up":
        if monotonic() > deadline:
            primary = host_port((str(found["master_host"]), int(found["master_port"])))
            raise StoreError(
                f"{url}: this server is a replica, which takes no writes; name its primary, {primary}."
            )
        sleep(_PROMOTION_PAUSE_S)


def _begin(
    line: Transactions, keys: Keys, wanted: Mapping[str, str]
) -> tuple[dict[bytes, bytes], bytes | None]:
    """Take the name; what `meta` was before, and the new run id if it was nothing."""
    run = secrets.token_hex(8).encode()
    words = [word for name, value in wanted.items() for word in (name.encode(), value.encode())]

    def decide(found: list[Any]) -> Decision[tuple[dict[bytes, bytes], bytes | None]]:
        flat = found[0]
        meta = dict(zip(flat[::2], flat[1::2], strict=True))
        if not meta:
            return [(b"HSET", keys.meta, RUN, run, _CREATING, b"1", *words)], lambda _: ({}, run)
        # Ours, if the answer to an earlier attempt was lost.
        return (), lambda _: (meta, run if meta.get(RUN) == run else None)

    meta, ours = line.update([keys.meta], [(b"HGETALL", keys.meta)], decide)
    if meta and RUN not in meta:
        raise StoreError(
            f"the key {keys.meta.decode()!r} in this store holds something that is no model; {_RENAME}."
        )
    return meta, ours


_RENAME = "name another model (?model=NAME), or delete the key"


def _is_dropped(meta: Mapping[bytes, bytes]) -> bool:
    return _READY not in meta and _CREATING not in meta


def _create(
    line: Transactions, client: Any, keys: Keys, partitions: int, run: bytes, *, restoring: bool
) -> None:
    """Give the partitions of a model whose `meta` is there their records, and call it ready."""
    try:
        former = _former_partitions(client, keys, partitions)
        for some in _batches(former):
            _each(client, [(b"DEL", *_partition_keys(keys, p)) for p in some])
        for some in _batches(range(0 if restoring else partitions)):
            _each(client, [(b"HSET", keys.record(p), RUN, run) for p in some])

        def decide(found: list[Any]) -> Decision[bool]:
            if found[0] != run:
                return (), lambda _: False
            changes: list[Command] = [(b"HSET", keys.meta, _READY, b"1"), (b"HDEL", keys.meta, _CREATING)]
            return changes, lambda _: True

        if not line.update([keys.meta], [(b"HGET", keys.meta, RUN)], decide):
            raise StoreError(f"the model {keys.model!r} was dropped while it was created; start again.")
    except BaseException:
        with suppress(StoreError, RedisError, RedisClusterException, OSError):
            drop_model(client, keys, run)
        raise


def _former_partitions(client: Any, keys: Keys, partitions: int) -> list[int]:
    """Those of which an earlier model of this name has left something, such as after a failover.

    Raises StoreError for keys that belong to no model: without a record, or with another kind of it.
    """
    left = []
    for some in _batches(range(partitions)):
        asked: list[Command] = []
        for p in some:
            its_keys = _partition_keys(keys, p)
            asked += [(b"HGET", its_keys[0], RUN), (b"EXISTS", *its_keys)]
        answers = _each(client, asked, errors=True)
        for p, run, count in zip(some, answers[::2], answers[1::2], strict=True):
            if _is_wrong_type(run) or (run is None and count):
                names = ", ".join(key.decode() for key in _partition_keys(keys, p))
                raise StoreError(
                    f"the store holds something that is no part of a model under a name that {keys.model!r} "
                    f"needs (one of {names}); name another model (?model=NAME), or delete it."
                )
            for answer in (run, count):
                if isinstance(answer, Exception):
                    raise answer
            if run is not None:
                left.append(p)
    return left


def _join(client: Any, keys: Keys, wanted: Mapping[str, str]) -> bytes:
    """Wait until the model is ready, and check what it is."""
    deadline = monotonic() + _CREATION_S
    while _READY not in (meta := client.hgetall(keys.meta)):
        if not meta:
            raise StoreError(f"there is no model {keys.model!r} in this store (any more): has its job ended?")
        if monotonic() > deadline or _CREATING not in meta:
            raise StoreError(_refusal(keys, meta))
        sleep(0.05)
    found = {name.decode(): value.decode() for name, value in meta.items()}
    if found.get("layout") != LAYOUT_VERSION:
        raise StoreError(
            f"the model {keys.model!r} was created by another version of ctr (layout {found.get('layout')}, "
            f"this one has layout {LAYOUT_VERSION}); use that version for it, or drop it with `ctr ps drop`."
        )
    for name, value in wanted.items():
        if found.get(name) != value:
            raise StoreError(
                f"the model {keys.model!r} in this store has {name} {found.get(name)}, this job has {value}; "
                "use another model name, or drop the one in the store."
            )
    return bytes(meta[RUN])


def _refusal(keys: Keys, meta: Mapping[bytes, bytes]) -> str:
    """Why a model that is there can neither be created nor used."""
    if _READY in meta:
        return (
            f"the model {keys.model!r} is in this store already; name another (?model=NAME), or remove it "
            "with `ctr ps drop`."
        )
    if _CREATING in meta:
        return (
            f"the creation of the model {keys.model!r} in this store is not finished; if it was "
            "interrupted, remove what there is with `ctr ps drop`."
        )
    return f"the model {keys.model!r} is being dropped; `ctr ps drop` finishes that if it was interrupted."


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
        found, its_job = nodes.client().hmget(keys.meta, RUN, b"job")
        if found is not None and (found == run.encode() or (job is not None and its_job == job.encode())):
            drop_model(nodes.client(), keys, found)
    except (RedisError, RedisClusterException, OSError) as error:
        raise StoreError(
            f"{parsed}: the model could not be dropped ({error}){rights_hint(error)}."
        ) from error
    finally:
        nodes.close()


def drop_model(client: Any, keys: Keys, run: bytes) -> None:
    """Delete everything that the model created as `run`, and its job, keep in the store; no other model.

    It may be done by several at once, and again after it was interrupted. Without transactions, and with none
    but commands that free memory, as a server above its memory limit takes nothing else.
    """
    found, partitions, creating = client.hmget(keys.meta, RUN, b"partitions", _CREATING)
    if found != run:
        return
    client.hdel(keys.meta, _READY)  # from now on it is dropped, if it was created
    client.delete(keys.board(BoardPart.RUN))  # which tells the workers
    (ranks,) = _each(client, [(b"HGET", keys.board(BoardPart.JOB), b"ranks")], errors=True)
    if isinstance(ranks, Exception) and not _is_wrong_type(ranks):
        raise ranks
    for rank in range(0 if isinstance(ranks, Exception) else int(ranks or 0)):
        client.delete(keys.rank(rank))
    for some in _batches(range(int(partitions or 0))):
        runs = _each(client, [(b"HGET", keys.record(p), RUN) for p in some], errors=True)
        ours = []
        for p, its_run in zip(some, runs, strict=True):
            if isinstance(its_run, Exception) and not _is_wrong_type(its_run):
                raise its_run
            # Before all is created, what has no record may be somebody else's.
            if its_run == run or (creating is None and (its_run is None or isinstance(its_run, Exception))):
                ours.append(p)
        _each(client, [(b"DEL", *_partition_keys(keys, p)) for p in ours])
    if client.hget(keys.meta, RUN) == run:
        client.delete(*(keys.board(part) for part in BoardPart), keys.meta)


def _partition_keys(keys: Keys, partition: int) -> tuple[bytes, ...]:
    """All of a partition; its record first."""
    return tuple(key(partition) for key in (keys.record, keys.state, keys.tail, keys.inserts))


def _batches(partitions: range | list[int]) -> Iterator[range | list[int]]:
    return (partitions[first : first + _AT_A_TIME] for first in range(0, len(partitions), _AT_A_TIME))


def _each(client: Any, commands: list[Command], *, errors: bool = False) -> list[Any]:
    """The answers, in one round trip to each node; with `errors`, errors among them."""
    if not commands:
        return []
    pipeline = client.pipeline(transaction=False)
    for verb, *words in commands:
        pipeline.execute_command(verb.decode(), *words)  # which redis-py looks up, and expects as text
    answers: list[Any] = pipeline.execute(raise_on_error=not errors)
    return answers


def _is_wrong_type(answer: object) -> bool:
    return isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE")
