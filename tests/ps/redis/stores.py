"""What the tests of `RedisStore` share."""

from __future__ import annotations

from itertools import count

import numpy as np

from ctr.ps.redis.fold import fold
from ctr.ps.redis.store import RedisStore
from ctr.ps.wire.url import parse_redis_url

_names = count()


def opened(url: str, bits: int = 12, model: str | None = None, **options: object) -> RedisStore:
    """A store of a new model at `url`, unless `model` names one."""
    name = f"test-{next(_names)}" if model is None else model
    return RedisStore(parse_redis_url(f"{url}?model={name}"), bits=bits, width=2, **options)


def opened_by(count: int, url: str, bits: int, model: str) -> list[RedisStore]:
    """The store of a new model, as this many processes open it."""
    return [opened(url, bits, model, join=number > 0) for number in range(count)]


def fold_all(store: RedisStore) -> None:
    """Add all logs to the state, for whoever pulls."""
    todo = list(range(store.layout.strings.count))
    while todo:
        todo = fold(store.pushes.model, todo)


SLOTS = np.arange(0, 4_096, 3, dtype=np.uint32)


def deltas(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.abs(rng.normal(0, 1, (SLOTS.size, 2))).astype(np.float32)
