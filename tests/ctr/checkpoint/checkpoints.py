"""What the tests of checkpoints share."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ctr.checkpoint.checkpoint import Checkpoint, restore_checkpoint
from ctr.checkpoint.writer import draft_checkpoint
from ctr.ps import Token
from ctr.ps.redis.store import RedisStore
from ctr.ps.wire.url import parse_redis_url

FILES = ["manifest.json", "partitions-00.arrow", "reports.arrow"]

SLOTS = np.arange(0, 4_096, 5, dtype=np.uint32)

model_numbers = count()


def opened(url: str, bits: int = 12, **options: Any) -> RedisStore:
    """A store of a new model."""
    url = f"{url}?model=checkpoint-{next(model_numbers)}"
    return RedisStore(parse_redis_url(url), bits=bits, width=2, **options)


def train(store: RedisStore, chunk: int, shard: int = 0, slots: np.ndarray = SLOTS) -> None:
    """Push a chunk: each one a unit of z and two of n."""
    store.push(slots, np.full((slots.size, 2), [1, 2], np.float32), Token("job", shard, chunk))


def write_checkpoint(folder: Path, store: RedisStore, **facts: Any) -> None:
    with draft_checkpoint(folder, store, **facts) as commit:
        commit()


def write(folder: Path, store: RedisStore, n: int = 0) -> None:
    write_checkpoint(folder, store, job={"name": "test"}, position={"n": n}, reports={})


def content(store: RedisStore) -> list[tuple[int, bytes, dict[str, int]]]:
    """Everything that a store holds, to the bit, but for zeros at the end of a partition."""
    dumps = [store.dumps.take(p) for p in range(store.partitions.count)]
    return [(d.partition, bytes(d.state).rstrip(b"\0"), d.applied) for d in dumps]


def restored(checkpoint: Checkpoint, url: str, **options: Any) -> RedisStore:
    scales = {"z_bits": checkpoint.manifest.store.z_bits, "n_bits": checkpoint.manifest.store.n_bits}
    store = opened(url, checkpoint.manifest.store.bits, **scales, **options)
    restore_checkpoint(checkpoint, store)
    return store


def drafts(folder: Path) -> list[str]:
    """Hidden names beside a folder."""
    return [path.name for path in folder.parent.iterdir() if path.name.startswith(".")]
