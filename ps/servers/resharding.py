"""Moving hash slots of a Redis Cluster, and the partitions in them, from one primary to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from redis.crc import key_slot

from ctr.ps.servers.redis_server import RedisServer
from ctr.ps.wire import Keys

_MOVE_TIMEOUT_MS = 60_000


def hash_slot_of(keys: Keys, partition: int) -> int:
    """The hash slot that all keys of a partition are in."""
    return int(key_slot(keys.state(partition)))


def move_hash_slots(
    servers: Sequence[RedisServer],
    source: RedisServer,
    target: RedisServer,
    hash_slots: Iterable[int],
    *,
    keys_at_a_time: int = 10,
    pause: Callable[[], object] = lambda: None,
) -> None:
    """Move hash slots with their keys from one primary to another while clients go on; tell all `servers`.

    As `redis-cli --cluster reshard` does: each hash slot is opened on both sides, its keys go over in batches
    of `keys_at_a_time`, and then it is given to the target. `pause` is called after each batch, while the
    source answers ASK for keys that are gone, or never were there.

    `servers` are the primaries that are alive, which includes these two. Raises redis-py's errors; then the
    hash slot that was being moved is still open.
    """
    others = [server for server in servers if server not in (source, target)]
    with source.connect() as giver, target.connect() as taker:
        giver_name = giver.execute_command("CLUSTER MYID")
        taker_name = taker.execute_command("CLUSTER MYID")
        address = (target.host, target.port, "", 0, _MOVE_TIMEOUT_MS, "AUTH", target.password)
        for number in hash_slots:
            taker.execute_command("CLUSTER SETSLOT", number, "IMPORTING", giver_name)
            giver.execute_command("CLUSTER SETSLOT", number, "MIGRATING", taker_name)
            while keys := giver.execute_command("CLUSTER GETKEYSINSLOT", number, keys_at_a_time):
                giver.execute_command("MIGRATE", *address, "KEYS", *keys)
                pause()
            # The target first, so that the hash slot has an owner all the time.
            for node in (taker, giver):
                node.execute_command("CLUSTER SETSLOT", number, "NODE", taker_name)
            for server in others:
                with server.connect() as other:
                    other.execute_command("CLUSTER SETSLOT", number, "NODE", taker_name)
